"""Adaptation to another domain: each covariance of a model is moved towards that of the target's recordings.

With B = VV', S = UU', noise covariances N_k = W_k^-1 and N their mean, an analysis of variance of the target gives
B_t, S_t and N_t, as far as its labels tell levels apart. Such a level is mixed with that of the source; levels of which
only the sum C is known keep their proportions:

    C <- (1 - w) C + w C_t,                                     w the share of the target at this level
    C = C_1 + C_2:   C_i <- A C_i A',   A = ((1 - w) C + w C_t)^1/2 C^-1/2
    N_k <- (1 - w) N_k + w A N_k A',    A = N_t^1/2 N^-1/2      kinds of channels keep their differences
    mu_k <- mu_k + k (m_k - mu_k)

The usual shares, with h = sessions - speakers and f = recordings - sessions, in d dimensions:

    w_speaker = M / (M + 40),   w_session = min(1/2, h / (h + d)),   w_noise = min(1/2, f / (f + d))

where M = (sum h_i)^2 / sum h_i^2 is the number of speakers, those with few sessions h_i counting for less. Which levels
follow the target at all, and whether with twice or four times the odds w / (1 - w) of these shares, is chosen by
speakers who are left out (`duoplda.selection.adaptation`). The means go the part

    k = max(0, 1 - 1.4 v / D)

of the way to those of the target, where D is the squared distance between the two in units of the total covariance, and
v the squared distance that the mean of so few speakers has by chance: from their own scatter where speakers are known
(`scatter_of_mean`), otherwise tr(T^-1 B) / M.

The last function does what Kaldi's `ivector-adapt-plda` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import put, reproducible, spd_inverse, symmetric, to_numpy
from duoplda.errors import DuopldaError
from duoplda.model import anova, simpler
from duoplda.model.parameters import Model, loadings_of
from duoplda.model.statistics import Statistics

Floats = NDArray[np.float64]

# The largest share of the target's sessions and noise: however many recordings it has, the source counts for as much.
# This and the other constants here were chosen on speakers that are in no table of docs/adaptation.md.
LARGEST_SHARE = 0.5


class Shares(NamedTuple):
    """The share of the target at each level, from 0 (the source stays) to 1, where its speakers are known."""

    speaker: float
    session: float
    noise: float


# Levels grow only where the target's are larger by this factor. A few speakers may show a larger level by chance: in
# 120 draws of three and of five speakers from a model of 20 dimensions, it was up to 2.1 times as large; with a factor
# of 1.5, chance made levels grow.
LEAST_GROWTH = 2.0


class SessionShares(NamedTuple):
    """The share of the target in the noise, and in both levels above it together, where its speakers are not known."""

    noise: float
    both: float


def effective_number(counts: NDArray[Any]) -> float:
    """The number of speakers of equal size whose mean would scatter as that of speakers with these numbers of sessions.

    >>> effective_number(np.array([4, 4, 4])), round(effective_number(np.array([10, 1, 1])), 2)
    (3.0, 1.41)
    """
    sizes = counts.astype(float)
    return float(sizes.sum() ** 2 / np.sum(sizes**2))


def effective_speakers(stats: Statistics) -> float:
    """The effective number of the speakers of statistics, by their numbers of sessions."""
    return effective_number(stats.counts.sum(axis=1))


def usual_shares(stats: Statistics) -> Shares:
    """The usual shares for labelled statistics; where no session has two recordings, noise moves as sessions do."""
    M = effective_speakers(stats)
    h = stats.n_sessions - stats.n_speakers
    f = stats.n_recordings - stats.n_sessions or h
    d = stats.d
    return Shares(speaker_share(M), min(LARGEST_SHARE, h / (h + d)), min(LARGEST_SHARE, f / (f + d)))


def speaker_share(n_speakers: float) -> float:
    """The share of the target's speakers, of which 40 count for as much as the source.

    >>> speaker_share(40), round(speaker_share(5), 2)
    (0.5, 0.11)
    """
    return n_speakers / (n_speakers + 40.0)


class Move(NamedTuple):
    """Which levels follow the target, and the factor of the odds of their usual shares."""

    speaker: bool
    session: bool
    noise: bool
    odds: float = 1.0

    def shares(self, stats: Statistics) -> Shares:
        """The shares of statistics with labels of speakers.

        >>> stats = Statistics.from_arrays(np.eye(4), list("aabb"), list("stuv"))
        >>> Move(False, True, False, odds=2.0).shares(stats)
        Shares(speaker=0.0, session=0.5, noise=0.0)
        """
        shares = []
        for follows, share in zip(self[:3], usual_shares(stats), strict=True):
            shares.append(self.odds * share / (1 + (self.odds - 1) * share) if follows else 0.0)
        return Shares(*shares)

    def session_shares(self, stats: Statistics) -> SessionShares:
        """The shares where sessions are known and speakers are not: levels above the noise move half as far."""
        shares = self.shares(stats)
        return SessionShares(shares.noise, min(shares.speaker, LARGEST_SHARE) / 2)


def centring(distance: float, scatter: float) -> float:
    """The part k of the way to the target's mean, which lies at the squared `distance` D, that the mean moves.

    `scatter` is the squared distance v that the mean of so many speakers has by chance.
    """
    # 1.4: to move too far costs more than to stay behind, and both D and v are estimates.
    return max(0.0, 1 - 1.4 * scatter / distance) if distance > 0 else 0.0


def scatter_of_mean(stats: Statistics) -> tuple[Floats, Floats]:
    """Deviations (M, d) of speakers from the mean of all recordings, and weights (M,).

    The weighted sum of their squares estimates the variance of the mean of such speakers: with w_i the share of speaker
    i in the recordings, sum w (x - m)^2 / (1 - sum w^2) is the variance of a speaker, and sum w^2 times that the
    variance of the mean.
    """
    sums = np.zeros((len(stats.speaker_ids), stats.d))
    counts = np.zeros(len(sums))
    for block in stats.blocks:
        for _, n, columns in block.parts:
            np.add.at(sums, block.speaker, to_numpy(block.A)[:, columns])
            np.add.at(counts, block.speaker, n * block.n)
    share = counts / counts.sum()
    means = sums / counts[:, None]
    concentration = float(share @ share)
    return means - share @ means, share * concentration / max(1 - concentration, 1e-300)


def _root(A: Floats, power: float = 0.5) -> Floats:
    """A^power of a covariance; directions without variance stay at 0."""
    s, E = np.linalg.eigh(symmetric(A))
    good = s > 1e-12 * max(float(s[-1]), 0.0)
    return (E[:, good] * s[good] ** power) @ E[:, good].T


def _positive(A: Floats) -> Floats:
    """The nearest covariance: negative eigenvalues become 0."""
    s, E = np.linalg.eigh(symmetric(A))
    return (E * np.maximum(s, 0)) @ E.T


# -- the target


@dataclass(frozen=True, eq=False)
class Target:
    """The target by its levels; one that its labels do not tell from the next is None."""

    means: Floats  # (K, d) of its kinds of channels
    counts: Floats  # (K,) recordings of each; 0: the target has none of this kind
    total: Floats  # (d, d)
    noise: Floats | None
    speaker: Floats | None = None
    session: Floats | None = None
    both: Floats | None = None  # of speakers and sessions together
    below: Floats | None = None  # of sessions and noise together

    @staticmethod
    @reproducible()
    def of(stats: Statistics) -> Target:
        """The levels of the target's statistics, by an analysis of variance."""
        s = anova.scatters(stats)
        within, session, speaker = (to_numpy(a) for a in (s.within, s.session, s.speaker))
        f, h, m = s.df
        means = to_numpy(stats.kind_means) + to_numpy(stats.offset)
        noise = symmetric(within / f) if f > 0 else None
        levels: dict[str, Floats] = {}
        if noise is None and h > 0:
            levels["below"] = symmetric(session / h)
        if noise is not None and h > 0 and s.a > 0:
            levels["session"] = _positive((session - h * noise) / s.a)
        if m > 0 and h > 0:
            above = s.b * levels["session"] if "session" in levels else 0.0
            lowest = levels["below"] if noise is None else noise
            levels["speaker"] = _positive((speaker - m * lowest - above) / s.e)
        if noise is not None and h + m > 0:
            levels["both"] = _positive((session + speaker - (h + m) * noise) / (s.a + s.b))
        total = symmetric((within + session + speaker) / stats.n_recordings)
        return Target(means, stats.N.copy(), total, noise, **levels)


def fitted_to(model: Model, stats: Statistics, priors: Floats) -> Model:
    """The model on the device of statistics, and with one kind of channels where these have only one.

    That kind has the mean and the noise of a recording of unknown kind.
    """
    if stats.K != model.K:
        mu = to_numpy(model.mu)
        noise = _noise_of_unknown_kind(mu, spd_inverse(to_numpy(model.W))[0], priors)
        model = replace(model, mu=(priors @ mu)[None], W=symmetric(spd_inverse(noise)[0])[None], kinds=stats.kinds)
    return replace(model, **{name: put(getattr(model, name), stats.offset) for name in ("mu", "V", "U", "W")})


def _noise_of_unknown_kind(mu: Floats, N: Floats, priors: Floats) -> Floats:
    """(d, d) sum_k p_k (N_k + (mu_k - m)(mu_k - m)') with m = sum_k p_k mu_k: the means of the kinds differ, too."""
    centred = mu - priors @ mu
    return np.tensordot(priors, N, 1) + (priors[:, None] * centred).T @ centred


# -- the source, and how it moves


class Levels:
    """A model by the covariances of its levels, on the host."""

    def __init__(self, model: Model, priors: Floats):
        """`priors` (K,) are the shares of the kinds of channels."""
        V = to_numpy(model.V)
        U = to_numpy(model.U)
        self.model = model
        self.priors = priors
        self.mu = to_numpy(model.mu)  # (K, d)
        self.B = V @ V.T
        self.S = U @ U.T
        self.N = symmetric(spd_inverse(to_numpy(model.W))[0])  # (K, d, d)

    def fitting(self, stats: Statistics) -> Statistics:
        """The statistics of a target with the kinds of channels of the model, and of its levels.

        Where they name no kinds, or kinds that the model does not know, all recordings count as one kind (see
        `fitted_to`). For a model without session factors, each recording is a session of its own.
        """
        if self.model.d != stats.d:
            raise DuopldaError(f"the target has {stats.d} dimensions, the model {self.model.d}")
        if not self.model.nx:
            stats = simpler.without_sessions(stats)
        if set(stats.kinds.tolist()) <= set(self.model.kinds.tolist()) and self.model.K > 1:
            return stats.of_kinds(self.model.kinds)
        return simpler.without_kinds(stats)

    def mean_noise(self, target: Target) -> Floats:
        """(d, d) the noise that this model expects of the target's recordings, whether their kinds are known or not."""
        if len(target.counts) == self.model.K:
            return np.tensordot(target.counts / target.counts.sum(), self.N, 1)
        return _noise_of_unknown_kind(self.mu, self.N, self.priors)

    def grown(self, target: Target, *, session: bool = True, noise: bool = True) -> Levels:
        """These levels with sessions and noise made as large as the target's where the target's are larger.

        `session` and `noise` say whether this level may grow. Where the target tells only the sum of levels, its
        speakers are taken to differ as those of the source; where it tells only the sum of all, sessions and noise go
        half of the way. Only sizes are taken, in units of the total covariance: a few recordings tell these, while
        shapes take many.
        """
        N = self.mean_noise(target)
        size = partial(self.size, target=target)

        def ratio(new: float, old: float) -> float:
            return new / old if new > LEAST_GROWTH * old > 0 else 1.0

        S = target.session
        if S is None and target.both is not None:
            S = target.both - self.B
        if target.noise is not None and S is not None:
            of_sessions = ratio(size(S), size(self.S))
            of_noise = ratio(size(target.noise), size(N))
        else:
            below = size(self.S + N)
            if target.below is not None:
                of_sessions = of_noise = ratio(size(target.below), below)
            else:
                of_sessions = of_noise = (1 + ratio(size(target.total - self.B), below)) / 2
        of_sessions = of_sessions if session else 1.0
        of_noise = of_noise if noise else 1.0
        if of_sessions == of_noise == 1:
            return self
        return Levels(self.result(self.mu, None, of_sessions * self.S, of_noise * self.N), self.priors)

    def size(self, C: Floats, target: Target) -> float:
        """tr(T^-1 C), with the total covariance T that recordings of the target would have."""
        return float(np.trace(np.linalg.solve(self.B + self.S + self.mean_noise(target), C)))

    def has_grown(self, target: Target) -> bool:
        """Whether recordings of the target vary more than the model expects of them."""
        C = target.total if target.noise is None or target.both is None else target.noise + target.both
        return self.size(C, target) > self.model.d

    def moved(self, target: Target, k: float) -> Floats:
        """(K, d) the means after going the part k of the way to those of the target.

        Kinds that the target does not have move as the others do on average.
        """
        spread = float(np.trace(target.total))
        variance = spread / float(np.trace(self.B + self.S + self.mean_noise(target)))
        # Recordings that are all equal differ by rounding alone.
        alike = spread <= 1e-24 * float((target.means**2).sum())
        if not alike and not 1e-12 < variance < 1e12:  # a mixture of the two would keep few digits of the smaller
            cause = f"the target's vectors vary {variance**0.5:.3g} times as much as those that the model is of"
            raise DuopldaError(f"{cause}: give vectors of the same extractor, on the same scale")
        if len(target.counts) != self.model.K:
            return self.mu + k * (target.means[0] - self.priors @ self.mu)
        present = target.counts > 0
        step = target.means - self.mu
        step[~present] = (target.counts / target.counts.sum()) @ np.where(present[:, None], step, 0.0)
        return self.mu + k * step

    def result(self, mu: Floats, B: Floats | None = None, S: Floats | None = None, N: Floats | None = None) -> Model:
        """The model with other means, and with covariances B, S and N where given; the rest stays to the last bit."""
        parts = {name: to_numpy(getattr(self.model, name)) for name in ("V", "U", "W")}
        if B is not None:
            parts["V"] = loadings_of(B)
        if S is not None and self.model.nx:
            parts["U"] = loadings_of(S)
        if N is not None:
            # A direction without noise would make ratios infinite: none may have less than a millionth of the mean
            # variance of the noise, before or after the move, whichever is larger.
            size = np.maximum(*(np.trace(C, axis1=1, axis2=2) for C in (self.N, N))) / self.model.d
            s, E = np.linalg.eigh(symmetric(N))
            s = np.maximum(s, 1e-6 * size[:, None])
            parts["W"] = symmetric((E / s[:, None, :]) @ np.swapaxes(E, 1, 2))
        return replace(self.model, mu=mu, **parts)


def _moved_together(new: Floats, old: Floats, *covariances: Floats) -> list[Floats]:
    """A C A' of each covariance C, with A = new^1/2 old^-1/2, for which A old A' = new."""
    A = _root(new) @ _root(old, -0.5)
    return [symmetric(A @ C @ A.T) for C in covariances]


def _noise(levels: Levels, target: Target, share: float) -> Floats | None:
    """(K, d, d) noise covariances of which the target has the share; None: they stay."""
    if not share or target.noise is None:
        return None
    (N,) = _moved_together(target.noise, levels.mean_noise(target), levels.N)
    return (1 - share) * levels.N + share * N


@reproducible()
def labelled(levels: Levels, target: Target, shares: Shares, k: float) -> Model:
    """Adapt to a target with known speakers: each level that the labels tell apart has a share of its own."""
    means = levels.moved(target, k)
    if target.speaker is None:  # no speaker has two sessions
        return between(levels, target, SessionShares(shares.noise, min(shares.speaker, LARGEST_SHARE)), k)
    w = shares.speaker
    B = (1 - w) * levels.B + w * target.speaker if w else None
    if target.session is not None:
        w = shares.session
        S = (1 - w) * levels.S + w * target.session if w and levels.model.nx else None
        return levels.result(means, B, S, _noise(levels, target, shares.noise))
    w = shares.session if levels.model.nx else shares.noise
    if target.below is None or not w:
        return levels.result(means, B)
    below = levels.S + levels.mean_noise(target)
    S, N = _moved_together((1 - w) * below + w * target.below, below, levels.S, levels.N)
    return levels.result(means, B, S, N)


@reproducible()
def between(levels: Levels, target: Target, shares: SessionShares, k: float, *, sessions_grow: bool = False) -> Model:
    """Adapt to a target with known sessions of unknown speakers: the noise, and the sum of the two levels above it.

    The two keep their proportions; with `sessions_grow`, sessions take all growth of the sum, direction by direction.
    """
    means = levels.moved(target, k)
    if target.noise is None or target.both is None:
        return through_total(levels, target, shares.both, k)
    N = _noise(levels, target, shares.noise)
    w = shares.both
    if not w:
        return levels.result(means, None, None, N)
    both = levels.B + levels.S
    mixed = (1 - w) * both + w * target.both
    B, S = _one_grows(mixed, both, levels.B) if sessions_grow else _moved_together(mixed, both, levels.B, levels.S)
    return levels.result(means, B, S, N)


def _one_grows(new: Floats, old: Floats, stays: Floats) -> tuple[Floats, Floats]:
    """A part `stays` of `old` after this has become `new`, and the rest: the part falls with it, but does not grow."""
    root = _root(old)
    inverse = _root(old, -0.5)
    s, E = np.linalg.eigh(symmetric(inverse @ new @ inverse))
    fallen = (root @ E * np.minimum(s, 1)) @ (root @ E).T
    (part,) = _moved_together(fallen, old, stays)
    return part, _positive(new - part)


@reproducible()
def through_total(levels: Levels, target: Target, share: float, k: float) -> Model:
    """Adapt to an unlabelled target: all levels move with the total covariance. With share 1 this is CORAL."""
    means = levels.moved(target, k)
    if not share:
        return levels.result(means)
    total = levels.B + levels.S + levels.mean_noise(target)
    mixed = (1 - share) * total + share * target.total
    return levels.result(means, *_moved_together(mixed, total, levels.B, levels.S, levels.N))


@reproducible()
def below_growing(levels: Levels, target: Target, shares: SessionShares, k: float) -> Model:
    """Adapt to known sessions that cannot be clustered by speaker: where B + S grows, the growth is the sessions'.

    First, sessions and noise are made as large as the target's (`Levels.grown`); then the sessions take all further
    growth of B + S, direction by direction.
    """
    target = replace(target, speaker=None, session=None, below=None)  # who speaks is not known, or a guess
    if target.noise is None or target.both is None:
        return through_growing_total(levels, target, shares.both, k)
    return between(levels.grown(target), target, shares, k, sessions_grow=True)


@reproducible()
def through_growing_total(levels: Levels, target: Target, share: float, k: float) -> Model:
    """As `through_total`, but speakers do not differ more where the total covariance T grows to T'.

    Nothing tells which level has grown. If it is sessions or noise, and speakers are taken to have grown, ratios become
    over-confident. So sessions and noise are first made as large as they have to be (`Levels.grown`). Then, with
    r = tr(T^-1 T') / d > 1, B' becomes B' / r, and S' and N' grow alike by what that leaves of T'.
    """
    means = levels.moved(target, k)
    if not share:
        return levels.result(means)
    levels = levels.grown(replace(target, speaker=None, session=None, both=None, below=None))
    total = levels.B + levels.S + levels.mean_noise(target)
    mixed = (1 - share) * total + share * target.total
    B, S, *N = _moved_together(mixed, total, levels.B, levels.S, *levels.N)
    r = levels.size(mixed, target) / levels.model.d
    if r > 1:
        below = 1 - levels.size(B, target) / (r * levels.model.d)  # the share of S' and N'
        factor = (1 - (1 - below) / r) / below
        B = B / r
        S = S * factor
        N = [factor * C for C in N]
    return levels.result(means, B, S, np.array(N))


@reproducible()
def kaldi(levels: Levels, target: Target, within: float = 0.3, between: float = 0.7, mean_diff: float = 1.0) -> Model:
    """What Kaldi's `ivector-adapt-plda` does: the target's excess of variance is added within and between speakers.

    The covariance of the target, plus `mean_diff` times the square of the difference between the means, has eigenvalues
    s_i in units of the model's total covariance. Where s_i > 1, the shares `within` and `between` of s_i - 1 are added
    to the covariances within and between speakers. Sessions and noise keep their proportions.
    """
    step = levels.moved(target, 1.0) - levels.mu
    mean = (target.counts / target.counts.sum() if len(target.counts) == levels.model.K else levels.priors) @ step
    below = levels.S + levels.mean_noise(target)
    total = levels.B + below
    inverse = _root(total, -0.5)
    s, E = np.linalg.eigh(symmetric(inverse @ (target.total + mean_diff * np.outer(mean, mean)) @ inverse))
    directions = _root(total) @ E
    excess = symmetric((directions * np.maximum(s - 1, 0)) @ directions.T)
    S, N = _moved_together(below + within * excess, below, levels.S, levels.N)
    return levels.result(levels.mu + step, levels.B + between * excess, S, N)
