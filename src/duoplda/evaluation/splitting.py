"""Splitting speakers into training, development and evaluation, with enrolments and trials across sessions."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.data.copies import suggests_copies
from duoplda.data.labels import Ints, Labels, encode
from duoplda.errors import DuopldaError, some
from duoplda.io import Coded, Enrollment, LabelColumns, Trials

__all__ = ["Part", "split"]

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the speakers of a table: the labels of their recordings and, unless they are for training, trials.

    >>> ids = np.array([f"{who}-{k}" for who in ("ann", "bob", "eve", "joe") for k in range(2)])
    >>> part = split(LabelColumns(ids, np.repeat(["ann", "bob", "eve", "joe"], 2)), dev=0, eval=2)["eval"]
    >>> len(part.labels), len(part.enrollment), part.trials.target.tolist()
    (4, 2, [True, False, False, True])
    """

    labels: LabelColumns
    enrollment: Enrollment | None = None
    trials: Trials | None = None


def split(
    labels: LabelColumns,
    *,
    train: float | None = None,
    dev: float = 0.25,
    eval: float = 0.25,
    enroll_sessions: int = 1,
    cross_channel: bool = False,
    nontargets: int | None = None,
    random_state: int = 0,
) -> dict[str, Part]:
    """Deal speakers to training, development and evaluation, and make trials of the latter two.

    No speaker is in two parts. In `dev` and `eval` some sessions of each speaker are enrolled, as one model, and all
    recordings of the other sessions are tested against all models: no session is on both sides of a trial. Where
    nobody labelled the sessions, each recording is one. Speakers who could have no target trial, such as those with a
    single session, are in `train` alone. Names of sessions that two speakers share become `speaker session`.

    The same labels and the same `random_state` give the same parts, in whatever order the rows come, and with every
    release of NumPy.

    Parameters
    ----------
    labels : what `duoplda.io.read_labels` returns, or `LabelColumns` of arrays
    train, dev, eval : how many speakers: an integer is their number, a float the fraction of all; 0 leaves a part out.
        `train` has all others unless it is given
    enroll_sessions : how many sessions of each speaker are enrolled
    cross_channel : whether both sides of each trial must be of different kinds of channels. There is then a model of
        each speaker and kind, with the name `speaker-kind`
    nontargets : how many non-target trials each model has at most, drawn at random; all unless it is given
    random_state : the seed, 0 or more

    Returns
    -------
    parts by name, "train", "dev" and "eval", without those that have no speakers

    Example
    -------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(12, 3, 2)
    >>> ids = np.array([f"rec{i}" for i in range(len(X))])
    >>> parts = split(LabelColumns(ids, speaker, session), dev=3, eval=0.25)
    >>> {name: len(np.unique(part.labels.speaker)) for name, part in parts.items()}
    {'train': 6, 'dev': 3, 'eval': 3}
    >>> len(parts["eval"].trials), int(parts["eval"].trials.target.sum())  # 3 models, 12 recordings
    (36, 12)
    """
    _check(labels, enroll_sessions, cross_channel, nontargets, random_state)
    if labels.session is None and (example := suggests_copies(labels.ids)):
        cause = f"no sessions are given, and names look like copies of one recording ({', '.join(example)})"
        warnings.warn(f"{cause}: a copy may be tested against another; give sessions", UserWarning, stacklevel=2)
    session = labels.ids if labels.session is None else labels.session
    codes = encode(labels.speaker, session, labels.channel, by_speaker=True)
    if labels.session is not None and len(np.unique(labels.session)) < codes.n_sessions:
        labels = replace(labels, session=_unique_sessions(codes))
    sizes = _sizes(len(codes.speaker_ids), train, dev, eval)
    # The numbers of this generator stay the same in all releases of NumPy.
    rng = np.random.RandomState(int(random_state))
    order = rng.permutation(len(codes.speaker_ids))
    enrolled = _enrolled_rows(codes, enroll_sessions, rng)
    tested = order[_can_be_targets(codes, enrolled, cross_channel)[order]]
    n_tested = sizes["dev"] + sizes["eval"]
    if n_tested > len(tested):
        kinds = ", through another kind of channel" if cross_channel else ""
        need = f"recordings of more than {enroll_sessions} session{'s' * (enroll_sessions > 1)}{kinds}"
        raise DuopldaError(
            f"dev and eval take {n_tested:,} speakers, and {len(tested):,} of {len(order):,} have {need}: take fewer"
        )
    others = order[~np.isin(order, tested[:n_tested])]
    members = {"train": others[: sizes["train"]], "dev": tested[: sizes["dev"]]}
    members["eval"] = tested[sizes["dev"] : n_tested]
    parts = {}
    for name, speakers in members.items():
        rows = np.flatnonzero(np.isin(codes.speaker, speakers))
        if len(rows):
            lists = () if name == "train" else _trials(labels, codes, rows, enrolled, cross_channel, nontargets, rng)
            parts[name] = Part(labels[rows], *lists)
    return parts


def _check(
    labels: LabelColumns, enroll_sessions: int, cross_channel: bool, nontargets: int | None, random_state: int
) -> None:
    """Refuse labels and options from which no trials can be made."""
    if labels.speaker is None:
        raise DuopldaError("speakers are not known: give labels with a column of the speaker")
    if repeated := Coded.of(labels.ids).repeated():
        raise DuopldaError(f"id {repeated[0]!r} occurs twice; each recording has one row")
    if cross_channel and (labels.channel is None or len(np.unique(labels.channel)) < 2):
        raise DuopldaError("cross-channel trials need labels of at least two kinds of channels")
    for name, number in (("enroll_sessions", enroll_sessions), ("nontargets", 1 if nontargets is None else nontargets)):
        if not isinstance(number, Integral) or number < 1:
            raise DuopldaError(f"{name}={number!r} must be a whole number from 1 on")
    if not isinstance(random_state, Integral) or not 0 <= random_state < 1 << 32:
        raise DuopldaError(f"random_state={random_state!r} must be a whole number from 0 to {(1 << 32) - 1}")


def _sizes(n: int, train: float | None, dev: float, eval: float) -> dict[str, int]:
    """The number of speakers of each part, out of n."""
    wanted: dict[str, Any] = {"train": 0 if train is None else train, "dev": dev, "eval": eval}
    numbers = []
    for name, share in wanted.items():
        number = float(share) if isinstance(share, Real) and not isinstance(share, bool) else -1.0
        whole = isinstance(share, Integral)
        if not 0 <= number <= (np.inf if whole else 1):
            raise DuopldaError(f"{name}={share!r} must be a number of speakers (30) or a fraction of them (0.25)")
        numbers.append(number if whole else number * n)
    # Ends are rounded, and not sizes: fractions that add up to one use all speakers. What is added keeps the sum of
    # 0.7, 0.2 and 0.1 from being rounded down.
    ends = np.floor(np.cumsum(numbers) + 1e-6).astype(int)
    sizes = dict(zip(wanted, np.diff(ends, prepend=0).tolist(), strict=True))
    if ends[-1] > n:
        raise DuopldaError(f"train, dev and eval take {ends[-1]:,} speakers, and there are {n:,}: take fewer")
    for name, share in wanted.items():
        least = 1 if name == "train" else 2
        if share and sizes[name] < least:
            cause = f"{name}={share!r} of {n:,} speakers is {sizes[name]}"
            raise DuopldaError(f"{cause}: {name} needs at least {least}, or 0 to be left out")
    if train is None:
        sizes["train"] = n - int(ends[-1])
    return sizes


def _unique_sessions(codes: Labels) -> NDArray[np.str_]:
    """The session of each recording, with its speaker in its name: other commands know sessions by their names."""
    names = np.asarray(codes.session_ids)
    if len(np.unique(names)) < len(names):
        raise DuopldaError("names of speakers and sessions have blanks in them and cannot be told apart: rename them")
    return names[codes.session]


def _enrolled_rows(codes: Labels, n: int, rng: np.random.RandomState) -> NDArray[np.bool_]:
    """(N,) whether each recording is of the first n sessions of its speaker, in a random order of sessions."""
    who = codes.session_speaker
    order = np.lexsort((rng.permutation(len(who)), who))
    rank = np.empty(len(who), int)
    rank[order] = np.arange(len(who)) - np.searchsorted(who[order], who[order])
    return rank[codes.session] < n


def _can_be_targets(codes: Labels, enrolled: NDArray[np.bool_], cross_channel: bool) -> NDArray[np.bool_]:
    """(M,) whether each speaker has recordings to enrol and to test, of different kinds if `cross_channel`."""
    sides = np.zeros((2, len(codes.speaker_ids), len(codes.kinds)), bool)
    sides[enrolled.astype(int), codes.speaker, codes.kind] = True
    n_kinds = np.count_nonzero(sides.any(0), axis=1)
    return np.all(sides.any(2), axis=0) & (n_kinds > int(cross_channel))


def _trials(
    labels: LabelColumns,
    codes: Labels,
    rows: Rows,
    enrolled: NDArray[np.bool_],
    cross_channel: bool,
    nontargets: int | None,
    rng: np.random.RandomState,
) -> tuple[Enrollment, Trials]:
    """Enrol models of the recordings `rows`, and make trials of those that are not enrolled."""
    rows = rows[np.argsort(labels.ids[rows])]  # whatever the order of the table
    members = rows[enrolled[rows]]
    tests = rows[~enrolled[rows]]
    kinds = codes.kind if cross_channel else np.zeros_like(codes.kind)
    cell = codes.speaker * len(codes.kinds) + kinds
    models, member_model = np.unique(cell[members], return_inverse=True)
    speaker, kind = np.divmod(models, len(codes.kinds))
    names = _model_names(codes, speaker, kind if cross_channel else None)
    most = 20_000_000  # trials, a file of half a gigabyte; who wants more has lists of trials already
    if len(models) * len(tests) > most and nontargets is None:
        raise DuopldaError(f"{len(models):,} models and {len(tests):,} tests are too many trials: give `nontargets`")
    kept: list[Rows] = []
    test_speaker = codes.speaker[tests]
    test_kind = kinds[tests]
    for who, channel in zip(speaker, kind, strict=True):
        allowed = (test_kind != channel) | (not cross_channel)
        same = test_speaker == who
        others = np.flatnonzero(allowed & ~same)
        if nontargets is not None and len(others) > nontargets:
            others = rng.permutation(others)[:nontargets]
        kept.append(np.union1d(np.flatnonzero(allowed & same), others))
    model = np.repeat(np.arange(len(models)), [len(part) for part in kept])
    test = tests[np.concatenate(kept)]
    target = codes.speaker[test] == speaker[model]
    if target.all():  # kinds of channels that no two of these speakers share
        raise DuopldaError(f"there is no non-target trial among {len(np.unique(speaker))} speakers: take more speakers")
    enrollment = Enrollment(_coded(names, member_model), _coded(labels.ids, members))
    return enrollment, Trials(_coded(names, model), _coded(labels.ids, test), target)


def _coded(names: np.ndarray, index: Rows) -> Coded:
    """The column of `names[index]`, without names that do not occur."""
    used, codes = np.unique(index, return_inverse=True)
    return Coded(names[used], codes.astype(np.int32))


def _model_names(codes: Labels, speaker: Ints, kind: Ints | None) -> NDArray[np.str_]:
    """The names of models, without blanks, as Kaldi's lists ask."""
    words = [str(name) for name in codes.speaker_ids[speaker].tolist()]
    if kind is not None:
        words = [f"{name}-{channel}" for name, channel in zip(words, codes.kinds[kind].tolist(), strict=True)]
    names = np.array([re.sub(r"\s+", "_", word) for word in words])
    unique, count = np.unique(names, return_counts=True)
    if len(unique) < len(names):
        raise DuopldaError(f"several models would have the name {some(unique[count > 1], 3)}: rename their speakers")
    return names
