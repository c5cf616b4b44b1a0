"""Linking: finds the same people among the local speakers of several files, by clustering the local speakers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import check_rows, spd_inverse, to_numpy
from duoplda.data import labels as lab
from duoplda.diarization.vbhmm import Floats
from duoplda.errors import DuopldaError, some
from duoplda.estimators.backend import Backend
from duoplda.estimators.clustering import unscaled
from duoplda.estimators.plda import PLDA
from duoplda.estimators.scoring import chain_of
from duoplda.trials.clustering import cluster

SEGMENT_LEVELS = ("sessions", "recordings")  # what a segment of a file is in the terms of the training data


def level_of_segments(chain: Backend) -> str:
    """What a segment of a file is to a model, if nobody says: "sessions", or "recordings" if its sessions were files.

    A model whose sessions were files in training knows how recordings of one file differ; to it, segments of a file are
    recordings. A model whose sessions were utterances has never seen two segments of one session.
    """
    return "recordings" if chain.provenance_.get("sessions_are") == "files" else "sessions"


def link_speakers(
    model: Backend | PLDA,
    Z: ArrayLike,
    local: ArrayLike,
    *,
    file: ArrayLike | None = None,
    discount: ArrayLike = 1.0,
    segments_are: str = "sessions",
    prior: float = 0.02,
) -> NDArray[Any]:
    """(n,) the names of speakers that hold in all files, for segments whose speakers are known within each file.

    All segments of a local speaker stay together: if diarisation has put two people into one local speaker, linking
    does not separate them. Each local speaker is clustered as one item, by y. If segments are recordings, the item is
    one session (V, U, W). If they are sessions, it has independent sessions (V, and a noise of UU' + W^-1). Segments
    that overlap repeat each other, so that rho n of the n segments count: the item has that many recordings (rounded,
    at least one), all of them equal to the mean of the n.

    Parameters
    ----------
    model : the `Backend`, or a `PLDA` for embeddings that need no preprocessing
    Z : (n, k) segments after preprocessing (`Backend.transform`)
    local : (n,) their local speakers, whose names must differ from file to file
    file : (n,) their files, if two speakers of one file must not be linked. With None they may be: this is how linking
        joins a speaker again whom diarisation has split
    discount : rho, how much each segment counts, if an independent one counts 1: a number or (n,)
    segments_are : as for `Diarizer`
    prior : the probability that two local speakers are one person

    Example
    -------
    >>> plda = PLDA.from_parameters(np.zeros(2), 9 * np.eye(2), None, np.eye(2))
    >>> link_speakers(plda, [[9.0, 9.0], [-9.0, 9.0], [9.5, 8.5]], ["a-1", "a-2", "b-1"]).tolist()
    ['spk1', 'spk2', 'spk1']
    """
    if segments_are not in SEGMENT_LEVELS:
        raise DuopldaError(f"segments_are={segments_are!r} must be one of {some(SEGMENT_LEVELS)}")
    plda = chain_of(model).plda_
    rows = to_numpy(check_rows(Z)[0]).astype(np.float64)
    n = len(rows)
    names, side = lab.codes(local, "speaker", n)
    vectors, speaker, channel = one_session_each(plda, rows, names[side], discount)
    pairs = None
    if file is not None:
        home = np.empty(len(names), np.int64)
        home[side] = lab.codes(file, "file", n)[1]
        within = pairs_within(names.tolist(), home.tolist())
        pairs = np.array(within) if within else None
    voices = _without_sessions(plda) if segments_are == "sessions" else unscaled(plda)
    linked = cluster(voices.enroll(vectors, speaker, speaker, channel), prior=prior, cannot_link=pairs)
    return linked.names[linked.labels][np.searchsorted(linked.ids, names)][side]


def one_session_each(
    plda: PLDA, rows: Floats, speaker: NDArray[Any], discount: ArrayLike
) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """Recordings that stand for (n, k) segments that overlap, with their speakers and their kinds of channels.

    Of the n segments of a speaker rho n count: they become that many recordings (rounded, at least one), all of them
    equal to the mean of the n.
    """
    n = len(rows)
    K = len(plda.channels_)
    names, side = lab.codes(speaker, "speaker", n)
    kind = to_numpy(plda.channel_posterior(rows)).argmax(axis=1) if K > 1 else np.zeros(n, np.int64)
    # A cell is a local speaker on one kind of channel. Kinds differ in their noise, so each needs a mean of its own.
    cells, cell, size = np.unique(side * K + kind, return_inverse=True, return_counts=True)
    mean = np.zeros((len(cells), rows.shape[1]))
    np.add.at(mean, cell, rows)
    repeats = np.maximum(1, np.rint(np.bincount(cell, np.broadcast_to(discount, n)))).astype(np.int64)
    channel = np.repeat(plda.channels_[cells % K], repeats)
    return np.repeat(mean / size[:, None], repeats, axis=0), np.repeat(names[cells // K], repeats), channel


def pairs_within(people: Sequence[Hashable], files: Sequence[Hashable]) -> list[tuple[Hashable, Hashable]]:
    """All pairs of people of the same file.

    >>> pairs_within(["a-1", "b-1", "a-2"], ["a", "b", "a"])
    [('a-1', 'a-2')]
    """
    by_file: dict[Hashable, list[Hashable]] = {}
    for person, file in zip(people, files, strict=True):
        by_file.setdefault(file, []).append(person)
    return [pair for people_of_file in by_file.values() for pair in combinations(people_of_file, 2)]


def _without_sessions(plda: PLDA) -> PLDA:
    """The model for segments that are sessions: UU' is added to the noise of each segment."""
    U = to_numpy(plda.session_loadings_)
    W = spd_inverse(U @ U.T + spd_inverse(to_numpy(plda.noise_precision_))[0])[0]
    W = (W + np.swapaxes(W, -1, -2)) / 2
    kinds = {"channels": plda.channels_, "channel_priors": plda.channel_priors_} if len(plda.channels_) > 1 else {}
    mean = plda.channel_means_ if kinds else plda.mean_
    return PLDA.from_parameters(to_numpy(mean), to_numpy(plda.speaker_loadings_), None, W, **kinds)
