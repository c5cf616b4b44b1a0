"""The report: one HTML page on one or several systems."""

from __future__ import annotations

from typing import Any

from duoplda.data import Recordings
from duoplda.errors import DuopldaError
from duoplda.estimators import domain, scoring
from duoplda.estimators.backend import Backend
from duoplda.io import Enrollment, Trials, check_output, read_enrollment, read_map, read_recordings, source_files
from duoplda.report import inferred_kinds, write_report
from duoplda.workflows import option
from duoplda.workflows._files import Note, file_hashes, held_lists, silent
from duoplda.workflows._matched import read_matched, read_speaker_sides
from duoplda.workflows.convert import load_model
from duoplda.workflows.option import refuse


def report(
    scores: option.ScoreFiles,
    trials: option.ReportTrials,
    out: option.PageOut,
    *,
    model: option.ShownModel = None,
    channels: option.TrainingChannels = None,
    embeddings: option.ComparedEmbeddings = None,
    title: option.Title = "Speaker recognition report",
    p_target: option.SliderPrior = 0.01,
    c_miss: option.CostMiss = 1.0,
    c_fa: option.CostFalseAlarm = 1.0,
    log10: option.Log10 = False,
    speakers: option.TestSpeakers = None,
    enroll: option.Enrolment = None,
    bootstrap: option.Resamples = 200,
    seed: option.Seed = 0,
    columns: option.Columns = None,
    allow_missing: option.AllowMissing = False,
    force: option.Force = False,
    command: str = "",
    progress: bool = False,
    note: Note = silent,
) -> tuple[int, int]:
    """Write the page on scores of trials; return the numbers of systems and of trials."""
    cause = "`embeddings` needs `model`: recordings are compared with what it was trained on"
    refuse(embeddings and not model, cause)
    scores = held_lists(*scores)
    trials, speakers, enroll, channels, embeddings = held_lists(trials, speakers, enroll, channels, embeddings)
    inputs = [*scores, trials, model, speakers, enroll, channels, *(source_files(embeddings) if embeddings else [])]
    check_output(out, force, inputs=inputs)
    chain = load_model(model)[0] if model else None
    matched = read_matched(scores, trials, columns, allow_missing, note, log10)
    conditions: dict[str, Any] = {name: column.values for name, column in matched.trials.conditions.items()}
    kind = read_map(channels, "channel", columns) or {}
    if kind:
        conditions["channel of the test"] = [kind.get(name, "unknown") for name in matched.trials.test.values.tolist()]
    counts: dict[str, Any] = {}
    if matched.n_left_out:
        counts["trials left out, without a score"] = matched.n_left_out
    kinds = None
    measured = None
    if embeddings and chain is not None:
        recordings = read_recordings(embeddings, columns=columns)
        kinds = inferred_kinds(chain, recordings, kind) if kind else None
        enrollment = None if enroll is None else read_enrollment(enroll, columns=columns)
        measured = _domain(chain, recordings, matched.trials, enrollment)
    write_report(
        out,
        matched.systems,
        matched.target,
        trials=(matched.trials.enroll.values, matched.trials.test.values),
        speakers=read_speaker_sides(matched, speakers, enroll, columns),
        conditions=conditions,
        kinds=kinds,
        domain=measured,
        data_counts=counts,
        model_summary=chain.plda_ if chain else None,
        title=title,
        p_target=p_target,
        costs=(c_miss, c_fa),
        bootstrap=bootstrap,
        seed=seed,
        commands=[command],
        hashes=file_hashes(inputs),
        progress=progress,
        force=force,
    )
    return len(matched.systems), len(matched.target)


def _domain(chain: Backend, recordings: Recordings, trials: Trials, enrollment: Enrollment | None) -> domain.Domain:
    """The distance of the recordings of trials from the training data of a chain."""
    models = trials.enroll.names
    members = models if enrollment is None else scoring.members(enrollment, trials)[1].values
    wanted = [*members.tolist(), *trials.test.names.tolist()]
    measured = scoring.measure_recordings(chain, recordings, wanted)
    if measured is None:
        raise DuopldaError("`embeddings` has none of the recordings of the trials: do the ids agree?")
    return measured
