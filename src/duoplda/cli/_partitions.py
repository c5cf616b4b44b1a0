"""The part of `evaluate` that is about partitions: clusters of recordings, and who speaks when."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duoplda.cli._common import missing, result, result_json, say, usage
from duoplda.errors import DuopldaError

if TYPE_CHECKING:
    from duoplda.diarization import DiarizationErrors

Clusters = Annotated[
    Path | None, typer.Option(help="Clusters to evaluate instead of scores: recording, cluster (utt2spk), or RTTM.")
]
Reference = Annotated[Path | None, typer.Option(help="With --clusters: who really speaks (utt2spk), or RTTM.")]
Collar = Annotated[float, typer.Option(min=0, help="RTTM: seconds not scored on both sides of a reference boundary.")]
SkipOverlap = Annotated[bool, typer.Option("--skip-overlap", help="RTTM: score only where at most one speaks.")]
Uem = Annotated[Path | None, typer.Option(help="RTTM: score these regions only (lines: file channel start end).")]

WORDS = {
    "b_cubed_precision": "B-cubed precision %",
    "b_cubed_recall": "B-cubed recall %",
    "b_cubed_f": "B-cubed F %",
    "purity": "purity %",
    "coverage": "coverage %",
    "nmi": "NMI",
    "clusters": "clusters found",
    "speakers": "true speakers",
}


def evaluate_partition(
    clusters: Path | None, reference: Path | None, *, others: Sequence[object], diarization: dict[str, Any], **more: Any
) -> None:
    """Evaluate clusters or turns, whichever the files hold; `others` are options that are about scores."""
    from duoplda.diarization import is_rttm

    if clusters is None or reference is None or any(others):
        usage("evaluate takes --scores and --trials, or --clusters and --reference, and the options of one of the two")
    turns = is_rttm(clusters)
    if turns != is_rttm(reference):
        names = (clusters, reference) if turns else (reference, clusters)
        raise DuopldaError(f"{names[0]} is RTTM and {names[1]} is not; give two files of turns, or two of labels")
    if turns:
        evaluate_turns(clusters, reference, **diarization, allow_missing=more["allow_missing"], json=more["json"])
        return
    if any(diarization.values()):
        usage("--collar, --skip-overlap and --uem are for turns (RTTM), and these are labels of recordings")
    evaluate_clusters(clusters, reference, **more)


def evaluate_clusters(
    clusters: Path, reference: Path, *, bootstrap: int, seed: int, allow_missing: bool, json: bool
) -> None:
    """Print how well clusters of recordings agree with their speakers."""
    from duoplda.evaluation.partitions import partition_metrics
    from duoplda.io import read_partition

    found = read_partition(clusters)
    truth = read_partition(reference, "speaker")
    missing(f"recordings of {clusters} have no speaker", [i for i in found if i not in truth], allow_missing)
    missing(f"recordings of {reference} have no cluster", [i for i in truth if i not in found], allow_missing)
    ids = [i for i in found if i in truth]
    if not ids:
        raise DuopldaError(f"{clusters} and {reference} have no recording in common; do their ids agree?")
    columns = [found[i] for i in ids], [truth[i] for i in ids]
    measured = partition_metrics(*columns, n_resamples=bootstrap, seed=seed)
    if json:
        intervals = {name: (m.low, m.high) for name, m in measured.items() if m.low is not None}
        counts = {"recordings": len(ids), "missing": len({*found} ^ {*truth})}
        result_json(counts | {name: m.estimate for name, m in measured.items()} | {"intervals": intervals})
        return
    result(f"{len(ids):,} recordings")
    rows = []
    for name, m in measured.items():
        scale, digits = {"nmi": (1, 4), "clusters": (1, 0), "speakers": (1, 0)}.get(name, (100, 2))
        ends = [] if m.low is None else [f"{scale * end:,.{digits}f}" for end in (m.low, m.high)]
        rows.append([WORDS[name], f"{scale * m.estimate:,.{digits}f}", "..".join(ends)])
    result("\n".join(lines([["", "value", "95 % interval" * bool(bootstrap)], *rows])))
    if bootstrap:
        result(f"intervals: {bootstrap} resamples of the speakers")


def evaluate_turns(
    clusters: Path,
    reference: Path,
    *,
    collar: float,
    skip_overlap: bool,
    uem: Path | None,
    allow_missing: bool,
    json: bool,
) -> None:
    """Print the diarisation error rate and its parts, of each file and in all."""
    import numpy as np

    from duoplda.diarization import der, read_rttm, read_uem

    ours = read_rttm(clusters)
    truth = read_rttm(reference)
    regions = read_uem(uem) if uem else None
    known = {*truth.file.names.tolist(), *(regions.file.names.tolist() if regions else ())}
    strange = np.array([name not in known for name in ours.file.names.tolist()], bool)
    missing(f"files of {clusters} are not in {reference}", ours.file.names[strange], allow_missing)
    ours = ours[~strange[ours.file.codes]]
    found = der(ours, truth, collar=collar, skip_overlap=skip_overlap, regions=regions)
    if absent := [name for name in found.files if name in known - {*ours.file.names.tolist()}]:
        say(f"{len(absent)} files of {reference} have no turns in {clusters} and are missed: {', '.join(absent[:10])}")
    if left_out := len({*truth.file.names.tolist()} - {*found.files}):
        say(f"{left_out} files of {reference} have no regions in {uem} and are not scored")
    if json:
        options = {"collar": collar, "skip_overlap": skip_overlap, "files_left_out": left_out + int(strange.sum())}
        result_json(options | parts(found) | {"files": {name: parts(one) for name, one in found.files.items()}})
        return
    rows = [[name, *numbers(one)] for name, one in [*found.files.items(), ("all", found)]]
    result("\n".join(lines([["file", "DER %", "miss s", "false alarm s", "confusion s", "speech s"], *rows])))


def parts(errors: "DiarizationErrors") -> dict[str, float]:
    """The rate and the seconds that it is made of."""
    return {"der": errors.rate, **{name: getattr(errors, name) for name in errors._fields[:4]}}


def numbers(errors: "DiarizationErrors") -> list[str]:
    """The rate in percent, the seconds that it is made of."""
    rate, *seconds = parts(errors).values()
    return [f"{100 * rate:.2f}", *(f"{s:,.2f}" for s in seconds)]


def lines(rows: list[list[str]]) -> list[str]:
    """Rows of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]).rstrip() for r in rows]
