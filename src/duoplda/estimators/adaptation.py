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
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
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
from duoplda.observer import SILENT, Observer
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
    numbers: tuple[float, ...] = ()  # a rule finds the weights
    if weights is not None:
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
    fixed = None if centre is None else float(centre)
    return Adaptation(source, target, method, numbers, fixed, prior, device, observer).run()


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
        # By the clusters of all sessions: two models may find the same ones.
        self.tried: dict[bytes, tuple[selection.PartitionTrial, Adapted]] = {}
        self.story: dict[str, Any] = {"method": self.method, "notes": [], "reasons": {"method": "as asked for"}}

    def run(self) -> Chain:
        """The adapted chain."""
        is_statistics = isinstance(self.target, Statistics)
        if self.method == "auto":
            methods_by_labels = {
                "speakers": ("labels", "the target's speakers are known"),
                "sessions": ("clusters", "the target's sessions are known"),
                "nothing": ("total", "nothing is known of the target's recordings"),
            }
            self.method, self.story["reasons"]["method"] = methods_by_labels[self.known]
            if self.method == "clusters" and is_statistics:
                self.method = "sessions"
                self._note("statistics cannot be clustered: their sessions alone are used")
            self.story["method"] = self.method
        needs = {"labels": "speakers", "clusters": "sessions", "sessions": "sessions"}.get(self.method, "nothing")
        if KNOWN.index(self.known) > KNOWN.index(needs):
            cause = f"needs {needs} of the target's recordings, and {self.known} is known"
            raise DuopldaError(f"method={self.method!r} {cause}")
        if self.method == "clusters" and is_statistics:
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
        mean = _mean(raw)
        variances = np.diagonal(to_numpy(anova.total_covariance(raw)))
        # Rounding leaves a constant column of numbers near m a variance of about (1e-16 m)^2.
        constant = np.flatnonzero(variances <= 1e-24 * (np.abs(mean) + 1e-150) ** 2)
        if len(constant) and n > 1:
            remedy = "are these vectors of the same extractor?"
            raise DuopldaError(f"columns {some(constant)} of the target are constant: {remedy}")
        if domain.whitens(self.source):
            seen = domain.Seen(n, n * (mean - first.mean_))
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

    def _centring(self, n_speakers: float | None) -> tuple[float, Steps]:
        """How far the mean goes, where it is that of so many speakers, and the steps that are centred so far.

        Without a number of speakers, the mean goes all the way to the target's. A `centre` that was given decides.
        """
        if self.centre is not None:
            k = self.centre
        elif n_speakers is None:
            k = 1.0
        else:
            self.story["reasons"]["centre"] = f"a mean of about {n_speakers:.3g} speakers is partly their own"
            k = levels_of.centring(self.levels, self.domain.distance, n_speakers)
        steps: Steps = {}
        for name, step in self.source.steps_.items():
            if isinstance(step, Center) and k:
                step = _moved_center(step, self.statistics(steps) if steps else self.raw, k)
            steps[name] = step
        return k, steps

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
        """By given weights, or by those that held-out sessions choose; of recordings, clusters are held out."""
        if not self.weights and not isinstance(self.target, Statistics):
            return self._by_clusters()
        k, steps = self._centring(self.raw.n_sessions)
        stats = self.statistics(steps, FOLDS)
        if self.weights:
            return self._to_sessions(stats, steps, k, SessionShares(*self.weights))
        if not selection.have_folds(stats):
            remedy = "gather statistics with n_folds=16, or give weights"
            raise DuopldaError(f"held-out sessions choose the shares: {remedy}")
        shares, like_source = self._choose_shares(stats, k)
        return self._to_sessions(stats, steps, k, NOTHING_OF_TARGET if like_source else shares)

    def _by_clusters(self) -> Adapted:
        """Partitions by the source, by the shares that clusters choose, and by what came of the best one, compete.

        With method="sessions" clusters choose the shares, and no more than that.
        """
        # The source finds the first clusters, with its mean moved as if each session were of another speaker.
        k, steps = self._centring(self.raw.n_sessions)
        source = self._to_sessions(self.statistics(steps), steps, k, NOTHING_OF_TARGET)
        first = self._partition("source", TRUSTS[0], source)
        n = len(first.sizes)
        if n < FEWEST_CLUSTERS:
            self._note(f"{n} clusters were found, fewer than {FEWEST_CLUSTERS}: only the mean is adapted", warn=True)
            self.story["target"]["clusters"] = n
            return self._to_mean(*self._centring(max(n, 1)))
        k, steps = self._centring(levels_of.effective_number(first.sizes))
        stats = self.statistics(steps, FOLDS, first)
        shares, like_source = self._choose_shares(stats, k)
        shared = self._to_sessions(stats, steps, k, NOTHING_OF_TARGET if like_source else shares)
        if self.method == "sessions":
            return shared
        if like_source:
            self.story["target"]["clusters"] = n
            return shared
        candidates = [*self._candidates("source", source), *self._candidates("shares", shared)]
        if not candidates:
            self._note("no partition has enough clusters: only the mean is adapted", warn=True)
            return self._to_mean(k, steps)
        best_trial = candidates[selection.best_partition([trial for trial, _ in candidates])]
        candidates = [best_trial, *self._candidates("adapted", best_trial[1])]
        trial, best = candidates[selection.best_partition([trial for trial, _ in candidates])]
        self.story["target"]["clusters"] = trial.n_clusters
        if best.calibration is None:
            self._note(f"{trial.n_clusters} clusters are too few to calibrate with (at least {ENOUGH_CLUSTERS})")
        return best

    def _by_centre(self) -> Adapted:
        known = self.known == "speakers"
        return self._to_mean(*self._centring(levels_of.effective_speakers(self.raw) if known else self.raw.n_sessions))

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
        k, steps = self._centring(None)
        return self.levels.fitting(self.statistics(steps)), steps, k

    def _to_mean(self, k: float, steps: Steps) -> Adapted:
        """The mean moves the part k of the way, and all covariances stay."""
        target = Target.of(self.levels.fitting(self.statistics(steps)))
        return Adapted(self.levels.result(self.levels.moved(target, k)), steps, k)

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

        shares = weights or levels_of.usual_shares(self.levels.fitting(stats))
        calibration = None
        if not (k or any(shares)):
            self._note("the target counts for nothing: the source stays as it is")
        elif len(stats.speaker_ids) >= enough and selection.have_folds(stats):
            kept = self.observer.stage(f"calibration {name}")
            if kept is None:
                trials = TrialOptions(checks.enrolment(plda.enrolment), checks.priors(plda.priors))
                transform = partial(through, steps)
                calibration = selection.calibrate(self.levels, stats, adapted, transform, plda.scales_, trials)
                self.observer.stage_done(f"calibration {name}", {"calibration": np.array(calibration or (), float)})
            elif kept["calibration"].size:
                calibration = selection.HeldOutCalibration(*kept["calibration"].tolist())
        return Adapted(adapted(stats), steps, k, shares._asdict(), calibration)

    def _choose_shares(self, stats: Statistics, k: float) -> tuple[SessionShares, bool]:
        """The shares that those left out choose, and whether the target is like the source."""
        if not selection.have_folds(stats):
            self._note("without folds (Statistics.of(..., n_folds=16)) nothing is chosen by held-out speakers")
            return NOTHING_OF_TARGET, False
        kept = self.observer.stage("shares")
        if kept is None:
            kept = {"shares": np.array(selection.choose_shares(self.levels, stats, k))}
            self.observer.stage_done("shares", kept)
        shares = SessionShares(*kept["shares"].tolist())
        self.story["chosen"] = shares._asdict()
        n_speakers = max(1, int(levels_of.effective_speakers(stats)))
        distance = self.domain.distance
        usual = domain.limit(self.domain.n_dimensions, n_speakers, self.domain.n_recordings)
        like_source = shares.noise <= selection.LIKE_SOURCE and distance <= usual
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
        if (name, trust) in self.partitions:
            return self.partitions[name, trust]
        kept = self.observer.stage(f"partition {name} {trust:g}")
        if kept is None:
            plda = self.source.plda_.with_model(adapted.model)
            plda.scales_ = Scales()
            plda.calibration_ = None
            job = SessionSides(Chain(plda, adapted.steps), labelled=True, device=self.device)
            sides = reduce(Sides.add, (part for _, _, part in self.target.map(job)))
            clusters = cluster(sides, prior=self.prior, weight=trust)
            order = np.argsort(clusters.ids)
            sessions = clusters.ids[order]
            labels = clusters.labels[order]
            # Its first session names a cluster, so that names do not hang on the order in which clusters were found.
            first = np.unique(labels, return_index=True)[1]
            kept = {"sessions": sessions, "speakers": sessions[first][labels]}
            self.observer.stage_done(f"partition {name} {trust:g}", kept)
        self.partitions[name, trust] = Relabelled(self.target, kept["sessions"], kept["speakers"])
        return self.partitions[name, trust]

    def _candidates(self, name: str, model: Adapted) -> list[tuple[selection.PartitionTrial, Adapted]]:
        """Adaptations to the partitions that a model finds, as far as these have enough clusters."""
        candidates = []
        for trust in TRUSTS:
            clusters = self._partition(name, trust, model)
            sizes = clusters.sizes
            k, steps = self._centring(levels_of.effective_number(sizes))
            told = {"by": name, "trust": trust, "clusters": len(sizes)}
            self.story.setdefault("partitions", []).append(told)
            if len(sizes) < FEWEST_CLUSTERS:
                continue
            key = clusters.speakers.tobytes()
            if key not in self.tried:
                stats = self.statistics(steps, FOLDS, clusters)
                adapted = self._to_speakers(f"{name} {trust:g}", stats, steps, k, ENOUGH_CLUSTERS)
                cost = None if adapted.calibration is None else adapted.calibration.cost
                covered = float(sizes[sizes > 1].sum() / sizes.sum())
                self.tried[key] = selection.PartitionTrial(cost, covered, len(sizes)), adapted
            candidates.append(self.tried[key])
            if self.tried[key][0].cost is not None:
                told["cost"] = self.tried[key][0].cost
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
