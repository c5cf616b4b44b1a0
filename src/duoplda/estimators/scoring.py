"""Scoring recordings that need not fit in memory: they are compared with enrolled models chunk by chunk.

A `ScoreJob` runs where the recordings are: `recordings.map(job)` runs it on this machine or on a cluster. For each
chunk of test recordings it does what `Backend.enroll` and `Backend.llr` do for arrays: preprocessing, sides, likelihood
ratios, and then normalisation with a cohort, or calibration. `EnrollJob` enrolls the recordings of models in the same
way. Sides and scores carry sums of the vectors that were read, which tell in the end whether these recordings are like
the training data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, Device, check_finite, namespace, on_device, put, take, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.data.labels import Ints
from duoplda.data.recordings import ROWS, ArrayRecordings
from duoplda.errors import DuopldaError, MissingIds, some
from duoplda.estimators import checks, domain
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.estimators.preprocessing import through
from duoplda.estimators.sessions import ById, enroll_sides, known_labels
from duoplda.io import Coded, Enrollment, ScoreMatrix, Scores, Trials
from duoplda.trials.blocks import Scorer
from duoplda.trials.normalization import COHORT_TOP, Cohort, NormalizedScorer
from duoplda.trials.sides import Seen, Sides, seen_together

Result = TypeVar("Result")
Absent = Callable[[NDArray[Any]], object]  # called with the ids of recordings that were not found


def chain_of(model: Backend | PLDA, cosine: bool = False) -> Backend:
    """The chain itself, or one without steps for a PLDA alone; with `cosine`, one whose sides are sums of vectors."""
    chain = model
    if not isinstance(model, Backend):
        chain = Backend.from_plda(model)
        chain.domain_memory = model.domain_memory  # so that both together warn once
    if not cosine:
        return chain
    d = chain.plda_.n_features_in_
    sums = Backend.from_plda(PLDA.from_parameters(np.zeros(d), np.eye(d), None, np.eye(d)))  # gamma = sum of phi
    sums.steps_ = chain.steps_
    sums.n_features_in_ = chain.n_features_in_
    return sums


@dataclass(frozen=True, eq=False)
class ListedTrials:
    """Pairs of a model and a recording, sorted by recording, so that the pairs of a chunk are quickly found."""

    ids: NDArray[Any]  # (t,) the recordings, sorted
    start: Ints  # (t + 1,) the pairs of recording i are order[start[i] : start[i + 1]]
    order: Ints  # (n,) places in the list that was given
    model: Ints  # (n,) the row of the model of each pair of that list; pairs with -1 are left out

    @staticmethod
    def of(model: ArrayLike, recording: ArrayLike | Coded) -> ListedTrials:
        """The pairs of `model` (n,), rows of models, and `recording` (n,), ids."""
        model = np.asarray(model)
        if isinstance(recording, Coded):
            sort = np.argsort(recording.names)
            ids = recording.names[sort]
            code = np.argsort(sort).astype(np.int32)[recording.codes]
        else:
            ids, code = lab.codes(recording, "recording", len(model))
        order = lab.order_of(code)
        used = model >= 0
        times = np.bincount(code[used], minlength=len(ids))
        start = np.concatenate([[0], np.cumsum(times[times > 0])])
        return ListedTrials(ids[times > 0], start, order if used.all() else order[used[order]], model)

    def pieces(self, ids: NDArray[Any], most: int | None = None) -> Iterator[tuple[slice, Ints, Ints]]:
        """The pairs of some recordings in pieces of about `most` pairs; None: in one piece.

        A piece has a slice of `ids`; its pairs, as places in the list; and for each pair the row of its recording,
        counted from the first recording of the slice.
        """
        place = lab.places(ids, self.ids)
        rows = np.flatnonzero(place >= 0)
        first = self.start[place[rows]]
        n = self.start[place[rows] + 1] - first
        piece = np.cumsum(n) // (most or len(self.order) + 1)
        cuts = np.flatnonzero(np.diff(piece, prepend=-1, append=-1))
        for a, b in pairwise(cuts.tolist()):
            part = slice(int(rows[a]), int(rows[b - 1]) + 1)
            times = n[a:b]
            pairs = self.order[np.repeat(first[a:b] - np.cumsum(times) + times, times) + np.arange(times.sum())]
            yield part, pairs, np.repeat(rows[a:b], times) - part.start


@dataclass(frozen=True, eq=False)
class Job:
    """What enrolment and scoring share: the model, and the labels of recordings as far as they are known."""

    chain: Backend
    session: ById
    channel: ById
    device: Device
    pairs: ListedTrials | None = None  # recordings of models, or listed trials
    wanted: NDArray[Any] | None = None  # the ids of the recordings that are used, sorted; None: all are
    occasion: ById = None
    watch: bool = False  # whether recordings are to be compared with the training data

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # not what has been computed from them

    def chunks(self, part: Recordings) -> Iterator[tuple[NDArray[Any], Array, Seen | None]]:
        """For chunks of the recordings that are wanted: their ids, their preprocessed vectors, and the sum of these.

        Small chunks are joined until they have about `ROWS` recordings, as small matrix products are slow.
        """
        held: list[tuple[NDArray[Any], Array]] = []
        for chunk in part.chunks(ROWS):
            X = chunk.X
            ids = chunk.names
            if X.shape[1] != self.chain.n_features_in_:
                raise DuopldaError(f"vectors have {X.shape[1]} dimensions, the model takes {self.chain.n_features_in_}")
            if self.wanted is not None:
                asked = self.wanted.dtype
                if len(self.wanted) and (ids.dtype.kind in "biuf") != (asked.kind in "biuf"):
                    cause = f"the ids of the recordings are {ids.dtype}, those asked for {asked}"
                    raise DuopldaError(f"{cause}: use ids of one type")
                keep = np.flatnonzero(lab.places(ids, self.wanted) >= 0)
                ids, X = (ids, X) if len(keep) == len(ids) else (ids[keep], take(X, keep))
            held.append((ids, X))
            if sum(len(ids) for ids, _ in held) >= ROWS:
                yield self._transformed(held)
                held = []
        if any(len(ids) for ids, _ in held):
            yield self._transformed(held)

    def _transformed(self, held: list[tuple[NDArray[Any], Array]]) -> tuple[NDArray[Any], Array, Seen | None]:
        """Join chunks: their ids, their vectors after the steps before the PLDA, and the sum of what was read."""
        xp = namespace(held[0][1])
        ids, X = held[0]
        if len(held) > 1:
            ids = np.concatenate([ids for ids, _ in held])
            X = xp.concat([X for _, X in held])
        check_finite(X, ids)
        X = on_device(X, self.device)
        kinds = known_labels(self.channel, ids)
        Z = through(self.chain.steps_, X, kinds)
        return ids, Z, domain.see(self.chain, X, Z, kinds) if self.watch else None


def _refuse(ids: NDArray[Any]) -> None:
    raise MissingIds(f"{len(ids)} recordings were not found: {some(ids)}")


def _complete(results: Iterable[tuple[NDArray[Any], Result]], ids: NDArray[Any], absent: Absent) -> Iterator[Result]:
    """Pass on results that come with the ids of their recordings; then call `absent` with those of `ids` that lack one.

    The `ids` are sorted. A recording that comes twice is an error, as it would count as evidence twice.
    """
    came = np.zeros(len(ids), bool)
    for names, result in results:
        place = lab.places(names, ids)
        if came[place].any():
            twice = ids[place[came[place]]]
            raise DuopldaError(f"{len(twice)} recordings were read twice: {some(twice)}; give each of them once")
        came[place] = True
        yield result
    if not came.all():
        absent(ids[~came])


# -- enrolment


@dataclass(frozen=True, eq=False)
class EnrollJob(Job):
    """Enrolls recordings as models: yields the ids of some recordings at a time, and the sides of these."""

    names: NDArray[Any] | None = None  # of the models, by row; None: each recording is a model

    def __call__(self, part: Recordings) -> Iterator[tuple[NDArray[Any], Sides]]:
        for ids, Z, seen in self.chunks(part):
            members = ids
            models = ids
            if self.pairs is not None and self.names is not None:
                ((chunk, pairs, row),) = self.pairs.pieces(ids)
                rows = chunk.start + row
                members = ids[rows]
                models = self.names[self.pairs.model[pairs]]
                Z = take(Z, rows)
            labels = [known_labels(known, members) for known in (self.session, self.channel, self.occasion)]
            sides = enroll_sides(self.chain.plda_.enroll, Z, models, *labels)
            sides.seen = seen  # each recording once, even if it is in several models
            yield ids, sides


def members(enrollment: Enrollment | None, trials: Trials | None) -> tuple[Coded, Coded]:
    """Pairs of a model and one of its recordings: those of an enrolment map whose models occur in the trials.

    Without a map, each model of the trials is a recording.

    >>> enrollment = Enrollment(Coded.of(["m", "m", "k"]), Coded.of(["a", "b", "c"]))
    >>> model, recording = members(enrollment, Trials(Coded.of(["m"]), Coded.of(["x"])))
    >>> model.values.tolist(), recording.values.tolist()
    (['m', 'm'], ['a', 'b'])
    """
    if enrollment is None:
        if trials is None:
            raise DuopldaError("there is no model: give an enrolment map, or trials")
        names = Coded(trials.enroll.names, np.arange(len(trials.enroll.names), dtype=np.int32))
        return names, names
    model = enrollment.model
    keep = slice(None)
    if trials is not None:
        keep = np.isin(model.names, trials.enroll.names)[model.codes]
    return model[keep], enrollment.recording[keep]


def enroll_recordings(
    model: Backend | PLDA,
    recordings: Recordings,
    ids: ArrayLike | Coded | None = None,
    members: ArrayLike | Coded | None = None,
    *,
    session: ById = None,
    channel: ById = None,
    occasion: ById = None,
    device: Device = None,
    cosine: bool = False,
    absent: Absent = _refuse,
) -> Sides:
    """Enroll models from recordings that need not fit in memory.

    Give copies of one recording the same session: otherwise each counts as evidence of its own, and ratios with the
    model are far too large.

    Parameters
    ----------
    model : the chain, or the PLDA
    recordings : a source that has at least the recordings that are wanted; others in it are skipped
    ids, members : (n,) pairs of a model and the id of one of its recordings; without them, each recording is a model
        of its own, under its own id
    session, channel : mappings from the ids of recordings. A recording that is not in `session` is a session of its
        own; where one is not in `channel`, its kind of channel is inferred.
    occasion : the same for days, calls or files: sessions of one occasion count for less (`PLDA.enroll`), except for
        cosine scoring. A session of a recording that is not in it shares its occasion with no other.
    device : a device of torch, such as "cuda", on which the models are made
    cosine : whether to enroll for cosine scoring; such models are of no other use
    absent : called with the ids of recordings that were not found; without it, they are an error

    Returns
    -------
    the models, sorted by id, without those that have no recording

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(30, seed=0)
    >>> plda = PLDA(8, 8).fit(X, speaker, session=session)
    >>> data = Recordings.from_arrays(X, ids=[f"r{i}" for i in range(len(X))])
    >>> enroll_recordings(plda, data, ["ann", "ann", "bob"], ["r0", "r1", "r2"]).ids.tolist()
    ['ann', 'bob']
    >>> len(enroll_recordings(plda, data)) == len(X)
    True
    """
    if (ids is None) != (members is None):
        raise DuopldaError("give both ids and members, the models and the recordings of each, or neither of them")
    occasion = None if cosine else occasion
    # Likelihood ratios depend on the training data; cosines do not, and need no warning.
    job = EnrollJob(chain_of(model, cosine), session, channel, device, occasion=occasion, watch=not cosine)
    if ids is None or members is None:
        parts = list(recordings.map(job))
        if not parts:
            raise DuopldaError("there is no recording to enroll")
        checks.no_repeats(np.concatenate([read for read, _ in parts]))
        out = reduce(Sides.add, (sides for _, sides in parts))
        return out.select(np.argsort(out.ids, kind="stable"))
    names, code = lab.codes(ids, "model")
    pairs = ListedTrials.of(code, members)
    out = None
    job = replace(job, pairs=pairs, wanted=pairs.ids, names=names)
    for part in _complete(recordings.map(job), pairs.ids, absent):
        out = (Sides.empty(part.model, names) if out is None else out).add(part)
    if out is None:
        raise DuopldaError("none of the recordings of the enrolment was found: there is no model to score")
    used = out.counts.any(axis=1)
    return out if used.all() else out.select(used)


# -- scores


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """Scores of some test recordings.

    >>> plda = PLDA.from_parameters([0.0], [[2.0]], None, [[1.0]])
    >>> models = plda.enroll([[3.0], [-3.0]], ["m", "k"])
    >>> (block,) = score(plda, models, [[2.5], [-2.0]], ids=["a", "b"], top=1)
    >>> block.ids.tolist(), models.ids[block.rows].tolist()
    (['a', 'b'], [['m'], ['k']])
    """

    ids: NDArray[Any]  # (n,) the recordings
    scores: NDArray[np.float64]  # (models, n); with `top` (n, k), highest first; of listed trials (m,)
    rows: Ints | None = None  # with `top` the models (n, k); of listed trials their places in the list (m,)
    sample: Sides | None = None  # in the first block of a chunk, some of its recordings, with `seen` of all of them


@dataclass(frozen=True, eq=False)
class ScoreJob(Job):
    """Scores test recordings against enrolled models, and yields a `ScoreBlock` for some of them at a time.

    It can be sent to the workers of a cluster. What depends only on the models is not sent: each worker computes it
    once for all recordings that it scores.
    """

    enrolled: Sides = field(kw_only=True)
    cosine: bool = False
    top: int | None = None  # only the highest scores of each recording
    calibrated: bool = True
    cohort: Cohort | None = None  # scores are normalised with it
    named: bool = True  # whether the ids of tests are names, not the numbers of rows

    @cached_property
    def scorer(self) -> Scorer:
        if self.cohort is None:
            return Scorer(self.enrolled, True) if self.cosine else self.chain.scorer(self.enrolled, self.calibrated)
        return NormalizedScorer(self.enrolled, self.cohort, self.cosine)

    def __call__(self, part: Recordings) -> Iterator[ScoreBlock]:
        by_value = self.calibrated and self.cohort is None and self.scorer.calibration is None
        calibration = self.chain.calibration_ if by_value else None
        for ids, Z, seen in self.chunks(part):
            X = put(Z, self.enrolled.gamma)
            sessions = known_labels(self.session, ids)
            kinds = known_labels(self.channel, ids)
            tests = enroll_sides(self.chain.plda_.enroll, X, np.arange(len(ids)), sessions, kinds)
            if (np.diff(tests.ids) < 0).any():  # some have named sessions, and some have not
                tests = tests.select(np.argsort(tests.ids))
            tests.rename(ids)
            if self.cohort is not None:
                self.cohort.refuse_shared("test recordings", ids if self.named else (), tests.session)
            sample = None
            if self.watch:
                sample = tests.select(np.arange(0, len(tests), -(-len(tests) // domain.MAX_SIDES)))
                sample.seen = seen
            for columns, values, rows in self._blocks(tests, ids):
                scores = to_numpy(values)
                if calibration is not None:
                    scores = calibration.transform(scores)
                yield ScoreBlock(ids[columns], scores, rows, sample)
                sample = None

    def _blocks(self, tests: Sides, ids: NDArray[Any]) -> Iterator[tuple[slice, Array, Ints | None]]:
        """The scores of a chunk in parts: a slice of its tests, their scores, and the `rows` of a `ScoreBlock`."""
        if self.pairs is not None:
            # Pieces bound the memory that a chunk takes, however often a test is listed. With a cohort, all pairs of a
            # chunk are one piece, so that the scores of a test with the cohort are computed once.
            pairs_at_once = 1 << 17 if self.cohort is None else None
            for rows, which, test in self.pairs.pieces(ids, pairs_at_once):
                listed_tests = tests if rows == slice(0, len(ids)) else tests.select(rows)
                listed = np.column_stack([self.pairs.model[which], test])
                values = self.scorer.pairs(listed_tests, listed, expected=len(self.pairs.order))
                yield rows, values, which
        elif self.top is not None:
            models, values = self.scorer.top(tests, self.top)
            yield slice(0, len(ids)), values, to_numpy(models)
        else:
            for columns, block in self.scorer.blocks(tests, host=True):
                yield columns, block, None


def score(
    model: Backend | PLDA,
    enrolled: Sides,
    tests: Recordings | ArrayLike,
    *,
    ids: ArrayLike | None = None,
    session: ById | ArrayLike = None,
    channel: ById | ArrayLike = None,
    trials: tuple[ArrayLike, ArrayLike | Coded] | None = None,
    top: int | None = None,
    wanted: ArrayLike | None = None,
    calibrated: bool = True,
    cosine: bool = False,
    cohort: Sides | None = None,
    normalize: str = "as1",
    cohort_top: int = COHORT_TOP,
    speaker: ById = None,
    absent: Absent = _refuse,
) -> Iterator[ScoreBlock]:
    """Score test recordings against enrolled models; only one chunk of recordings is in memory at a time.

    Scores are natural-log likelihood ratios: above 0 they speak for one speaker. Use `PLDA.llr` for a few sides in
    memory. After the last block, there is a `DomainWarning` if the recordings, those of the models included, are far
    from the training data (see `duoplda.estimators.domain`): do not rely on the ratios then.

    Parameters
    ----------
    model : the chain, or the PLDA, that enrolled the models
    enrolled : the models, from `model.enroll`, `model.load_sides` or `enroll_recordings`; tests are scored on their
        device
    tests : recordings, each of which is a test; or an array (n, d), with `ids` (n,), by default the numbers of rows
    session, channel : mappings from the ids of tests; with an array, (n,). A test that has no session is a session of
        its own; where its kind of channel is not known, it is inferred.
    trials : `(model, test)`, rows of `enrolled` (n,) and ids of tests (n,): only these pairs are scored
    top : score all pairs, and give the `top` highest-scoring models of each test
    wanted : ids of the tests to score, if not all
    calibrated : whether the calibration of the chain, if it has one, is applied
    cosine : give cosines of mean vectors; the models must have been enrolled for that
    cohort : recordings or sets of other people, from `model.enroll` or `enroll_recordings`, with which scores are
        normalised. Normalised scores are not likelihood ratios until they are calibrated anew, and the calibration of
        the chain is not applied to them.
    normalize : "z", "t", "s", "as1" or "as2" (`duoplda.trials.normalization` has the formulas)
    cohort_top : the number of members of the cohort that each side selects in "as1" and "as2" (all, if there are fewer)
    speaker : a mapping from the ids of recordings, models and members of the cohort to speakers, as far as they are
        known: a cohort that shares speakers with the trials is refused. An id without a speaker counts as a speaker.
    absent : called at the end with the ids of `trials` or `wanted` that were not found; without it, they are an error

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(40, seed=0)
    >>> plda = PLDA(8, 8).fit(X, speaker, session=session)
    >>> models = plda.enroll(X[:50], speaker[:50], session[:50])
    >>> for block in score(plda, models, X[50:53], ids=["a", "b", "c"], top=1):
    ...     print(block.ids, block.scores.shape, block.rows.shape)
    ['a' 'b' 'c'] (3, 1) (3, 1)
    >>> others = plda.enroll(X[100:], speaker[100:], session[100:])
    >>> next(score(plda, models, X[50:53], cohort=others, normalize="s")).scores.shape == (len(models), 3)
    True
    """
    chain = chain_of(model, cosine)
    chain.plda_.check_sides(enrolled)
    if trials is not None and top is not None:
        raise DuopldaError("trials and top exclude each other: trials name the pairs, top looks at all of them")
    source, session_by_id, channel_by_id = _labelled_tests(tests, ids, session, channel)
    pairs = None if trials is None else ListedTrials.of(*trials)
    used = pairs.ids if pairs is not None else None if wanted is None else np.unique(wanted)
    named = not isinstance(source, ArrayRecordings) or source.ids is not None  # else tests are rows, without names
    others = None
    if cohort is not None:  # what it shares with trials is refused before any work is done
        others = Cohort(cohort, normalize, cohort_top, speaker)
        chain.plda_.check_sides(enrolled, others.sides)
        others.refuse_shared("models", enrolled.ids, enrolled.session)
        others.refuse_shared("test recordings", () if used is None or not named else used)
    device = None if namespace(enrolled.gamma) is np else enrolled.gamma.device
    job = ScoreJob(
        chain,
        session_by_id,
        channel_by_id,
        device,
        pairs,
        used,
        watch=not cosine,
        enrolled=enrolled,
        cosine=cosine,
        top=top,
        calibrated=calibrated,
        cohort=others,
        named=named,
    )
    blocks = source.map(job)
    if used is not None:
        blocks = _complete(((block.ids, block) for block in blocks), used, absent)
    return blocks if cosine else _checked(blocks, chain, enrolled)


def _labelled_tests(
    tests: Recordings | ArrayLike, ids: ArrayLike | None, session: ById | ArrayLike, channel: ById | ArrayLike
) -> tuple[Recordings, ById, ById]:
    """Tests as recordings, and their sessions and kinds of channels by the ids of recordings."""
    labels: dict[str, Any] = {"session": session, "channel": channel}
    if isinstance(tests, Recordings):
        if ids is not None:
            raise DuopldaError("recordings bring their own ids: leave out ids")
        return tests, labels["session"], labels["channel"]
    recordings = Recordings.from_arrays(tests, ids=ids)
    names = range(recordings.X.shape[0]) if recordings.ids is None else recordings.ids.tolist()
    for name, values in labels.items():
        if values is not None:
            labels[name] = dict(zip(names, lab.as_ids(values, name, len(names)).tolist(), strict=True))
    return recordings, labels["session"], labels["channel"]


def _checked(blocks: Iterable[ScoreBlock], chain: Backend, enrolled: Sides) -> Iterator[ScoreBlock]:
    """Pass on the blocks; then warn if the recordings of models and tests are far from the training data."""
    seen = enrolled.seen
    samples: list[Sides] = []
    every = 1  # one of `every` chunks of tests is sampled, so that memory stays bounded
    chunks = 0
    for block in blocks:
        if block.sample is not None:
            seen = seen_together(seen, block.sample.seen)
            if chunks % every == 0:
                samples.append(block.sample)
            chunks += 1
            if len(samples) == 32:
                samples = samples[::2]
                every *= 2
        yield block
    domain.check(chain, seen, None, 3, [enrolled, *samples])


def measure_recordings(
    chain: Backend, recordings: Recordings, wanted: Sequence[Any] | None = None, speaker: ById = None
) -> domain.Domain | None:
    """The distance of recordings from the training data, and its limit; None if no recordings can be summed up.

    If it is not known who speaks, clusters of a sample of the recordings, or their scatter, tell how many speakers
    there are.

    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> recordings = Recordings.from_arrays([[9.0], [9.1], [9.2]], ids=["a", "b", "c"])
    >>> measure_recordings(chain, recordings).n_speakers
    1
    """
    seen, names = domain.look(chain, recordings, wanted)
    if not seen.n:
        return None
    if speaker is not None:
        speakers = [speaker[name] for name in names.tolist()]
        return domain.measure(chain, seen, domain.Spread.of(speakers))._replace(n_speakers=len({*speakers}))
    measured = domain.measure(chain, seen, len(names))
    if measured.within:
        return measured
    sample = names[np.random.default_rng(0).permutation(len(names))[: domain.MAX_SIDES]]
    sides = [enroll_recordings(chain, recordings, sample, sample)]
    spread = domain.spread_of(sides)._replace(n_sessions=seen.n, n_recordings=seen.n)
    return domain.measure_sides(chain, seen, spread, sides)


def score_trials(model: Backend | PLDA, enrolled: Sides, trials: Trials, tests: Recordings, **options: Any) -> Scores:
    """The scores of a list of trials, in its order, with the options of `score`.

    Trials whose model is not enrolled are left out, and if `absent` allows it, those whose test was not found.

    >>> plda = PLDA.from_parameters([0.0], [[2.0]], None, [[1.0]])
    >>> tests = Recordings.from_arrays([[3.0], [-3.0]], ids=["a", "b"])
    >>> trials = Trials(Coded.of(["m", "m"]), Coded.of(["b", "a"]))
    >>> score_trials(plda, plda.enroll([[2.5]], ["m"]), trials, tests).score.round(2).tolist()
    [-5.53, 1.13]
    """
    rows = enrolled.rows(trials.enroll.names).astype(np.int32)[trials.enroll.codes]
    values = np.empty(len(trials))
    n = 0
    tested = [trials.test.names[:0]]
    for block in score(model, enrolled, tests, trials=(rows, trials.test), **options):
        values[block.rows] = block.scores
        n += len(block.scores)
        tested.append(block.ids)
    if n == len(trials):
        return Scores(trials.enroll, trials.test, values)
    keep = np.isin(trials.test.names, np.concatenate(tested))[trials.test.codes] & (rows >= 0)
    return Scores(trials.enroll[keep], trials.test[keep], values[keep])


def as_scores(blocks: Iterable[ScoreBlock], models: NDArray[Any]) -> Iterator[Scores]:
    """Blocks of all pairs, or of the highest scores, as lists for `duoplda.io.write_scores`: one list for each block.

    >>> blocks = [ScoreBlock(np.array(["a", "b"]), np.array([[1.0, 2.0], [3.0, 4.0]]))]
    >>> (part,) = as_scores(blocks, np.array(["m", "k"]))
    >>> part.enroll.values.tolist(), part.test.values.tolist(), part.score.tolist()
    (['m', 'k', 'm', 'k'], ['a', 'a', 'b', 'b'], [1.0, 3.0, 2.0, 4.0])
    """
    for block in blocks:
        n = len(block.ids)
        k = len(models) if block.rows is None else block.rows.shape[1]
        rows = np.tile(np.arange(k), n) if block.rows is None else block.rows.reshape(-1)
        values = block.scores.T if block.rows is None else block.scores
        tests = Coded(block.ids, np.repeat(np.arange(n, dtype=np.int32), k))
        yield Scores(Coded(models, rows.astype(np.int32)), tests, values.reshape(-1))


def as_matrix(blocks: Iterable[ScoreBlock], models: NDArray[Any]) -> ScoreMatrix:
    """Blocks of all pairs as one matrix.

    >>> blocks = [ScoreBlock(np.array([i]), np.array([[1.0], [2.0]])) for i in ("a", "b")]
    >>> as_matrix(blocks, np.array(["m", "k"])).score.tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    """
    parts = [ScoreBlock(models[:0], np.zeros((len(models), 0))), *blocks]
    ids = np.concatenate([block.ids for block in parts])
    return ScoreMatrix(models, ids, np.concatenate([block.scores for block in parts], axis=1))
