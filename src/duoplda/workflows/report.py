"""The report: one HTML page on one or several systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoplda.errors import DuopldaError, OptionsError
from duoplda.estimators import domain, scoring
from duoplda.estimators.backend import Backend
from duoplda.io import Trials, check_output, read_enrollment, read_map, read_recordings, source_files
from duoplda.report import inferred_kinds, write_report
from duoplda.workflows._files import Note, PathLike, file_hashes, silent
from duoplda.workflows._matched import read_matched, read_speaker_sides
from duoplda.workflows.convert import load_model


def report(
    scores: Sequence[PathLike],
    trials: PathLike,
    out: PathLike,
    *,
    model: PathLike | None = None,
    channels: PathLike | None = None,
    embeddings: PathLike | None = None,
    speakers: PathLike | None = None,
    enroll: PathLike | None = None,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
    allow_missing: bool = False,
    command: str = "",
    note: Note = silent,
    **options: Any,
) -> tuple[int, int]:
    """Write the page on scores of trials; return the numbers of systems and of trials."""
    if embeddings and not model:
        raise OptionsError("`embeddings` needs `model`: recordings are compared with what it was trained on")
    inputs = [*scores, trials, model, speakers, enroll, channels, *(source_files(embeddings) if embeddings else [])]
    check_output(out, options.get("force", False), inputs=inputs)
    chain = load_model(model)[0] if model else None
    matched = read_matched(scores, trials, allow_missing, note)
    columns = matched.trials
    conditions: dict[str, Any] = {name: column.values for name, column in columns.conditions.items()}
    kind = read_map(channels, "channel") or {}
    if kind:
        conditions["channel of the test"] = [kind.get(name, "unknown") for name in columns.test.values.tolist()]
    counts: dict[str, Any] = {}
    if matched.n_left_out:
        counts["trials left out, without a score"] = matched.n_left_out
    kinds = None
    if embeddings and chain is not None:
        kinds = inferred_kinds(chain, read_recordings(embeddings), kind) if kind else None
        counts["squared distance from the training data"] = _distance(chain, embeddings, columns, enroll)
    write_report(
        out,
        matched.systems,
        matched.target,
        trials=(columns.enroll.values, columns.test.values),
        speakers=read_speaker_sides(matched, speakers, enroll),
        conditions=conditions,
        kinds=kinds,
        data_counts=counts,
        model_summary=chain.plda_ if chain else None,
        costs=(c_miss, c_fa),
        commands=[command],
        hashes=file_hashes(inputs),
        **options,
    )
    return len(matched.systems), len(matched.target)


def _distance(chain: Backend, embeddings: PathLike, trials: Trials, enroll: PathLike | None) -> str:
    """How far the recordings of trials are from the training data of a chain, in words."""
    models = trials.enroll.names
    members = models if enroll is None else scoring.members(read_enrollment(enroll), trials)[1].values
    wanted = [*members.tolist(), *trials.test.names.tolist()]
    seen, _ = domain.look(chain, read_recordings(embeddings), wanted)
    if not seen.n:
        raise DuopldaError("`embeddings` has none of the recordings of the trials: do the ids agree?")
    measured = domain.measure(chain, seen, len(models))
    end = "within it" if measured.within else "beyond it: ratios may mislead, see duoplda adapt"
    return f"{measured.distance:.4g}, limit {measured.limit:.4g} for {seen.n:,} recordings: {end}"
