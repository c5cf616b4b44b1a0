"""`python -m benchmarks.gpu`: statistics, EM and scores on CUDA tensors, against bare torch products and the CPU."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.common import Row, save, table
from benchmarks.core import a_model
from duoplda import PLDA, Backend, Statistics
from duoplda.arrays import streamed
from duoplda.estimators.preprocessing import through
from duoplda.model import em


def best(function: Callable[[], Any], repeat: int = 5) -> float:
    function()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def once(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def from_the_host(host: Any, speaker: Any, session: Any, device: str, rows: list[Row]) -> float:
    """Passes over single-precision recordings of the host, and what the way to the GPU takes; seconds of a pass."""
    (N, d), size = host.shape, f"{len(host) // 1000}k x {host.shape[1]}, single"
    step = (1 << 26) // (4 * d)
    parts = [slice(a, min(a + step, N)) for a in range(0, N, step)]
    there = torch.empty((step, d), dtype=torch.float32, device=device)
    pinned = torch.empty_like(there, device="cpu", pin_memory=True)
    pageable = [torch.from_numpy(host)[p] for p in parts]
    copy = best(lambda: [there[: len(p)].copy_(pinned[: len(p)], non_blocking=True) for p in pageable])
    order = np.random.default_rng(0).permutation(N)
    mixed = speaker[order], session[order]
    locked = torch.from_numpy(host).pin_memory().numpy()
    chain = Backend(plda=PLDA(10, 10, max_iter=1)).fit(host[: N // 48], speaker[: N // 48], session[: N // 48])
    transform = partial(through, chain.steps_)

    def alone() -> None:
        for _ in streamed(host, parts, there):
            pass

    def one_pass(X: Any = host, labels: Any = (speaker, session), **options: Any) -> float:
        return best(lambda: Statistics.from_arrays(X, *labels, device=device, **options), 4)

    ours = one_pass()
    for what, seconds, goal in (
        ("the driver's copy of pageable memory", best(lambda: [there[: len(p)].copy_(p) for p in pageable], 2), None),
        ("copying to pinned memory by all cores", best(lambda: [pinned[: len(p)].copy_(p) for p in pageable]), None),
        ("both copies at once, and no work", best(alone), None),
        ("one pass, streamed from pageable memory", ours, 1.3),
        ("one pass, streamed, rows in random order", one_pass(labels=mixed), None),
        ("one pass, streamed from pinned memory", one_pass(locked), 1.3),
        ("one pass, streamed and preprocessed there", one_pass(transform=transform), None),
    ):
        rows.append(Row(f"{what} / copying", size, seconds, copy, goal))
    return ours


def main(device: str = "cuda") -> None:
    warnings.simplefilter("ignore")
    print(torch.__version__, torch.cuda.get_device_name(), f"{torch.get_num_threads()} cores beside it")
    rows: list[Row] = []
    against: list[Row] = []
    d, speakers, sessions, recordings = 512, 6000, 40, 4
    N = speakers * sessions * recordings
    size = f"{N // 1000}k x {d}"
    speaker = np.repeat(np.arange(speakers), sessions * recordings)
    session = np.repeat(np.arange(speakers * sessions), recordings)
    X = torch.randn(N, d, dtype=torch.float64, device=device)
    F = X[: N // recordings]
    floor = best(lambda: (X.T @ X, F.T @ F))
    there = [torch.asarray(a, device=device) for a in (speaker, session)]
    order = torch.randperm(N, device=device)
    mixed = [a[order] for a in there]
    for what, labels in (
        ("labels there", there),
        ("labels on the host", (speaker, session)),
        ("random order", mixed),
    ):
        ours = best(lambda labels=labels: Statistics.from_arrays(X, *labels))
        rows.append(Row("one pass / X'X and F'F", f"{size} there, {what}", ours, floor, 2.0))
    host = np.empty((N, d), np.float32)
    host[...] = X.cpu().numpy()
    ours = from_the_host(host, speaker, session, device, rows)
    cpu = once(lambda: Statistics.from_arrays(host, speaker, session))
    against.append(Row("one pass, streamed / the CPU's", size, ours, cpu, None))
    some = [labels[: N // 4] for labels in (host, speaker, session)]
    chain = Backend(plda=PLDA(60, 40, max_iter=2))
    ours, cpu = best(lambda: chain.fit(*some, device=device), 2), once(lambda: chain.fit(*some))
    against.append(Row("whitening, length norm, 2 EM iterations / the CPU's", f"{N // 4000}k x {d}", ours, cpu, None))

    stats = Statistics.from_arrays(X, *there)
    start = em.moment_start(stats, 150, 100)
    twenty = best(lambda: em.fit(stats, start, max_iter=20, tol=0), 2)
    rows.append(Row("20 EM iterations / one second", f"{speakers} speakers, 150/100", twenty, 1.0, 1.0))
    stats_cpu = Statistics.from_arrays(host, speaker, session)
    start_cpu = em.moment_start(stats_cpu, 150, 100)
    cpu = once(lambda: em.fit(stats_cpu, start_cpu, max_iter=20, tol=0))
    against.append(Row("20 EM iterations / the CPU's", f"{speakers} speakers, 150/100", twenty, cpu, None))

    m = a_model(d, 150, 100)
    on_cpu = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0])
    plda = PLDA.from_parameters(*(torch.asarray(p, device=device) for p in (m.mu[0], m.V, m.U, m.W[0])))
    a, b = plda.enroll(X[:20_000], np.arange(20_000)), plda.enroll(X[:100_000], np.arange(100_000))
    left = torch.randn(20_000, 152, dtype=torch.float64, device=device)
    right = torch.randn(100_000, 152, dtype=torch.float64, device=device)
    ours, floor = best(lambda: plda.llr(a, b)), best(lambda: left @ right.T)
    rows.append(Row("score matrix / product", "20k x 100k, ny=150", ours, floor, 1.3))
    Y = X[:100_000].cpu().numpy()
    c, e = on_cpu.enroll(Y[:20_000], np.arange(20_000)), on_cpu.enroll(Y, np.arange(100_000))
    cpu = once(lambda: on_cpu.llr(c, e))
    against.append(Row("score matrix / the CPU's", "20k x 100k, ny=150", ours, cpu, None))
    blocks = best(lambda: [None for _ in plda.llr_blocks(a, b)], 3)
    rows.append(Row("score matrix in blocks that stay there / product", "20k x 100k", blocks, floor, 1.3))
    out = torch.empty((20_000, 5_000), dtype=torch.float64, pin_memory=True)
    copy = 20 * best(lambda: out.copy_(torch.empty_like(out, device=device), non_blocking=True))
    blocks = best(lambda: [None for _ in plda.llr_blocks(a, b, host=True)], 2)
    rows.append(Row("score matrix in blocks to the host / copying alone", "20k x 100k, 16 GB", blocks, copy, None))
    top = best(lambda: plda.top(a, b, 10), 3)
    rows.append(Row("the 10 highest of 20k for each of 100k / product", "20k x 100k", top, floor, 3.0))
    sides = np.sort(np.random.default_rng(0).integers(0, 20_000, 100_000))
    sets = plda.enroll(X[:100_000], sides, np.arange(100_000) // 3 * 20_000 + sides)  # sessions of 1 to 3
    ours = best(lambda: plda.llr(sets, b), 3)
    rows.append(Row("score matrix, ragged sets / product", f"{len(sets) // 1000}k x 100k", ours, floor, 2.0))
    print(table(rows) + "\n\n" + table(against))

    few = slice(0, 40_000)
    results = []
    for x in (X[few].cpu().numpy(), X[few]):
        fitted = PLDA(60, 40, max_iter=5, tol=0).fit(x, speaker[few], session=session[few])
        tests = fitted.enroll(x[:500], np.arange(500))
        results.append((fitted.noise_precision_, fitted.llr(tests, tests)))
    differ = [float(np.abs(g.cpu().numpy() - c).max() / np.abs(c).max()) for c, g in zip(*results, strict=True)]
    print("\nCPU and GPU after 5 iterations, of the largest entry: ", end="")
    print(f"noise precisions differ by {differ[0]:.1e}, log-likelihood ratios by {differ[1]:.1e}")
    gpu = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cpu_gpu": differ}
    print("written:", save("gpu-", {**gpu, "rows": [{**asdict(r), "ratio": r.ratio} for r in (*rows, *against)]}))


if __name__ == "__main__":
    main()
