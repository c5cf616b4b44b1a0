"""Known voices: decides for each speaker of a file which enrolled voice it is, or that it is none of them.

A local speaker s of a file is a side of trials with the sums (n, gamma) of N sessions, which are its windows. An
enrolled voice is a side, too. The sessions of a side are not independent: beside the voice, all windows of one sitting
share the part kappa of their noise. With the share rho of a window that is new, a side counts as

    m = r / (1 + (r - 1) kappa) of its N sessions,    r = max(rho N, 1),    kappa = .2,

so that n and gamma are multiplied by m / N. All speakers of a file also share its room and its line, which differ from
those of the enrolment. The mean over the S speakers of a file comes from the room and the line, but in part from the S
voices, too; o is the part that the room and the line explain. One session of type c adds G_c to the precision of a
voice; g is the mean of these. The estimate of each speaker alone is y_s = (sum_c n_sc G_c)^-1 gamma_s, and what is
compared is

    gamma_s - sum_c n_sc G_c o,    o = (4 / g) / (4 / g + 1 / S) mean over the speakers of the file of y_s

In a file with one speaker, voice and room cannot be told apart: nothing is subtracted, and the speaker counts as at
most a quarter of a session, m / (1 + 4 m).

If local speakers are linked to one person, their sums are added, because files are independent occasions. The
calibrated ratios of these sums give the probability of each voice and of somebody else
(`duoplda.trials.identification`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import to_numpy
from duoplda.data import labels as lab
from duoplda.diarization.vbhmm import Floats, Ints
from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.evaluation.calibration import StructureCalibration
from duoplda.model.occasions import independent_count
from duoplda.trials.evidence import DiagonalEvidence
from duoplda.trials.identification import decide_together, identify_together
from duoplda.trials.sides import Sides
from duoplda.trials.structure import of_sides

KAPPA = (
    0.2  # share of the noise that windows of one speaker in one file have in common; figures are in docs/diarization.md
)
ROOM = 4.0  # the variance of the room and line of a file, as a multiple of the noise of a session
EXACT_RATIOS = 100  # the number of best voices of each speaker whose ratios are exact; those of others are approximate


class Names(NamedTuple):
    """For each of n people the most probable voice, its probability, and whether the person is taken to be that voice.

    `voices` (K,) has the names of all voices, `voice` (n,) the most probable voice of each person, `posterior` (n,) its
    probability, and `named` (n,) says whether the person gets this name. That is the decision of least expected cost; a
    single person gets the name if its probability is above .5.
    """

    voices: NDArray[np.str_]
    voice: NDArray[np.object_]
    posterior: Floats
    named: NDArray[np.bool_]

    def names(self, others: NDArray[np.str_]) -> NDArray[np.str_]:
        """(n,) the voice of each person who is named, and one of `others` (n,) for each person who is not.

        Nobody else gets the name of a voice: if one of `others` is the name of a voice, a dash is appended to it.
        """
        taken = {*self.voices.tolist()}
        names = []
        for voice, named, other in zip(self.voice.tolist(), self.named.tolist(), others.tolist(), strict=True):
            while not named and other in taken:
                other += "-"
            names.append(voice if named else other)
        return np.array(names)


def known_voices(
    chain: Backend,
    heard: Sides,
    known: Sides,
    file: ArrayLike | None,
    *,
    discount: ArrayLike = 1.0,
    person: ArrayLike | None = None,
    prior: float = 0.5,
    apart: bool = False,
) -> Names:
    """Say which of the known voices each person is, if any.

    Parameters
    ----------
    chain : the model that enrolled all sides
    heard : (n,) the local speakers. Each window is a session of its speaker, or all windows are one session
    known : the enrolled voices
    file : (n,) the files of local speakers; None: no two of them are of one file, and nothing is subtracted
    discount : rho, how much a session of a local speaker counts, if an independent one counts 1: a number or (n,)
    person : (n,) the people 0, 1, ... to whom local speakers are linked; None: each local speaker is a person
    prior : the probability that a person is one of the voices
    apart : if True, two people of one file are never the same voice; with `person`, no two people at all are

    Example
    -------
    >>> from duoplda import PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([0.0, 0.0], 3 * np.eye(2), None, np.eye(2)))
    >>> known = chain.enroll([[6.0, 0.0], [0.0, 6.0]], ["ann", "bob"])
    >>> heard = chain.enroll([[6.2, 0.5], [-4.0, -5.0]], ["f-1", "f-2"])
    >>> names = known_voices(chain, heard, known, ["f", "g"])
    >>> names.names(np.array(["f-1", "f-2"])).tolist()
    ['ann', 'f-2']
    """
    if not 0 < prior < 1:
        raise DuopldaError(f"known_prior={prior!r} must be a probability between 0 and 1")
    ratios = voice_ratios(chain, heard, known, file, discount=discount, person=person)
    S = len(ratios)
    voices = known.ids.astype(str)
    names = Names(voices, np.full(S, "", object), np.zeros(S), np.zeros(S, bool))
    if not len(voices):
        return names
    # People of one group cannot be the same voice: with `apart` those of one file, or all whom linking kept apart.
    group = np.arange(S)
    if apart and person is not None:
        group = np.zeros(S, np.int64)
    elif apart and file is not None:
        group = lab.codes(file, "file", S)[1]
    for rows in _groups(group):
        probabilities = identify_together(ratios[rows], prior)  # for one person, the same as `identify`
        for row, posterior, decision in zip(rows, probabilities.voices, decide_together(probabilities), strict=True):
            best = int(posterior.argmax()) if decision.voice is None else decision.voice
            names.voice[row] = str(voices[best])
            names.posterior[row] = posterior[best]
            names.named[row] = decision.voice is not None
    return names


def _groups(codes: Ints) -> list[Ints]:
    """The rows of each of the codes 0, 1, ..."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes))[:-1])


def voice_ratios(
    chain: Backend,
    heard: Sides,
    known: Sides,
    file: ArrayLike | None,
    *,
    discount: ArrayLike = 1.0,
    person: ArrayLike | None = None,
) -> Floats:
    """(people, K) calibrated ln likelihood ratios of people and voices; the parameters are those of `known_voices`."""
    chain.check_sides(heard, known)
    n = len(heard)
    people = np.arange(n) if person is None else np.asarray(person)
    S = int(people.max()) + 1
    evidence = DiagonalEvidence.of(heard, known)
    enrolled = _weighted(evidence, known, independent_count(known.counts.sum(axis=1), KAPPA))
    # Who is heard is heard in one independent window at least: less would find short turns like everybody.
    m = independent_count(np.maximum(np.asarray(discount) * heard.counts.sum(axis=1), 1.0), KAPPA)
    home = np.arange(n)
    if file is not None:
        home = lab.codes(file, "file", n)[1]
        m = np.where(np.bincount(home)[home] == 1, m / (1 + ROOM * m), m)
    counts, gamma = _weighted(evidence, heard, m)
    gamma = gamma - _in_common(evidence, counts, gamma, home)
    together = np.zeros((S, counts.shape[1])), np.zeros((S, gamma.shape[1]))
    for total, part in zip(together, (counts, gamma), strict=True):
        np.add.at(total, people, part)
    ratios = evidence.ratios(*enrolled, *together, EXACT_RATIOS)
    if isinstance(chain.calibration_, StructureCalibration):
        # The expected ratios of a person are the means over its local speakers, whose windows are not discounted here.
        mean = np.equal.outer(np.arange(S), people) / np.bincount(people, minlength=S)[:, None]
        return chain.calibration_.transform(ratios, *(mean @ values for values in of_sides(heard, known)))
    return ratios if chain.calibration_ is None else to_numpy(chain.calibration_.apply(ratios))


def _weighted(evidence: DiagonalEvidence, sides: Sides, m: Floats) -> tuple[Floats, Floats]:
    """Counts (n, C) and gamma (n, ny), in the basis of the evidence, of sides that count as m (n,) sessions."""
    weight = (m / np.maximum(sides.counts.sum(axis=1), 1))[:, None]
    return evidence.counts(sides) * weight, to_numpy(sides.gamma) @ evidence.basis * weight


def _in_common(evidence: DiagonalEvidence, counts: Floats, gamma: Floats, home: Ints) -> Floats:
    """(n, ny) the part of the gamma of each speaker that comes from o, which is 0 in a file with one speaker.

    To compute the mean, the matrices G_c are taken to be diagonal, as they nearly are in the basis of the evidence.
    """
    informative = evidence.mean > 1e-9 * evidence.mean.max(initial=0.0)
    lam = np.where(informative, counts @ evidence.diagonals, 1.0)
    said = np.where(informative, gamma / np.where(lam > 0, lam, 1.0), 0.0)
    n = np.bincount(home)
    mean = np.zeros((len(n), gamma.shape[1]))
    np.add.at(mean, home, said)
    mean /= n[:, None]
    # The mean of n voices has the variance 1 / n, and the room and line ROOM / g, with g the precision of a session.
    room = ROOM / np.where(informative, evidence.mean, 1.0)
    mean *= np.where(n[:, None] > 1, room / (room + 1 / n[:, None]), 0.0)
    shift = np.empty_like(gamma)
    for row, f in enumerate(home.tolist()):
        shift[row] = np.tensordot(counts[row], evidence.G, axes=1) @ mean[f]
    return shift
