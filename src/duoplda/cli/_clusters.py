"""What `duoplda cluster` and `duoplda link` share: options, pairs of recordings, and what is said of a clustering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duoplda.cli._common import result_json, say
from duoplda.errors import DuopldaError

if TYPE_CHECKING:
    from duoplda.trials.clustering import Clustering

Known = Annotated[Path | None, typer.Option(help="Speakers of `duoplda enroll`, whom a cluster may be.")]
Prior = Annotated[float, typer.Option(help="Probability that two random sessions are of one speaker.")]
Weight = Annotated[float, typer.Option(help="What log ratios count; less than 1 trusts them less.")]
SHOWN = 5  # doubtful merges and pairs that are printed


def read_pairs(path: Path | None) -> Any:
    """(k, 2) pairs of recordings, from lines `recording recording`."""
    if path is None:
        return None
    import numpy as np

    from duoplda.io import read_trials

    listed = read_trials(path)
    if listed.target is not None:
        raise DuopldaError(f"{path}: these are trials with their truth; give pairs alone, lines `recording recording`")
    return np.column_stack([listed.enroll.values, listed.test.values])


def write_merges(path: Path, found: Clustering, items: Sequence[str], force: bool) -> None:
    """Write the merges, one in each line; `#3` is what merge 3 made, else it is an item's or a known speaker's name."""
    import numpy as np

    from duoplda.io import Coded
    from duoplda.io.labels import write_table

    pairs = found.merges[:, :2].astype(int)
    n = len(items)
    names = [[str(items[k]) if k < n else f"#{k - n + 1}" for k in column] for column in pairs.T.tolist()]
    steps = Coded.of([f"#{t + 1}" for t in range(len(pairs))])
    columns: dict[str, Any] = {"merge": steps, "first": Coded.of(names[0]), "second": Coded.of(names[1])}
    counts = Coded.of([str(int(m)) for m in found.merges[:, 3]])
    write_table(path, columns | {"gain": np.round(found.merges[:, 2], 4), "sessions": counts}, force=force)


def tell(found: Clustering, counts: Mapping[str, Any], out: Path, json: bool) -> None:
    """Say what was found and what is doubtful, or print it as JSON."""
    from duoplda.report import weak_clusters, weak_pairs

    names = found.names.tolist()
    weak = [{"speaker": names[k], "nats": float(found.split[k])} for k in weak_clusters(found, SHOWN)]
    near: list[dict[str, Any]] = []
    for a, b in weak_pairs(found, SHOWN):
        gain = max(float(found.merge[k]) for k, other in ((a, b), (b, a)) if found.nearest[k] == other)
        near.append({"speaker": names[a], "other": names[b], "nats": gain})
    if json:
        more = {"known": int(found.known.sum()), "log_posterior": found.log_posterior}
        result_json({"out": str(out), **counts, **more, "weak_merges": weak, "near_pairs": near})
        return
    known = f", {int(found.known.sum()):,} of them known" if found.known.any() else ""
    said = [", ".join(f"{n:,} {what}" for what, n in counts.items()) + f"{known}: {out}"]
    if weak:
        said.append("weakest speakers, and nats that splitting them would lose:")
        said += [f"  {w['speaker']}  {w['nats']:.1f}" for w in weak]
    if near:
        said.append("nearest pairs of speakers, and nats that merging them would gain:")
        said += [f"  {w['speaker']} {w['other']}  {w['nats']:.1f}" for w in near]
    say("\n".join(said))
