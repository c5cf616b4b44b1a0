"""Scoring: likelihood ratios of trials, of all pairs, or the highest of each test recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError, OptionsError
from duoplda.estimators import scoring
from duoplda.estimators.backend import Backend
from duoplda.io import (
    Coded,
    ScoreMatrix,
    Scores,
    Trials,
    is_container,
    read_enrollment,
    read_map,
    read_trials,
    write_scores,
)
from duoplda.io.label_index import missing, unlabelled
from duoplda.trials.normalization import COHORT_TOP, Cohort
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._audio import check_audio, embedded_recordings
from duoplda.workflows._files import Columns, Note, PathLike, Show, silent
from duoplda.workflows._matched import in_log10


def score(
    model: option.Model,
    embeddings: option.ScoreEmbeddings = None,
    out: option.ScoresOut = None,
    *,
    audio: option.Audio = None,
    extractor: option.Extractor = None,
    test_embeddings: option.TestEmbeddings = None,
    enroll: option.ModelRecordings = None,
    enrolled: option.Enrolled = None,
    trials: option.TrialList = None,
    sessions: option.Sessions = None,
    channels: option.Channels = None,
    occasions: option.Occasions = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    test_ids: option.TestIds = None,
    top: option.TopModels = None,
    matrix: option.Matrix = False,
    cosine: option.Cosine = False,
    raw: option.Raw = False,
    log10: option.Log10 = False,
    cohort: option.CohortFile = None,
    cohort_ids: option.CohortIds = None,
    cohort_sessions: option.CohortSessions = None,
    cohort_speakers: option.CohortSpeakers = None,
    normalize: option.Normalize = None,
    cohort_top: option.CohortTop = None,
    device: option.Device = "cpu",
    dask: option.Dask = None,
    domain_check: option.DomainCheck = True,
    allow_missing: option.AllowMissing = False,
    strict: option.Strict = False,
    force: option.Force = False,
    note: Note = silent,
    show: Show = silent,
    receive: Callable[[Scores], None] = silent,
) -> dict[str, int | str]:
    """Score trials, or all pairs of models and tests, write the scores, and return how many there are of each.

    Without `out`, `receive` gets the scores, some at a time.
    """
    check_audio(audio, extractor, embeddings, ids)
    if top is not None and matrix:
        raise OptionsError("`top` and `matrix` exclude each other")
    if trials is None and not matrix and top is None:
        raise OptionsError("give `trials`, or `matrix` or `top` for all pairs")
    if enrolled is not None and (enroll is not None or cosine):
        raise OptionsError("`enrolled` has models for the PLDA: leave out `enroll` and `cosine`")
    if occasions is not None and (enrolled is not None or cosine):
        raise OptionsError(
            "`occasions` are of the recordings that are enrolled here: leave out `enrolled` and `cosine`"
        )
    if log10 and (cosine or cohort is not None):
        raise OptionsError("`log10` is for likelihood ratios: leave out `cosine` and `cohort`")
    if trials is None and enroll is None and enrolled is None:
        raise OptionsError("without `trials`, `enroll` or `enrolled` must say which models there are")
    about_cohort = cohort_ids, cohort_sessions, cohort_speakers, normalize, cohort_top
    if cohort is None and any(option is not None for option in about_cohort):
        names = "`cohort_ids`, `cohort_sessions`, `cohort_speakers`, `normalize` and `cohort_top`"
        raise OptionsError(f"{names} need `cohort`")
    of_sets = cohort is not None and Path(cohort).is_file() and is_container(cohort)
    if of_sets and (cohort_ids is not None or cohort_sessions is not None or cosine):
        leave_out = "leave out `cohort_ids`, `cohort_sessions` and `cosine`"
        raise OptionsError(f"`cohort` is a file of enrolled sets: {leave_out}")
    embeddings, ids = files.held_lists(embeddings, ids)  # read for the enrolment and for the tests
    lists = [model, enrolled, enroll, trials, sessions, channels, occasions, cohort_sessions, cohort_speakers]
    lists += [extractor, *(audio or [])]
    files.check_outputs([out], force, [embeddings, test_embeddings, cohort], [ids, test_ids, cohort_ids, *lists])
    absent = partial(missing, allow_missing=allow_missing, note=note)
    with (
        embedded_recordings(
            audio,
            extractor,
            embeddings,
            model=model if domain_check else None,
            allow_missing=allow_missing,
            note=note,
            show=show,
        ) as embeddings,
        files.reader(device, dask, note, show, columns=columns, domain_check=domain_check) as (read, place),
    ):
        assert embeddings is not None
        embedded = files.EmbeddedIds(embeddings, ids, columns, allow_missing, note)
        tested = embedded
        if test_embeddings is not None:
            tested = files.EmbeddedIds(test_embeddings, test_ids, columns, allow_missing, note)
        chain = Backend.load(model)
        listed = None if trials is None else read_trials(trials, columns=columns)
        files.release_memory()
        options: dict[str, Any] = files.labels_by_id(sessions, channels, columns) | {"cosine": cosine}
        members = list[str]()  # recordings of the enrolment, where they are named
        of_trials = None
        if listed is not None:
            of_trials = files.ListedColumns(trials or "", listed.enroll.names, listed.test.names, "enroll=2,test=1")
        if enrolled is not None:
            voices = chain.load_sides(enrolled, device=place)
        else:
            pairs, of_enrolment = _pairs(enroll, listed, columns)
            if of_enrolment is not None:
                if of_trials is not None and not np.isin(of_enrolment.first, of_trials.first).any():
                    embedded.refuse_swapped(of_enrolment)
                    tested.refuse_swapped(of_trials)
                    there = "enrolled are", of_enrolment.first
                    absent("models of the trials are not enrolled", of_trials.first, there=there)
                pairs = embedded.labelled(*pairs, options["session"], strict)
            members = sorted({*pairs[1].values.tolist()})
            what = "recordings of the enrolment have no embedding"
            refuse = partial(embedded.missing, what, listed=of_enrolment)
            recordings = read(embeddings, ids, model=chain)
            more = options | {"occasion": read_map(occasions, "occasion", columns), "absent": refuse}
            voices = scoring.enroll_recordings(chain, recordings, *pairs, **more, device=place)
        if listed is not None and of_trials is not None:
            rows = voices.rows(listed.enroll.names)
            if (rows < 0).all():
                tested.refuse_swapped(of_trials)
            there = "enrolled are", voices.ids
            absent("models of the trials are not enrolled", listed.enroll.names[rows < 0], there=there)
            voices = voices.select(sorted(rows[rows >= 0])) if len(rows) < len(voices) else voices
        if cohort is not None:
            speaker = read_map(cohort_speakers, "speaker", columns)
            if of_sets:
                sides = chain.load_sides(cohort, device=place)
            else:
                labels = options | (
                    {"session": read_map(cohort_sessions, "session", columns)} if cohort_sessions else {}
                )
                sides = scoring.enroll_recordings(chain, read(cohort, cohort_ids, model=chain), **labels, device=place)
                known = [speaker is None or name in speaker for name in sides.ids.tolist()]
                lack = sides.ids[np.logical_not(known)]
                unlabelled("recordings of the cohort have no speaker", len(lack), lack, strict, note)
                sides = sides.select(np.flatnonzero(known)) if len(lack) else sides
            Cohort(sides, speaker=speaker).refuse_shared("recordings of the enrolment", members)
            options |= {"cohort": sides, "normalize": normalize or "as1", "cohort_top": cohort_top or COHORT_TOP}
            options["speaker"] = speaker
            note("normalised scores are no likelihood ratios, until `duoplda calibrate` has made them such")
        tests = read(test_embeddings or embeddings, test_ids if test_embeddings else ids, model=chain)
        options |= {
            "absent": partial(tested.missing, "test recordings have no embedding", listed=of_trials),
            "calibrated": not raw,
        }
        scores: ScoreMatrix | Iterable[Scores]
        if listed is not None and not matrix and top is None:
            scores = [scoring.score_trials(chain, voices, listed, tests, **options)]
        else:
            wanted = None if listed is None else listed.test.names
            blocks = scoring.score(chain, voices, tests, top=top, wanted=wanted, **options)
            whole = matrix and out is not None and Path(out).suffix.lower() in (".npz", ".h5", ".hdf5", ".hdf")
            scores = scoring.as_matrix(blocks, voices.ids) if whole else scoring.as_scores(blocks, voices.ids)
        if log10:
            scores = in_log10(scores) if isinstance(scores, ScoreMatrix) else map(in_log10, scores)
        n_scores, n_tests = _write(scores, out, force, receive)
    left_out = 0 if listed is None or matrix or top else len(listed) - n_scores
    counts: dict[str, int | str] = {"scores": n_scores, "models": len(voices), "tests": n_tests, "left_out": left_out}
    if cohort is None:
        return counts
    return counts | {"normalize": options["normalize"], "cohort": len(options["cohort"])}


def _pairs(
    enroll: PathLike | None, trials: Trials | None, columns: Columns
) -> tuple[tuple[Coded, Coded], files.ListedColumns | None]:
    """The recordings of the models that are scored; with all of its list, if there is one."""
    if enroll is None:
        return scoring.members(None, trials), None
    enrollment = read_enrollment(enroll, columns=columns)
    names = enrollment.model.names, enrollment.recording.names
    return scoring.members(enrollment, trials), files.ListedColumns(enroll, *names, "model=2,recording=1")


def _write(
    scores: ScoreMatrix | Iterable[Scores], out: PathLike | None, force: bool, receive: Callable[[Scores], None]
) -> tuple[int, int]:
    """Write a matrix, or the parts of a list, or hand these on; return the numbers of scores and of tests."""
    if isinstance(scores, ScoreMatrix):
        write_scores(out or "", scores, force=force)
        return scores.score.size, len(scores.test_ids)
    counts = [0, 0]

    def counted() -> Iterator[Scores]:
        for part in scores:
            counts[0] += len(part)
            counts[1] += int(np.count_nonzero(np.bincount(part.test.codes)))
            yield part
        if not counts[0]:
            raise DuopldaError("there is nothing to score: no test recording has an embedding")

    if out is not None:
        write_scores(out, counted(), force=force)
    else:
        for part in counted():
            receive(part)
    return counts[0], counts[1]
