"""`python -m benchmarks.cluster`: the passes over training data in shards, on a cluster of processes on this machine.

From the rates that it measures, it works out what a billion recordings would take.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from benchmarks.common import save
from duoplda import Statistics
from duoplda.engines.dask import recordings
from duoplda.estimators.preprocessing import Center, LengthNorm, Whiten, through
from duoplda.io import LabelColumns, read_embeddings, write_embeddings

SESSIONS, COPIES = 20, 5  # sessions of a speaker, recordings of a session


def make(folder: Path, n_shards: int, speakers: int, d: int) -> int:
    """Write Parquet shards in single precision with labels; only sessions at the border of two shards are cut."""
    N = speakers * SESSIONS * COPIES
    ids = np.array([f"utt{i:08}" for i in range(N)])
    speaker = np.array([f"spk{i:05}" for i in range(speakers)])[np.arange(N) // (SESSIONS * COPIES)]
    session = np.array([f"sess{i:06}" for i in range(speakers * SESSIONS)])[np.arange(N) // COPIES]
    rng = np.random.default_rng(0)
    for i, rows in enumerate(np.array_split(np.arange(N), n_shards)):
        labels = LabelColumns(ids[rows], speaker[rows], session[rows])
        X = rng.standard_normal((len(rows), d), dtype=np.float32)
        write_embeddings(folder / f"part-{i:03}.parquet", ids[rows], X, labels=labels)
    return N


def timed(function: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    out = function()
    return time.perf_counter() - start, out


def passes(client: Any, folder: Path, transform: Any) -> dict[str, Any]:
    """Seconds of the three passes that training makes over shards that hold their own labels."""
    data = recordings(folder, True, client=client)
    labels, _ = timed(lambda: data.split)
    spread, _ = timed(lambda: Statistics.unlabelled(data))
    sums, stats = timed(lambda: Statistics.of(data, transform, n_folds=4))
    return {"labels": labels, "spread": spread, "statistics": sums, "stats": stats}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--speakers", type=int, default=1000, help=f"each with {SESSIONS * COPIES} recordings")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    d, rows = given.dimensions, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        N = make(folder, given.shards, given.speakers, d)
        size = sum(p.stat().st_size for p in folder.iterdir())
        print(f"{N} recordings x {d} in {given.shards} Parquet shards, {size / 1e6:.0f} MB")
        X = np.random.default_rng(1).standard_normal((4 * d, d))
        steps = {"center": Center().fit(X), "whiten": Whiten().fit(X), "length_norm": LengthNorm().fit(X)}
        transform = partial(through, steps)
        alone, _ = timed(lambda: [None for _ in read_embeddings(folder).chunks()])
        for workers in given.workers:
            options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
            with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
                passes(client, folder, transform)  # imports, pages
                runs = [passes(client, folder, transform) for _ in range(given.repeat)]
            stats: Statistics = runs[-1].pop("stats")
            best = {k: min(r[k] for r in runs) for k in ("labels", "spread", "statistics")}
            rate = {k: N / v / workers for k, v in best.items()}
            rows.append({"workers": workers, "seconds": best, "recordings_per_second_and_core": rate})
            print(
                f"{workers} workers of one thread: "
                + ", ".join(f"{k} {v:.2f} s ({rate[k]:,.0f} a second and core)" for k, v in best.items())
            )
        print(f"reading alone, one process: {alone:.2f} s ({N / alone:,.0f} a second)")
        held = len(pickle.dumps(stats, protocol=5))
        print(f"statistics (4 folds): {held / 1e6:.0f} MB for {given.speakers} speakers")
    rate = rows[0]["recordings_per_second_and_core"]
    print(f"\n{arithmetic(d, rate, size / N)}")
    print("\nwritten:", save("cluster-", {"rows": rows, "bytes": size, "statistics_bytes": held}, given.out))


def arithmetic(d: int, rate: dict[str, float], bytes_each: float, N: float = 1e9) -> str:
    """A billion recordings: 5 a session, 200 sessions a speaker, so a million speakers; 1,000 cores; 4 folds."""
    sessions, speakers, shards = N / 5, N / 1000, 8000
    seconds = {k: N / v for k, v in rate.items()}
    T = 8 * d * d
    GB = 1e9
    keys, sums, cut = 8 * sessions / GB, speakers * 8 * d / GB, 2 * shards * 8 * d / 1e6
    tree = (speakers * 8 * d + shards * 4 * 2 * T) * 8 / 7 / GB
    hours = ", ".join(f"{k} {v / 3600:,.1f}" for k, v in seconds.items())
    return f"""1e9 recordings x {d} in {shards} shards, sessions of 5, 1e6 speakers of 200 sessions:
  bytes read: labels once, vectors twice, {bytes_each:,.0f} a recording: {2 * N * bytes_each / 1e12:.1f} TB
  flops: mean and covariance {N * d * d:.1e}, whitening {2 * N * d * d:.1e}, sums {N * d * d:.1e}
  core hours at the rates of one worker: {hours}; all on 1,000 cores: {sum(seconds.values()) / 6e4:.1f} minutes
  sent between machines: keys of sessions {keys:.1f} GB, two open parts of the session at each border {cut:.0f} MB,
    scatters of four folds and sums of speakers as they are added up {tree:.0f} GB
  the client holds: keys {keys:.1f} GB, twice while they are sorted; sums of speakers {sums:.1f} GB for each size of
    sessions, twice while they are put together; scatters {4 * 2 * T / 1e6:.0f} MB"""


if __name__ == "__main__":
    main()
