"""Scoring: likelihood ratios of trials, of all pairs, or the highest of each test recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError
from duoplda.estimators import scoring
from duoplda.estimators.backend import Backend
from duoplda.io import (
    Enrollment,
    ScoreMatrix,
    Scores,
    Trials,
    is_container,
    read_map,
    read_trials,
    write_scores,
)
from duoplda.io.recordings import missing, unlabelled
from duoplda.trials.normalization import COHORT_TOP, Cohort
from duoplda.trials.sides import Sides
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._audio import check_audio, embedded_recordings
from duoplda.workflows._files import Note, PathLike, Show, silent
from duoplda.workflows._matched import in_log10
from duoplda.workflows.option import refuse


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

    Without `out`, `receive` gets the scores, a part at a time.
    """
    check_audio(audio, extractor, embeddings, ids)
    refuse(top and matrix, "`top` and `matrix` exclude each other")
    refuse(not (trials or matrix or top), "give `trials`, or `matrix` or `top` for all pairs")
    refuse(enrolled and (enroll or cosine), "`enrolled` has models for the PLDA: leave out `enroll` and `cosine`")
    cause = "`occasions` are of the recordings that are enrolled here: leave out `enrolled` and `cosine`"
    refuse(occasions and (enrolled or cosine), cause)
    refuse(log10 and (cosine or cohort), "`log10` is for likelihood ratios: leave out `cosine` and `cohort`")
    cause = "without `trials`, `enroll` or `enrolled` must say which models there are"
    refuse(not (trials or enroll or enrolled), cause)
    others = _Cohort(cohort, cohort_ids, cohort_sessions, cohort_speakers, normalize, cohort_top)
    others.check_options(cosine)
    embeddings, ids = files.held_lists(embeddings, ids)  # read for the enrolment and for the tests
    lists = [model, enrolled, enroll, trials, sessions, channels, occasions, cohort_sessions, cohort_speakers]
    lists += [extractor, *(audio or [])]
    files.check_outputs([out], force, [embeddings, test_embeddings, cohort], [ids, test_ids, cohort_ids, *lists])
    like = model if domain_check else None
    with (
        embedded_recordings(audio, extractor, embeddings, like, allow_missing, note, show) as path,
        files.reader(device, dask, note, show, columns=columns, domain_check=domain_check) as (read, place),
    ):
        chain = Backend.load(model)
        enrolment = files.EmbeddedIds(path, ids, columns, allow_missing, note)
        tests = enrolment
        if test_embeddings is not None:
            tests = files.EmbeddedIds(test_embeddings, test_ids, columns, allow_missing, note)
        wanted = listed = None
        if trials is not None:
            wanted = read_trials(trials, columns=columns)
            listed = files.Listed(trials, wanted.enroll, wanted.test, "enroll=2,test=1")
        files.release_memory()
        labels = files.labels_by_id(sessions, channels, columns)
        opened = _Opened(chain, read, place, cosine, strict, labels, enrolment, tests, wanted, listed)
        if enrolled is None:
            models, members = opened.enroll(enroll, occasions)
        else:
            models, members = chain.load_sides(enrolled, device=place), []
        models = opened.wanted(models)
        options = {} if cohort is None else others.options(opened, members)
        options["calibrated"] = not raw
        n_scores, n_tests = _write(opened.scores(models, top, matrix, out, log10, options), out, force, receive)
    left_out = 0 if wanted is None or matrix or top else len(wanted) - n_scores
    counts: dict[str, int | str] = {"scores": n_scores, "models": len(models), "tests": n_tests, "left_out": left_out}
    return counts if cohort is None else counts | {"normalize": options["normalize"], "cohort": len(options["cohort"])}


@dataclass(frozen=True)
class _Opened:
    """The model and all files of a scoring, once they are open."""

    chain: Backend
    read: files.Read
    device: str | None
    cosine: bool
    strict: bool
    labels: dict[str, Any]  # the session and the kind of channel of recordings
    enrolment: files.EmbeddedIds
    tests: files.EmbeddedIds
    trials: Trials | None
    listed: files.Listed | None  # the ids of the trials

    def enroll(self, path: PathLike | None, occasions: PathLike | None) -> tuple[Sides, list[str]]:
        """Enroll models of a list, or each model of the trials as a recording; return their recordings as well."""
        columns = self.enrolment.columns
        enrolled = None if path is None else files.Listed.enrolment(path, columns)
        if enrolled is None:
            pairs = scoring.members(None, self.trials)
        else:
            self._refuse_other_models(enrolled)
            pairs = scoring.members(Enrollment(enrolled.models, enrolled.recordings), self.trials)
            pairs = self.enrolment.labelled(pairs, self.labels["session"], self.strict)
        models = scoring.enroll_recordings(
            self.chain,
            self.read(self.enrolment.path, self.enrolment.ids, model=self.chain),
            *pairs,
            **self.labels,
            occasion=read_map(occasions, "occasion", columns),
            device=self.device,
            cosine=self.cosine,
            absent=partial(self.enrolment.missing, "recordings of the enrolment have no embedding", listed=enrolled),
        )
        return models, sorted({*pairs[1].values.tolist()})

    def _refuse_other_models(self, enrolled: files.Listed) -> None:
        """Refuse an enrolment without any model of the trials; the columns of a list may be the wrong way round."""
        if self.listed is None or np.isin(enrolled.models.names, self.listed.models.names).any():
            return
        self.enrolment.refuse_swapped(enrolled)
        self.tests.refuse_swapped(self.listed)
        self._missing_models(self.listed.models.names, enrolled.models.names)

    def _missing_models(self, lack: NDArray[Any], enrolled: NDArray[Any]) -> None:
        there = "enrolled are", enrolled
        allowed, note = self.tests.allow_missing, self.tests.note
        missing("models of the trials are not enrolled", lack, allowed, note, there)

    def wanted(self, models: Sides) -> Sides:
        """The models that occur in the trials."""
        if self.listed is None:
            return models
        names = self.listed.models.names
        rows = models.rows(names)
        if (rows < 0).all():
            self.tests.refuse_swapped(self.listed)
        self._missing_models(names[rows < 0], models.ids)
        return models.select(sorted(rows[rows >= 0])) if len(rows) < len(models) else models

    def scores(
        self,
        models: Sides,
        top: int | None,
        matrix: bool,
        out: PathLike | None,
        log10: bool,
        options: dict[str, Any],
    ) -> ScoreMatrix | Iterable[Scores]:
        """The scores of the trials, or of all pairs; a matrix where the format of the output has one."""
        options = {**self.labels, "cosine": self.cosine, **options}
        options["absent"] = partial(self.tests.missing, "test recordings have no embedding", listed=self.listed)
        tests = self.read(self.tests.path, self.tests.ids, model=self.chain)
        scores: ScoreMatrix | Iterable[Scores]
        if self.trials is not None and not matrix and top is None:
            scores = [scoring.score_trials(self.chain, models, self.trials, tests, **options)]
        else:
            wanted = None if self.trials is None else self.trials.test.names
            blocks = scoring.score(self.chain, models, tests, top=top, wanted=wanted, **options)
            whole = matrix and out is not None and Path(out).suffix.lower() in (".npz", ".h5", ".hdf5", ".hdf")
            scores = scoring.as_matrix(blocks, models.ids) if whole else scoring.as_scores(blocks, models.ids)
        if not log10:
            return scores
        return in_log10(scores) if isinstance(scores, ScoreMatrix) else map(in_log10, scores)


class _Cohort(NamedTuple):
    """The options about a cohort, other people whose scores normalise those of the trials."""

    path: PathLike | None
    ids: str | None
    sessions: PathLike | None
    speakers: PathLike | None
    normalize: str | None
    top: int | None

    def check_options(self, cosine: bool) -> None:
        """Refuse options of a cohort if there is none, or if it is a file of enrolled sets."""
        names = "`cohort_ids`, `cohort_sessions`, `cohort_speakers`, `normalize` and `cohort_top`"
        refuse(self.path is None and any(self[1:]), f"{names} need `cohort`")
        cause = "`cohort` is a file of enrolled sets: leave out `cohort_ids`, `cohort_sessions` and `cosine`"
        refuse((self.ids or self.sessions or cosine) and self.is_enrolled(), cause)

    def is_enrolled(self) -> bool:
        """Whether it is a file that `enroll` wrote."""
        return self.path is not None and Path(self.path).is_file() and is_container(self.path)

    def options(self, opened: _Opened, members: list[str]) -> dict[str, Any]:
        """Read and enroll the cohort; `members` of the enrolment must not be among its recordings."""
        assert self.path is not None
        columns, note = opened.tests.columns, opened.tests.note
        speaker = read_map(self.speakers, "speaker", columns)
        if self.is_enrolled():
            sides = opened.chain.load_sides(self.path, device=opened.device)
        else:
            labels = opened.labels
            if self.sessions is not None:
                labels = labels | {"session": read_map(self.sessions, "session", columns)}
            recordings = opened.read(self.path, self.ids, model=opened.chain)
            how: dict[str, Any] = {"device": opened.device, "cosine": opened.cosine}
            sides = scoring.enroll_recordings(opened.chain, recordings, **labels, **how)
            known = np.array([speaker is None or name in speaker for name in sides.ids.tolist()], bool)
            lack = sides.ids[~known]
            unlabelled("recordings of the cohort have no speaker", len(lack), lack, opened.strict, note)
            sides = sides.select(np.flatnonzero(known)) if len(lack) else sides
        Cohort(sides, speaker=speaker).refuse_shared("recordings of the enrolment", members)
        note("normalised scores are not likelihood ratios until `duoplda calibrate` has calibrated them")
        top = self.top or COHORT_TOP
        return {"cohort": sides, "normalize": self.normalize or "as1", "cohort_top": top, "speaker": speaker}


def _write(
    scores: ScoreMatrix | Iterable[Scores], out: PathLike | None, force: bool, receive: Callable[[Scores], None]
) -> tuple[int, int]:
    """Write a matrix or the parts of a list, or pass these to `receive`; return the numbers of scores and of tests."""
    if isinstance(scores, ScoreMatrix):
        write_scores(out or "", scores, force=force)
        return scores.score.size, len(scores.test_ids)
    n_scores = n_tests = 0

    def counted() -> Iterator[Scores]:
        nonlocal n_scores, n_tests
        for part in scores:
            n_scores += len(part)
            n_tests += int(np.count_nonzero(np.bincount(part.test.codes)))
            yield part
        if not n_scores:
            raise DuopldaError("there is nothing to score: no test recording has an embedding")

    if out is not None:
        write_scores(out, counted(), force=force)
    else:
        for part in counted():
            receive(part)
    return n_scores, n_tests
