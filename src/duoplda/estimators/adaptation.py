"""Adapting a back-end to another domain: by labelled recordings, by their sessions alone, or by the recordings alone.

The centring moves first; all that follows happens behind the chain's steps, where the PLDA is. With labels the levels
of the model move towards those of the target (`duoplda.model.adaptation`). With sessions alone, these are put into
clusters, which then are the speakers. Where speakers (or clusters) are enough, some of them are left out of the
adaptation in turn: they choose among partitions into clusters, and calibrate the ratios
(`duoplda.selection.adaptation`).

Passes over the recordings: one for the mean (one more for each centring after the first, and one for the distance where
the chain does not whiten), one for statistics; with clusters, two for each of seven partitions at most. What is kept of
all sessions while they are clustered are `ny + nx` numbers each; elsewhere nothing grows with the recordings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, on_device, to_numpy
from duoplda.data.labels import KNOWN
from duoplda.data.recordings import Recordings, Relabelled, as_recordings
from duoplda.errors import DuopldaError, some
from duoplda.estimators import checks, domain
from duoplda.estimators.preprocessing import Center, through
from duoplda.estimators.sessions import SessionSides
from duoplda.evaluation.calibration import AffineCalibration
from duoplda.model import adaptation as levels_of
from duoplda.model import anova
from duoplda.model.adaptation import Levels, SessionShares, Shares, Target
from duoplda.model.parameters import Model
from duoplda.model.shrinkage import Scales
from duoplda.model.statistics import Statistics
from duoplda.observer import SILENT, Arrays, Observer
from duoplda.selection import adaptation as selection
from duoplda.selection.decision import TrialOptions
from duoplda.trials.clustering import cluster
from duoplda.trials.sides import Sides

if TYPE_CHECKING:
    from duoplda.estimators.plda import PLDA

Steps = dict[str, Any]  # fitted steps of preprocessing, by name

METHODS: dict[str, tuple[int, ...]] = {  # and the number of weights that each takes
    "auto": (),
    "labels": (3,),
    "clusters": (),
    "sessions": (2,),
    "total": (1,),
    "centre": (),
    "kaldi": (2, 3),
}
NOTHING_OF_TARGET = SessionShares(0.0, 0.0)
FEWEST_CLUSTERS = 4  # to adapt covariances to: fewer tell next to nothing of how speakers differ
ENOUGH_CLUSTERS = 8  # to calibrate with, more than of labelled speakers: some clusters are wrong
TRUSTS = (1.0, 0.5)  # weights of ratios against the prior of a partition: those of an unadapted model are too large
FOLDS = 16  # into which a pass divides speakers by their names; several of them make a fold of those left out


@dataclass(frozen=True, eq=False)
class Chain:
    """Steps of preprocessing and the PLDA behind them, which an adaptation changes; a PLDA alone has no steps."""

    plda_: PLDA
    steps_: Steps = field(default_factory=dict)
    domain_memory: domain.DomainMemory = field(default_factory=domain.DomainMemory)

    def enroll(
        self, X: Array, ids: ArrayLike, session: Any = None, channel: Any = None, *, device: Any = None
    ) -> Sides:
        """Sets of recordings as sides of the PLDA."""
        Z = through(self.steps_, on_device(X, device), channel)
        return self.plda_.enroll(Z, ids, session, channel, device=device)


@dataclass(frozen=True, eq=False)
class Adapted:
    """An adaptation, and what came of it."""

    model: Model
    steps: Steps
    centre: float  # how far the mean went
    shares: Mapping[str, float] = field(default_factory=dict)  # of the target, by level
    calibration: selection.HeldOutCalibration | None = None
    n_clusters: int = 0
    covered: float = 1.0  # the share of sessions that are not alone in their cluster

    @property
    def trial(self) -> selection.PartitionTrial:
        """What counts where partitions compete."""
        cost = None if self.calibration is None else self.calibration.cost
        return selection.PartitionTrial(cost, self.covered, self.n_clusters)


def adapt(
    source: Chain,
    X: ArrayLike | Recordings | Statistics,
    speaker: ArrayLike | None = None,
    session: ArrayLike | None = None,
    channel: ArrayLike | None = None,
    *,
    method: str = "auto",
    weights: ArrayLike | None = None,
    centre: float | None = None,
    prior: float = 0.02,
    device: Any = None,
    observer: Observer = SILENT,
) -> Chain:
    """The chain for the domain of the recordings `X`: see `Backend.adapt`. The source stays as it is.

    The observer may give the arrays of an earlier run instead of computing them.
    """
    if method not in METHODS:
        raise DuopldaError(f"method={method!r} must be one of {', '.join(METHODS)}")
    if centre is not None and not (isinstance(centre, Real) and 0 <= float(centre) <= 1):
        raise DuopldaError(f"centre={centre!r} must be None, or a number from 0 to 1")
    if isinstance(X, Statistics):
        if X.is_open:
            raise DuopldaError("the statistics have open sessions: join all shards, and close them")
        if source.steps_:
            raise DuopldaError("statistics are of the PLDA's space: adapt the PLDA, or give recordings to the back-end")
    target = X if isinstance(X, Statistics) else as_recordings(X, speaker, session, channel)
    numbers = _checked_weights(method, weights)
    fixed = None if centre is None else float(centre)
    adaptation = Adaptation(source, target, method, numbers, fixed, prior, device, observer)
    return adaptation.run()


def _checked_weights(method: str, weights: ArrayLike | None) -> tuple[float, ...]:
    """The weights that were given; () where a rule finds them."""
    if weights is None:
        return ()
    try:
        numbers = tuple(np.atleast_1d(np.asarray(weights, float)).tolist())
    except (TypeError, ValueError):
        numbers = (float("nan"),)
    if len(numbers) not in METHODS[method]:
        wanted = " or ".join(map(str, METHODS[method]))
        needs = f"takes {wanted} weights" if wanted else "takes no weights"
        raise DuopldaError(f"weights={weights!r}: method={method!r} {needs}")
    if not all(0 <= weight < np.inf for weight in numbers) or (method != "kaldi" and max(numbers) > 1):
        raise DuopldaError(f"weights={weights!r} must be numbers from 0 to 1")
    return numbers


@dataclass(eq=False)
class Adaptation:
    """One chain on its way to another domain; `story` tells what was done, and why."""

    source: Chain
    target: Recordings | Statistics
    method: str
    weights: tuple[float, ...]
    centre: float | None  # how far the mean goes, if that was given
    prior: float
    device: Any
    observer: Observer

    def __post_init__(self) -> None:
        plda = self.source.plda_
        self.known = self.target.known
        self.levels = Levels(plda.model_, to_numpy(plda.channel_priors_))
        self.partitions: dict[tuple[str, float], Relabelled] = {}  # by the name of the model, and trust in its ratios
        self.tried: dict[bytes, Adapted] = {}  # by the clusters of all sessions: two models may find the same ones
        self.story: dict[str, Any] = {"method": self.method, "notes": [], "reasons": {"method": "as asked for"}}

    def run(self) -> Chain:
        """The adapted chain."""
        if self.method == "auto":
            self._choose_method()
        needs = {"labels": "speakers", "clusters": "sessions", "sessions": "sessions"}.get(self.method, "nothing")
        if KNOWN.index(self.known) > KNOWN.index(needs):
            cause = f"needs {needs} of the target's recordings, and {self.known} is known"
            raise DuopldaError(f"method={self.method!r} {cause}")
        if self.method == "clusters" and isinstance(self.target, Statistics):
            raise DuopldaError("statistics cannot be clustered: give recordings, or use method='sessions'")
        self._survey()
        methods = {
            "labels": self._by_labels,
            "clusters": self._by_clusters,
            "sessions": self._by_sessions,
            "total": self._by_total,
            "centre": self._by_centre,
            "kaldi": self._by_kaldi,
        }
        return self._result(methods[self.method]())

    def _choose_method(self) -> None:
        methods = {
            "speakers": ("labels", "the target's speakers are known"),
            "sessions": ("clusters", "the target's sessions are known"),
            "nothing": ("total", "nothing is known of the target's recordings"),
        }
        self.method, self.story["reasons"]["method"] = methods[self.known]
        if self.method == "clusters" and isinstance(self.target, Statistics):
            self.method = "sessions"
            self._note("statistics cannot be clustered: their sessions alone are used")
        self.story["method"] = self.method

    def _stage(self, name: str, compute: Callable[[], Mapping[str, ArrayLike]]) -> Arrays:
        """The arrays of a stage: those of an earlier run that the observer has kept, or new ones."""
        results = self.observer.stage(name)
        if results is None:
            results = {key: np.asarray(value) for key, value in compute().items()}
            self.observer.stage_done(name, results)
        return results

    # -- passes over the target

    def statistics(self, steps: Steps, n_folds: int = 0, recordings: Recordings | None = None) -> Statistics:
        """Of the target (or of its recordings with other labels) behind some steps.

        Where nothing is known of the recordings, the statistics tell their mean and covariance alone.
        """
        target = recordings or self.target
        if isinstance(target, Statistics):
            return target
        transform = partial(through, steps) if steps else None
        if self.known == "nothing":
            return Statistics.unlabelled(target, transform, device=self.device)
        return Statistics.of(target, transform, n_folds=n_folds, device=self.device)

    def _survey(self) -> None:
        """A first look at the target: its size, and the distance of its mean from the source."""
        steps = self.source.steps_
        plda = self.source.plda_
        raw = self.statistics({})
        n = int(raw.n_recordings)
        first = next(iter(steps.values()), plda)
        if raw.d != first.n_features_in_:
            wanted = first.n_features_in_
            raise DuopldaError(f"the target's vectors have {raw.d} dimensions, the model takes {wanted}")
        _refuse_constant(raw)
        if domain.whitens(self.source):
            seen = domain.Seen(n, n * (_mean(raw) - first.mean_))
        else:
            behind = self.statistics(steps) if steps else raw
            seen = domain.Seen(n, n * (_mean(behind) - to_numpy(plda.mean_)))
        self.raw = raw
        self.domain = domain.measure(self.source, seen, int(raw.n_speakers))
        counts = {"recordings": n}
        if self.known != "nothing":
            counts["sessions"] = int(raw.n_sessions)
        if self.known == "speakers":
            counts["speakers"] = len(raw.speaker_ids)
        self.story |= {"target": counts, "distance": self.domain.distance}

    def _centring(self, n_speakers: float) -> tuple[float, Steps]:
        """How far the mean goes, where it is that of so many speakers, and the steps that are centred so far."""
        if self.centre is not None:
            return self.centre, self._centred(self.centre)
        self.story["reasons"]["centre"] = f"a mean of about {n_speakers:.3g} speakers is partly their own"
        k = levels_of.centring(self.levels, self.domain.distance, n_speakers)
        return k, self._centred(k)

    def _centred(self, k: float) -> Steps:
        """The steps with each centring the part k of the way to the target's mean."""
        steps: Steps = {}
        for name, step in self.source.steps_.items():
            if isinstance(step, Center) and k:
                step = _moved_center(step, self.statistics(steps) if steps else self.raw, k)
            steps[name] = step
        return steps

    # -- methods

    def _by_labels(self) -> Adapted:
        speakers = self.story["target"]["speakers"]
        if speakers < 3:
            remedy = "give more of them, or leave out their labels"
            raise DuopldaError(f"{speakers} labelled speakers are too few to adapt to (at least 3): {remedy}")
        k, steps = self._centring(levels_of.effective_speakers(self.raw))
        stats = self.statistics(steps, FOLDS)
        if not self.weights:
            _, like_source = self._choose_shares(stats, k)
            if like_source:
                return self._to_sessions(stats, steps, k, NOTHING_OF_TARGET)
        return self._to_speakers("labels", stats, steps, k, enough=5)

    def _by_sessions(self) -> Adapted:
        if self.weights or isinstance(self.target, Statistics):
            k, steps = self._centring(self.raw.n_sessions)
            stats = self.statistics(steps, FOLDS)
            if self.weights:
                return self._to_sessions(stats, steps, k, SessionShares(*self.weights))
            if not selection.have_folds(stats):
                remedy = "gather statistics with n_folds=16, or give weights"
                raise DuopldaError(f"held-out sessions choose the shares: {remedy}")
        else:
            clusters = self._partition("source", TRUSTS[0], self._recentred())
            if len(clusters.sizes) < FEWEST_CLUSTERS:
                return self._to_few_clusters(len(clusters.sizes))
            k, steps = self._centring(levels_of.effective_number(clusters.sizes))
            stats = self.statistics(steps, FOLDS, clusters)
        shares, like_source = self._choose_shares(stats, k)
        return self._to_sessions(stats, steps, k, NOTHING_OF_TARGET if like_source else shares)

    def _by_clusters(self) -> Adapted:
        """Partitions by the source, by the shares that clusters choose, and by what came of the best one, compete."""
        source = self._recentred()
        first = self._partition("source", TRUSTS[0], source)
        if len(first.sizes) < FEWEST_CLUSTERS:
            return self._to_few_clusters(len(first.sizes))
        k, steps = self._centring(levels_of.effective_number(first.sizes))
        stats = self.statistics(steps, FOLDS, first)
        shares, like_source = self._choose_shares(stats, k)
        if like_source:
            self.story["target"]["clusters"] = len(first.sizes)
            return self._to_sessions(stats, steps, k, NOTHING_OF_TARGET)
        shared = self._to_sessions(stats, steps, k, shares)
        candidates = [*self._candidates("source", source), *self._candidates("shares", shared)]
        if not candidates:
            self._note("no partition has enough clusters: only the mean is adapted", warn=True)
            return self._to_mean(k)
        best = candidates[selection.best_partition([candidate.trial for candidate in candidates])]
        candidates = [best, *self._candidates("adapted", best)]
        best = candidates[selection.best_partition([candidate.trial for candidate in candidates])]
        self.story["target"]["clusters"] = best.n_clusters
        if best.calibration is None:
            self._note(f"{best.n_clusters} clusters are too few to calibrate with (at least {ENOUGH_CLUSTERS})")
        return best

    def _by_centre(self) -> Adapted:
        known = self.known == "speakers"
        k, _ = self._centring(levels_of.effective_speakers(self.raw) if known else self.raw.n_sessions)
        return self._to_mean(k)

    def _by_total(self) -> Adapted:
        """All levels move halfway, unless the target's mean is one that recordings like the source have."""
        if not self.weights and self.centre is None:
            usual = domain.limit(self.domain.n_dimensions, self.domain.n_recordings, self.domain.n_recordings)
            if self.domain.distance <= usual:
                self._note(
                    f"the target's mean is at a squared distance of {self.domain.distance:.3g} from the source's, and "
                    f"up to {usual:.3g} is usual: the target is taken to be like the source, and nothing is changed"
                )
                return Adapted(self.levels.model, dict(self.source.steps_), 0.0, {"total": 0.0})
        stats, steps, k = self._wholly_centred()
        n = stats.n_recordings
        share = self.weights[0] if self.weights else min(levels_of.LARGEST_SHARE, n / (n + stats.d))
        return Adapted(levels_of.through_total(self.levels, Target.of(stats), share, k), steps, k, {"total": share})

    def _by_kaldi(self) -> Adapted:
        stats, steps, k = self._wholly_centred()
        shares = dict(zip(("within", "between", "mean_diff"), self.weights or (0.3, 0.7, 1.0), strict=False))
        return Adapted(levels_of.kaldi(self.levels, Target.of(stats), **shares), steps, k, shares)

    # -- what the methods share

    def _wholly_centred(self) -> tuple[Statistics, Steps, float]:
        """The target behind steps that are wholly centred on it, unless it was said how far."""
        if self.raw.n_recordings < 2:
            raise DuopldaError("1 recording of the target tells no covariance: give more, hundreds if you can")
        k = 1.0 if self.centre is None else self.centre
        steps = self._centred(k)
        return self.levels.fitting(self.statistics(steps)), steps, k

    def _recentred(self) -> Adapted:
        """The source, with its mean moved as if each session of the target were of another speaker."""
        k, steps = self._centring(self.raw.n_sessions)
        return self._to_sessions(self.statistics(steps), steps, k, NOTHING_OF_TARGET)

    def _to_mean(self, k: float) -> Adapted:
        """The mean moves the part k of the way, and all covariances stay."""
        steps = self._centred(k)
        target = Target.of(self.levels.fitting(self.statistics(steps)))
        return Adapted(self.levels.result(self.levels.moved(target, k)), steps, k)

    def _to_few_clusters(self, n: int) -> Adapted:
        self._note(f"{n} clusters were found, fewer than {FEWEST_CLUSTERS}: only the mean is adapted", warn=True)
        self.story["target"]["clusters"] = n
        k, _ = self._centring(max(n, 1))
        return self._to_mean(k)

    def _to_sessions(self, stats: Statistics, steps: Steps, k: float, shares: SessionShares) -> Adapted:
        """Adapt to sessions whose speakers are not known."""
        target = Target.of(self.levels.fitting(stats))
        return Adapted(levels_of.between(self.levels, target, shares, k), steps, k, shares._asdict())

    def _to_speakers(self, name: str, stats: Statistics, steps: Steps, k: float, enough: int) -> Adapted:
        """Adapt to speakers, or to clusters that stand for them; `enough` of them calibrate the ratios."""
        plda = self.source.plda_
        weights = Shares(*self.weights) if self.weights else None

        def adapted(part: Statistics) -> Model:
            fitting = self.levels.fitting(part)
            return levels_of.labelled(self.levels, Target.of(fitting), weights or levels_of.usual_shares(fitting), k)

        def compute() -> dict[str, Any]:
            trials = TrialOptions(checks.enrolment(plda.enrolment), checks.priors(plda.priors))
            transform = partial(through, steps)
            calibration = selection.calibrate(self.levels, stats, adapted, transform, plda.scales_, trials)
            return {"calibration": np.array(calibration or (), float)}

        shares = weights or levels_of.usual_shares(self.levels.fitting(stats))
        calibration = None
        if not (k or any(shares)):
            self._note("the target counts for nothing: the source stays as it is")
        elif len(stats.speaker_ids) >= enough and selection.have_folds(stats):
            values = self._stage(f"calibration {name}", compute)["calibration"].tolist()
            calibration = selection.HeldOutCalibration(*values) if values else None
        return Adapted(adapted(stats), steps, k, shares._asdict(), calibration)

    def _choose_shares(self, stats: Statistics, k: float) -> tuple[SessionShares, bool]:
        """The shares that those left out choose, and whether the target is like the source."""
        if not selection.have_folds(stats):
            self._note("without folds (Statistics.of(..., n_folds=16)) nothing is chosen by held-out speakers")
            return NOTHING_OF_TARGET, False

        def compute() -> dict[str, Any]:
            return {"shares": np.array(selection.choose_shares(self.levels, stats, k))}

        shares = SessionShares(*self._stage("shares", compute)["shares"].tolist())
        self.story["chosen"] = shares._asdict()
        n_speakers = max(1, int(levels_of.effective_speakers(stats)))
        distance = self.domain.distance
        usual = domain.limit(self.domain.n_dimensions, n_speakers, self.domain.n_recordings)
        like_source = selection.is_like_source(shares, distance, usual)
        if like_source:
            who = "speakers" if self.method == "labels" else "clusters"
            self._note(
                f"held-out {who} choose a share of {shares.noise:g} of the noise (up to {selection.LIKE_SOURCE:g}), "
                f"and the distance of {distance:.3g} is usual (up to {usual:.3g}): the target is taken to be like the "
                "source, whose covariances and calibration stay"
            )
        return shares, like_source

    # -- clusters that stand for speakers

    def _partition(self, name: str, trust: float, adapted: Adapted) -> Relabelled:
        """The recordings with clusters of their sessions, by an adapted model, as speakers."""
        assert isinstance(self.target, Recordings)
        target = self.target

        def compute() -> dict[str, NDArray[Any]]:
            plda = self.source.plda_.with_model(adapted.model)
            plda.scales_ = Scales()
            plda.calibration_ = None
            job = SessionSides(Chain(plda, adapted.steps), labelled=True, device=self.device)
            sides = reduce(Sides.add, (part for _, _, part in target.map(job)))
            clusters = cluster(sides, prior=self.prior, weight=trust)
            order = np.argsort(clusters.ids)
            sessions = clusters.ids[order]
            labels = clusters.labels[order]
            # Its first session names a cluster, so that names do not hang on the order in which clusters were found.
            first = np.unique(labels, return_index=True)[1]
            return {"sessions": sessions, "speakers": sessions[first][labels]}

        if (name, trust) not in self.partitions:
            stage = self._stage(f"partition {name} {trust:g}", compute)
            self.partitions[name, trust] = Relabelled(target, stage["sessions"], stage["speakers"])
        return self.partitions[name, trust]

    def _candidates(self, name: str, model: Adapted) -> list[Adapted]:
        """Adaptations to the partitions that a model finds, as far as these have enough clusters."""
        candidates = []
        for trust in TRUSTS:
            clusters = self._partition(name, trust, model)
            sizes = clusters.sizes
            k, steps = self._centring(levels_of.effective_number(sizes))
            trial = {"by": name, "trust": trust, "clusters": len(sizes)}
            self.story.setdefault("partitions", []).append(trial)
            if len(sizes) < FEWEST_CLUSTERS:
                continue
            key = clusters.speakers.tobytes()
            if key not in self.tried:
                stats = self.statistics(steps, FOLDS, clusters)
                adapted = self._to_speakers(f"{name} {trust:g}", stats, steps, k, ENOUGH_CLUSTERS)
                covered = float(sizes[sizes > 1].sum() / sizes.sum())
                self.tried[key] = replace(adapted, n_clusters=len(sizes), covered=covered)
            candidates.append(self.tried[key])
            if candidates[-1].calibration is not None:
                trial["cost"] = candidates[-1].calibration.cost
        return candidates

    # -- the end

    def _note(self, text: str, warn: bool = False) -> None:
        self.story["notes"].append(text)
        if warn:
            warnings.warn(text, UserWarning, stacklevel=6)

    def _result(self, adapted: Adapted) -> Chain:
        """The new chain. Scales stay; a calibration that the target gives replaces that of the source."""
        source = self.source.plda_
        plda = source.with_model(adapted.model)
        rules = {
            "labels": "by the numbers of speakers, sessions and recordings",
            "clusters": "by the numbers of speakers, sessions and recordings",
            "sessions": "chosen by those who were held out",
            "centre": "the mean alone moves",
        }
        reasons = self.story["reasons"]
        reasons.setdefault("centre", "as the method has it" if self.centre is None else "as given")
        reasons["shares"] = "as given" if self.weights else rules.get(self.method, "as the method has it")
        self.story["centre"] = adapted.centre
        self.story["shares"] = {name: float(share) for name, share in adapted.shares.items()}
        if adapted.calibration is not None:
            scale, offset, cost = adapted.calibration
            plda.calibration_ = AffineCalibration.of(scale, offset)
            plda.cost_ = cost
            what = "clusters" if "clusters" in self.story["target"] else "speakers"
            reason = f"from trials between {what} that were left out of the adaptation in turn"
            self.story["calibration"] = {"scale": scale, "offset": offset, "cost": cost, "reason": reason}
        else:
            reason = "that of the source stays" if plda.calibration_ is not None else "there is none"
            self.story["calibration"] = {"reason": reason}
        if source.adapted_ is not None:
            self.story["before"] = source.adapted_
        plda.adapted_ = self.story
        return Chain(plda, adapted.steps)


def _mean(stats: Statistics) -> NDArray[np.float64]:
    """(d,) of all recordings."""
    sums = zip(stats.blocks, stats.f, strict=True)
    total = sum(to_numpy(f)[columns] for block, f in sums for _, _, columns in block.parts)
    return to_numpy(stats.offset) + total / stats.n_recordings


def _refuse_constant(stats: Statistics) -> None:
    variances = np.diagonal(to_numpy(anova.total_covariance(stats)))
    # Rounding leaves a constant column of numbers near m a variance of about (1e-16 m)^2.
    constant = np.flatnonzero(variances <= 1e-24 * (np.abs(_mean(stats)) + 1e-150) ** 2)
    if len(constant) and stats.n_recordings > 1:
        remedy = "are these vectors of the same extractor?"
        raise DuopldaError(f"columns {some(constant)} of the target are constant: {remedy}")


def _moved_center(step: Center, stats: Statistics, k: float) -> Center:
    """A centring that goes the part k of the way to the target's mean, for each kind that the target has."""
    new = copy(step)
    shift = k * (_mean(stats) - step.mean_)
    new.mean_ = step.mean_ + shift
    new.channel_means_ = step.channel_means_ + shift
    if step.by_channel:
        means = to_numpy(anova.kind_means(stats)) + to_numpy(stats.offset)
        for kind, mean in zip(stats.kinds.tolist(), means, strict=True):
            for row in np.flatnonzero(step.channels_ == kind):
                new.channel_means_[row] = step.channel_means_[row] + k * (mean - step.channel_means_[row])
    return new
