"""Identification: the probabilities of known voices, and of somebody else, from calibrated ratios.

With voices i of prior pi_i, of which "somebody else" has what is left, and ln LR_i the calibrated ratios of the tests
against them,

    P(i) = pi_i LR_i / (1 - sum_j pi_j + sum_j pi_j LR_j),      P(somebody else) = (1 - sum_j pi_j) / (the same).

Several speakers s of one file are different people, so that a voice i is given to one of them at most: an assignment a
has the probability

    P(a) ~ prod_s w(s, a(s)),    w(s, i) = pi_i LR_si,    w(s, somebody else) = 1 - sum_j pi_j,

and those that use a voice twice have none. P(a(s) = i) is exact where there are few speakers: a sum over all
assignments, voice after voice, whose state is the set of speakers that have got one. What is then decided costs, in
expectation, a sum over speakers that depends on these probabilities alone. So the decision of least cost that gives no
voice twice is an assignment problem on them, and not the most probable assignment, which may as a whole be improbable.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from duoplda.arrays import to_numpy
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError, some

Floats = NDArray[np.float64]
Verdict = Literal["accept", "nobody", "unsure"]

# Larger ratios count as this one: infinite ratios are then compared by their priors, and no difference of two is NaN.
LARGEST_RATIO = 1e6
# Voices that no more than one speaker can be are left out of the sum over assignments: the product of the two largest
# odds against somebody else bounds what it changes to ignore the case "both are this voice".
NEGLIGIBLE = 1e-12
# Steps (sets of speakers times voices times speakers) that an exact sum may take: about a second
MOST_STEPS = 1 << 25


class Probabilities(NamedTuple):
    """The probabilities of each voice, (..., K), and of somebody else, (...), which add up to 1."""

    voices: Floats
    someone_else: Floats


class Costs(NamedTuple):
    """The costs of a wrong name, of "nobody" where it is a known voice, and of leaving a test open.

    With the default costs a name is accepted above a probability of .5, and so is "nobody". Where a wrong name costs
    ten times as much, a name is accepted above .95.

    >>> round(1 - Costs(wrong_name=10).unsure / 10, 2)
    0.95
    """

    wrong_name: float = 1.0
    missed: float = 1.0
    unsure: float = 0.5


class Decision(NamedTuple):
    """A decision: to "accept" the voice with this number, "nobody" (it is no known voice), or "unsure"."""

    verdict: Verdict
    voice: int | None = None


def voice_priors(n_voices: int, known: float = 0.5, prior: ArrayLike | None = None) -> Floats:
    """The prior probabilities (K,) of voices: those that are given, or equal parts of `known`.

    >>> voice_priors(4, 0.8).tolist()
    [0.2, 0.2, 0.2, 0.2]
    """
    if prior is None:
        if not 0 <= known <= 1:
            raise DuopldaError(f"known={known!r} must be a probability, that of being one of the known voices")
        return np.full(n_voices, known / max(n_voices, 1))
    priors = to_numpy(prior).astype(float)
    if priors.shape != (n_voices,):
        raise DuopldaError(f"prior has shape {priors.shape}: give one probability for each of the {n_voices} voices")
    wrong = np.flatnonzero(~((priors >= 0) & (priors <= 1)))
    if len(wrong):
        raise DuopldaError(f"prior must be probabilities: those of voices {some(wrong)} are not")
    total = float(priors.sum())
    if total > 1 + 1e-9:
        raise DuopldaError(f"the prior probabilities of the voices add up to {total:.6g}: they must not exceed 1")
    return priors


def identify(ratios: ArrayLike, known: float = 0.5, prior: ArrayLike | None = None) -> Probabilities:
    """The probabilities of voices and of somebody else for each test by itself.

    They are as good as the ratios and the priors are: do not use them with scores that are not calibrated.

    Parameters
    ----------
    ratios : (K,) or (n, K) calibrated ln likelihood ratios of a test, or of n tests, against K voices. Infinite ones
        are certainty.
    known : the prior probability that it is one of the voices, which have equal parts of it
    prior : (K,) prior probabilities of the voices instead, which leave the rest to somebody else

    >>> both = identify([np.log(9.0), -50.0])
    >>> both.voices.round(3).tolist(), both.someone_else.round(3).tolist()
    ([0.818, 0.0], 0.182)
    """
    weights, other = _log_weights(ratios, known, prior)
    total = np.logaddexp(logsumexp(weights, axis=-1) if weights.shape[-1] else -np.inf, other)
    return Probabilities(np.exp(weights - total[..., None]), np.exp(other - total))


def identify_together(ratios: ArrayLike, known: float = 0.5, prior: ArrayLike | None = None) -> Probabilities:
    """The probabilities for speakers of one file, who are different people, so that no voice can be two of them.

    Parameters
    ----------
    ratios : (S, K) calibrated ln likelihood ratios of the speakers of one file against the voices
    known, prior : as for `identify`, for each of the speakers

    Up to about a dozen speakers, depending on the number of voices, probabilities are exact (within `NEGLIGIBLE`). With
    more, those of each speaker are given that the others are who they are in the most probable assignment, which is
    too sure where several speakers could be one voice.

    >>> identify_together([[5.0, 1.0], [4.0, 3.0]]).voices.round(2).tolist()
    [[0.91, 0.04], [0.07, 0.84]]
    """
    weights, other = _log_weights(ratios, known, prior)
    if weights.ndim != 2:
        raise DuopldaError(f"ratios must have two dimensions, (speakers, voices), not {weights.ndim}")
    S, K = weights.shape
    if S < 2 or not K:
        return identify(ratios, known, prior)
    wanted = np.sort(weights - other[:, None], axis=0)[-2:].sum(axis=0)
    rivals = np.flatnonzero(wanted > np.log(NEGLIGIBLE))
    alone = np.delete(weights, rivals, axis=1)
    rest = np.logaddexp(logsumexp(alone, axis=1) if alone.shape[1] else -np.inf, other)
    exact = S < 25 and len(rivals) * S << S <= MOST_STEPS
    chosen, remaining = (_marginals if exact else _given_others)(weights[:, rivals], rest)
    ln_share = remaining - rest
    out = np.empty((S, K))
    out[:, rivals] = np.exp(chosen)
    out[:, np.setdiff1d(np.arange(K), rivals)] = np.exp(ln_share[:, None] + alone)
    return Probabilities(out, np.exp(ln_share + other))


def decide(probabilities: Probabilities, costs: Costs = Costs()) -> Decision:  # noqa: B008 (it is frozen)
    """The decision of least expected cost for one test; where two cost the same, "unsure" or the one without a name.

    >>> [decide(identify([ratio])).verdict for ratio in (-3.0, 0.0, 3.0)]
    ['nobody', 'unsure', 'accept']
    """
    P, other = probabilities
    return decide_together(Probabilities(P[None], np.asarray(other)[None]), costs)[0]


def decide_together(probabilities: Probabilities, costs: Costs = Costs()) -> list[Decision]:  # noqa: B008
    """The decisions of least expected cost for the speakers of one file, which accept no voice twice.

    >>> decide_together(identify_together([[9.0, 1.0], [8.0, 7.0]]))
    [Decision(verdict='accept', voice=0), Decision(verdict='accept', voice=1)]
    """
    if not all(np.isfinite(cost) and cost >= 0 for cost in costs):
        raise DuopldaError(f"costs must be finite and not negative, got {tuple(costs)}")
    P, other = probabilities
    nobody = costs.missed * (1 - other)
    open_ = np.minimum(nobody, costs.unsure)
    voice = np.full(len(P), -1)
    # What a name saves, compared with the best decision that gives none; 0 where it saves no more than rounding
    saved = np.maximum(open_[:, None] - costs.wrong_name * (1 - P) - 1e-12, 0.0)
    worthwhile = np.flatnonzero(saved.any(axis=0))
    if len(worthwhile):
        rows, columns = linear_sum_assignment(-saved[:, worthwhile])
        columns = worthwhile[columns]
        named = saved[rows, columns] > 0
        voice[rows[named]] = columns[named]
    return [
        Decision("accept", v) if v >= 0 else Decision("nobody" if cost < costs.unsure else "unsure")
        for v, cost in zip(voice.tolist(), nobody.tolist(), strict=True)
    ]


# -- the sum over assignments


def _log_weights(ratios: ArrayLike, known: float, prior: ArrayLike | None) -> tuple[Floats, Floats]:
    """ln pi_i LR_i, (..., K), and ln(1 - sum pi), (...)."""
    L = np.asarray(to_numpy(ratios), float)
    if L.ndim not in (1, 2):
        raise DuopldaError(f"ratios must have one or two dimensions, (tests, voices), not {L.ndim}")
    if np.isnan(L).any():
        rows = np.unique(np.argwhere(np.isnan(L))[:, 0])
        raise DuopldaError(f"ratios have NaN in rows {some(rows)}")
    priors = voice_priors(L.shape[-1], known, prior)
    other = max(0.0, 1.0 - float(priors.sum())) if prior is not None else 1.0 - (known if L.shape[-1] else 0.0)
    with np.errstate(divide="ignore"):
        weights = np.clip(L, -LARGEST_RATIO, LARGEST_RATIO) + np.log(priors)
        # Somebody else who is impossible is still there for speakers who find no voice left.
        return weights, np.full(L.shape[:-1], np.maximum(np.log(other), -4 * LARGEST_RATIO))


def _marginals(w: Floats, rest: Floats) -> tuple[Floats, Floats]:
    """ln P(a(s) = i), (S, R), and ln P(a(s) is no rival), (S,), for rivals with ln w (S, R) and ln w of all else (S,).

    F_i[M] is the sum over the ways in which voices before i are given to the set M of speakers, one voice each, and
    B_i[M] that over the ways in which voices from i on are given to some of the others, and the rest to no rival.
    """
    S, R = w.shape
    sets = np.arange(1 << S)
    member = (sets[:, None] >> np.arange(S)) & 1 == 1  # (2^S, S)
    without = np.where(member, sets[:, None] ^ (1 << np.arange(S)), 1 << S)  # the last cell of F: no ways
    beyond = np.where(member, 1 << S, sets[:, None] | (1 << np.arange(S)))
    F = np.full((R + 1, len(sets) + 1), -np.inf)
    B = np.full((R + 1, len(sets) + 1), -np.inf)
    F[0, 0] = 0.0
    B[R, :-1] = np.where(member, 0.0, rest).sum(axis=1)
    for i in range(R):
        ways = np.logaddexp.reduce(F[i][without] + w[:, i], axis=1)
        F[i + 1, :-1] = np.logaddexp(F[i, :-1], ways)
    for i in reversed(range(R)):
        ways = np.logaddexp.reduce(B[i + 1][beyond] + w[:, i], axis=1)
        B[i, :-1] = np.logaddexp(B[i + 1, :-1], ways)
    total = B[0, 0]
    chosen = np.empty((S, R))
    for i in range(R):
        chosen[:, i] = w[:, i] + np.logaddexp.reduce(F[i, :-1, None] + B[i + 1][beyond], axis=0)
    no_rival = np.where(member, -np.inf, (F[R, :-1] + B[R, :-1])[:, None])
    return chosen - total, np.logaddexp.reduce(no_rival, axis=0) - total


def _given_others(w: Floats, rest: Floats) -> tuple[Floats, Floats]:
    """The same as `_marginals`, given that all other speakers are who they are in the most probable assignment."""
    gain = w - rest[:, None]
    rows, columns = linear_sum_assignment(-np.maximum(gain, 0.0))
    owner: Ints = np.full(w.shape[1], -1)
    named = gain[rows, columns] > 0
    owner[columns[named]] = rows[named]
    free = np.where((owner < 0) | (owner == np.arange(len(w))[:, None]), w, -np.inf)
    total = np.logaddexp(logsumexp(free, axis=1), rest)
    return free - total[:, None], rest - total
