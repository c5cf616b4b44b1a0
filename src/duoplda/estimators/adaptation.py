"""Adapting a back-end to another domain: by labelled recordings, by their sessions alone, or by the recordings alone.

The centring moves first; all that follows happens behind the chain's steps, where the PLDA is. With labels the levels
of the model move towards those of the target (`duoplda.model.adaptation`). With sessions alone, these are put into
clusters, which then are the speakers. Where speakers (or clusters) are enough, some of them are left out of the
adaptation in turn: trials between them choose among partitions into clusters, and calibrate the ratios.

Passes over the recordings: one for the mean (one more for each centring after the first, and one for the distance where
the chain does not whiten), one for statistics; with clusters, two for each of seven partitions at most. What is kept of
all sessions while they are clustered are `ny + nx` numbers each; elsewhere nothing grows with the recordings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from duoplda.arrays import put, to_numpy
from duoplda.data.labels import KNOWN
from duoplda.data.recordings import Recordings, Relabelled, as_recordings
from duoplda.errors import DuopldaError, some
from duoplda.estimators import checks, domain
from duoplda.estimators.preprocessing import Center, through
from duoplda.estimators.sessions import SessionSides
from duoplda.evaluation.calibration import AffineCalibration
from duoplda.model import adaptation as ad
from duoplda.model import anova
from duoplda.model.adaptation import Levels, Shares, Target
from duoplda.model.estep import EStep
from duoplda.model.parameters import Model
from duoplda.model.shrinkage import Scales, scaled
from duoplda.model.statistics import Statistics
from duoplda.selection import decision
from duoplda.trials.clustering import cluster
from duoplda.trials.sides import Sides

Floats = NDArray[np.float64]
Remember = Callable[[str, Callable[[], Mapping[str, Any]]], Mapping[str, Any]]

METHODS = {  # and the number of weights that each takes
    "auto": (),
    "labels": (3,),
    "clusters": (),
    "sessions": (2,),
    "total": (1,),
    "centre": (),
    "coral": (1,),
    "coral+": (1,),
    "kaldi": (2, 3),
    "pooled": (1,),
    "interpolation": (3,),
}
WHY_METHOD = {"speakers": "the target's speakers are known", "sessions": "the target's sessions are known"}
WHY_METHOD["nothing"] = "nothing is known of the target's recordings"
WHY_SHARES = dict.fromkeys(("labels", "clusters"), "by the numbers of speakers, sessions and recordings")
WHY_SHARES |= {"sessions": "chosen by those who were held out", "centre": "the mean alone moves"}
BUCKETS = 16  # into which a pass divides speakers; several of them make a fold
TURNS = 4  # divisions into folds, whose trials are pooled
FEWEST = {"speakers": 3, "clusters": 4}  # to adapt covariances with
ENOUGH = {"speakers": 5, "clusters": 8}  # to calibrate with
LIKE_SOURCE = 0.25  # a share of the noise up to which the target is taken to be like the source: measured .1 and .2
# at home (so762), .4 and .5 elsewhere (cvau, amnist)
# Shares to choose from
NOISE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
BOTH = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
COVERED = 0.75  # of the sessions that another partition puts into clusters of two or more
TRUST = (1.0, 0.5)  # what ratios count against the prior of a partition
# Limits of a calibration
SLOPE = (0.1, 1.0)
OFFSET = 4.0


class Chosen(NamedTuple):
    """Shares of the target that held-out speakers chose."""

    noise: float
    both: float  # of all that is above the noise


NONE = Chosen(0.0, 0.0)


class Calibration(NamedTuple):
    """From trials of speakers that were left out of the adaptation."""

    scale: float
    offset: float
    cost: float


@dataclass(frozen=True, eq=False)
class Adapted:
    """A way to adapt, and what came of it."""

    model: Model
    steps: dict[str, Any]
    k: float
    calibration: Calibration | None
    n_speakers: int  # or clusters
    shares: dict[str, float]
    covered: float = 1.0  # the share of sessions that are not alone in their cluster


@dataclass(eq=False)
class Bare:
    """A PLDA without a back-end around it, for whom the steps are none."""

    plda_: Any
    steps_: dict[str, Any] = field(default_factory=dict)

    @property
    def n_features_in_(self) -> int:
        return int(self.plda_.n_features_in_)

    def enroll(self, X: Any, ids: Any, session: Any, channel: Any, *, device: Any) -> Sides:
        """Sides of the PLDA."""
        return self.plda_.enroll(X, ids, session, channel, device=device)


@dataclass(frozen=True, eq=False)
class Held:
    """A model that has not seen a fold, as `duoplda.selection.decision` takes it."""

    model: Model
    N: Floats

    def __call__(self, _: Any = None) -> Model:
        """The model itself: there is nothing to choose."""
        return self.model


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The models of all folds."""

    parts: list[tuple[None, Held]]
    path: dict[Any, float] = field(default_factory=dict)
    start: None = None  # nothing is shrunk


def _compute(name: str, compute: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    return compute()


def adapt(
    backend: Any,
    X: Any,
    speaker: Any,
    session: Any,
    channel: Any,
    *,
    method: str,
    weights: Any,
    centre: float | None,
    source: Any,
    prior: float,
    device: Any,
    remember: Remember = _compute,
) -> Any:
    """`Backend.adapt`; `remember(name, compute)` may give results of an earlier run instead of computing them."""
    if method not in METHODS:
        raise DuopldaError(f"method={method!r} must be one of {', '.join(METHODS)}")
    numbers = _weights(method, weights)
    if centre is not None and not (isinstance(centre, Real) and 0 <= float(centre) <= 1):
        raise DuopldaError(f"centre={centre!r} must be None, or a number from 0 to 1")
    if (source is not None) != (method == "pooled"):
        raise DuopldaError("method='pooled' needs source, the statistics of the training data, and no other takes it")
    target = _target(X, speaker, session, channel)
    if isinstance(target, Statistics) and backend.steps_:
        raise DuopldaError("statistics are of the PLDA's space: adapt the PLDA, or give recordings to the back-end")
    options = {"weights": numbers, "fixed": centre, "source": source, "prior": prior, "device": device}
    return Adaptation(backend, target, target.known, method, **options, remember=remember)()


def _weights(method: str, weights: Any) -> tuple[float, ...]:
    """The weights that were given; () where a rule finds them."""
    if weights is None:
        if method == "interpolation":
            raise DuopldaError("method='interpolation' needs weights=(speaker, session, noise), from 0 to 1")
        return ()
    try:
        found = tuple(float(w) for w in np.atleast_1d(np.asarray(weights, float)))
    except (TypeError, ValueError):
        found = (float("nan"),)
    if len(found) not in METHODS[method]:
        wanted = " or ".join(map(str, METHODS[method]))
        needs = f"takes {wanted} weights" if wanted else "takes no weights"
        raise DuopldaError(f"weights={weights!r}: method={method!r} {needs}")
    if not all(0 <= w < np.inf for w in found) or (method not in ("pooled", "kaldi") and max(found) > 1):
        raise DuopldaError(f"weights={weights!r} must be numbers from 0 to 1")
    if method == "pooled" and not found[0]:
        raise DuopldaError("weights=0: the target would not count at all")
    return found


def _target(X: Any, speaker: Any, session: Any, channel: Any) -> Recordings | Statistics:
    """Recordings or statistics, which say what is known of them."""
    if isinstance(X, Statistics):
        if X.is_open:
            raise DuopldaError("the statistics have open sessions: join all shards, and close them")
        return X
    return as_recordings(X, speaker, session, channel)


@dataclass(eq=False)
class Adaptation:
    """One back-end on its way to another domain; `story` tells what was done, and why."""

    backend: Any  # the source
    target: Any  # Recordings or Statistics
    known: str
    method: str
    weights: tuple[float, ...] = ()
    fixed: float | None = None  # how far the mean goes, if that was given
    source: Any = None
    prior: float = 0.02
    device: Any = None
    remember: Remember = _compute

    def __post_init__(self) -> None:
        plda = self.backend.plda_
        self.levels = Levels(plda.model_, to_numpy(plda.channel_priors_))
        self.how = decision.ByDecision(checks.enrolment(plda.enrolment), checks.priors(plda.priors))
        self.story: dict[str, Any] = {"method": self.method, "notes": [], "reasons": {"method": "as asked for"}}
        self.tried: dict[bytes, Adapted] = {}  # by partition
        self.found: dict[str, Mapping[str, Any]] = {}  # partitions, by name

    def __call__(self) -> Any:
        """The adapted back-end."""
        method = self.method
        if method == "auto":
            method = {"speakers": "labels", "sessions": "clusters", "nothing": "total"}[self.known]
            if method == "clusters" and isinstance(self.target, Statistics):
                method = "sessions"
                self._note("statistics cannot be clustered: their sessions alone are used")
            self.story["method"] = method
            self.story["reasons"]["method"] = WHY_METHOD[self.known]
        needs = dict.fromkeys(("labels", "interpolation", "pooled"), "speakers")
        needs |= dict.fromkeys(("clusters", "sessions"), "sessions")
        need = needs.get(method, "nothing")
        if KNOWN.index(self.known) > KNOWN.index(need):
            raise DuopldaError(f"method={method!r} needs {need} of the target's recordings, and {self.known} is known")
        if method == "clusters" and isinstance(self.target, Statistics):
            raise DuopldaError("statistics cannot be clustered: give recordings, or use method='sessions'")
        self._first_look()
        found = getattr(self, "_by_" + method.replace("+", "_plus"))()
        return self._result(found)

    # -- passes over the target

    def statistics(self, target: Any, steps: dict[str, Any], n_folds: int = 0) -> Statistics:
        """Of recordings behind some steps; where nothing is known of them, their mean and covariance alone."""
        if isinstance(target, Statistics):
            return target
        transform = partial(through, steps) if steps else None
        if self.known == "nothing":
            return Statistics.unlabelled(target, transform, device=self.device)
        return Statistics.of(target, transform, n_folds=n_folds, device=self.device)

    def _first_look(self) -> None:
        """The target's mean and its distance from the source."""
        raw = self.statistics(self.target, {})
        wanted = self.backend.n_features_in_
        if raw.d != wanted:
            raise DuopldaError(f"the target's vectors have {raw.d} dimensions, the model takes {wanted}")
        _refuse_constant(raw)
        first = next(iter(self.backend.steps_.values()), None)
        n = int(raw.n_recordings)
        if domain.whitens(self.backend):
            seen = domain.Seen(n, n * (_mean(raw) - first.mean_))  # type: ignore[union-attr]
        else:
            behind = self.statistics(self.target, self.backend.steps_) if self.backend.steps_ else raw
            seen = domain.Seen(n, n * (_mean(behind) - to_numpy(self.backend.plda_.mean_)))
        self.raw = raw
        self.domain = domain.measure(self.backend, seen, int(raw.n_speakers))
        self.distance = self.domain.distance
        counts = {"recordings": n}
        if self.known != "nothing":
            counts["sessions"] = int(raw.n_sessions)
        if self.known == "speakers":
            counts["speakers"] = len(raw.speaker_ids)
        self.story |= {"target": counts, "distance": self.distance}

    def way(self, n_speakers: float) -> float:
        """How far the mean goes."""
        if self.fixed is not None:
            return float(self.fixed)
        self.story["reasons"]["centre"] = f"a mean of about {n_speakers:.3g} speakers is partly their own"
        T = self.levels.B + self.levels.S + np.tensordot(self.levels.priors, self.levels.N, 1)
        return ad.centring(self.distance, float(np.trace(np.linalg.solve(T, self.levels.B))), n_speakers)

    def centred(self, k: float) -> dict[str, Any]:
        """The steps with each centring the part k of the way to the target's mean."""
        steps: dict[str, Any] = {}
        for name, step in self.backend.steps_.items():
            if isinstance(step, Center) and k:
                step = _moved(step, self.statistics(self.target, steps) if steps else self.raw, k)
            steps[name] = step
        return steps

    def chain(self, model: Model, steps: dict[str, Any]) -> Any:
        """The back-end with other steps and another model, without scales and calibration."""
        chain = copy(self.backend)
        plda = copy(self.backend.plda_)
        plda._keep(model, plda.channel_priors_)
        plda.scales_ = Scales()
        plda.calibration_ = None
        chain.steps_ = steps
        chain.plda_ = plda
        return chain

    def partition(self, name: str, model: Model, steps: dict[str, Any], trust: float) -> Relabelled:
        """The recordings with clusters of their sessions as speakers."""

        def compute() -> dict[str, Any]:
            sides: Any = None
            for _, _, part in self.target.map(
                SessionSides(self.chain(model, steps), labelled=True, device=self.device)
            ):
                sides = part if sides is None else sides.add(part)
            found = cluster(sides, prior=self.prior, weight=trust)
            order = np.argsort(found.ids)
            labels = found.labels[order]
            first = np.unique(labels, return_index=True)[1]  # the first session names a cluster, whatever their order
            return {"sessions": found.ids[order], "speakers": found.ids[order][first][labels]}

        if (key := f"partition {name} {trust:g}") not in self.found:
            self.found[key] = self.remember(key, compute)
        found = self.found[key]
        return Relabelled(self.target, found["sessions"], found["speakers"])

    # -- shares of the target

    def _fitting(self, stats: Statistics) -> Statistics:
        return ad.fitting(self.levels.model, stats)

    def labelled(self, stats: Statistics, k: float, shares: Shares | None = None) -> Model:
        """The model moved by the levels of labelled recordings."""
        own = self._fitting(stats)
        return ad.labelled(self.levels, Target.of(own), shares or ad.usual_shares(own), k)

    def shared(self, stats: Statistics, k: float, at: Chosen) -> Model:
        """The model moved by its noise, and by all above it together."""
        return ad.between(self.levels, Target.of(self._fitting(stats)), *at, k)

    def chosen(self, stats: Statistics, k: float) -> Chosen:
        """What `choose` gives, or gave."""
        found = self.remember("shares", lambda: {"shares": np.array(self.choose(stats, k))})
        return Chosen(*found["shares"].tolist())

    def choose(self, stats: Statistics, k: float) -> Chosen:
        """The shares under which speakers (or clusters) that are left out are the most likely.

        Where each session is a speaker, held-out sessions tell of the noise alone: the other share is half as large.
        Where the noise is not told apart, all levels move with the total covariance, by one share. Nothing is chosen
        where all are in one fold.
        """
        if not _have_folds(stats):
            return NONE
        free = stats.n_sessions > stats.n_speakers
        parts = []
        for fold, rest in _folds(stats):
            parts.append((EStep(self._fitting(fold)), Target.of(self._fitting(rest))))
        values: dict[Chosen, float] = {}

        def value(at: Chosen) -> float:
            if at not in values:
                models = ((e, ad.between(self.levels, target, *at, k)) for e, target in parts)
                models = ((e, _placed(ad.like(m, e.stats, self.levels.priors), e)) for e, m in models)
                values[at] = sum(e.ln_likelihood(m) for e, m in models)
            return values[at]

        if any(target.noise is None or target.both is None for _, target in parts):
            a = max(NOISE, key=lambda a: value(Chosen(a, a)))
            return Chosen(a, a)
        if not free:
            return max((Chosen(a, a / 2) for a in NOISE), key=value)
        at = Chosen(0.2, 0.1)
        before = None
        while at != before:
            before = at
            at = max((at._replace(noise=a) for a in NOISE), key=value)
            at = max((at._replace(both=b) for b in BOTH), key=value)
        return at

    # -- trials of those who are left out

    def calibrated(
        self, stats: Statistics, steps: dict[str, Any], model_of: Callable[[Statistics], Model]
    ) -> Calibration | None:
        """Scale and offset of the ratios from trials of speakers that `model_of` has not seen; None: there are none."""
        found = []
        scales = self.backend.plda_.scales_
        n_folds = _n_folds(stats)
        infer = self.levels.model.K > 1 and self._fitting(stats).K == 1
        how = replace(self.how, infer=infer, transform=lambda X, kind, fold: through(steps, X, None if infer else kind))
        for turn in range(TURNS):
            folds = stats.regrouped(n_folds, turn)
            parts: list[tuple[None, Held]] = []
            for _, rest in _folds(stats, turn):
                N = self._fitting(rest).N
                N = N if len(N) == self.levels.model.K else self.levels.priors
                parts.append((None, Held(scaled(model_of(rest), scales), N)))
            trials = decision.HeldOutTrials(how, folds, HeldOut(parts))  # type: ignore[arg-type]
            if trials.folds:
                found.append((*trials.scores(lambda held: held()), trials.weight))  # type: ignore[call-arg]
        if not found:
            return None
        tar, non, weight = (np.concatenate(each) for each in zip(*found, strict=True))
        return bounded(tar, non, self.how.priors, weight)

    # -- methods

    def _by_labels(self) -> Adapted:
        speakers = self.story["target"]["speakers"]
        if speakers < FEWEST["speakers"]:
            remedy = "give more of them, or leave out their labels"
            raise DuopldaError(f"{speakers} labelled speakers are too few to adapt to (at least 3): {remedy}")
        k = self.way(ad.effective_speakers(self.raw))
        return self._adapted("labels", self.target, self.centred(k), k, "speakers")

    _by_interpolation = _by_labels

    def _adapted(self, name: str, target: Any, steps: dict[str, Any], k: float, what: str) -> Adapted:
        """By labels, true ones or clusters."""
        stats = self.statistics(target, steps, BUCKETS)
        n = len(stats.speaker_ids)
        shares = Shares(*self.weights) if self.weights else None
        used = shares or ad.usual_shares(self._fitting(stats))
        model = self.labelled(stats, k, shares)
        if not self.weights and what == "speakers" and (near := self._like_source(stats, steps, k)) is not None:
            return near
        calibration = None
        if not (k or any(used)):
            self._note("the target counts for nothing: the source stays as it is")
        elif n >= ENOUGH[what] and _have_folds(stats):

            def compute() -> dict[str, Any]:
                found = self.calibrated(stats, steps, lambda rest: self.labelled(rest, k, shares))
                return {"calibration": np.array(found or (), float)}

            values = self.remember(f"calibration {name}", compute)["calibration"].tolist()
            calibration = Calibration(*values) if values else None
        return Adapted(model, steps, k, calibration, n, used._asdict())

    def _like_source(self, stats: Statistics, steps: dict[str, Any], k: float) -> Adapted | None:
        """What the target changes where it is like the source: next to nothing."""
        if not _have_folds(stats):
            self._note("without folds (Statistics.of(..., n_folds=16)) nothing is chosen by held-out speakers")
            return None
        at = self.chosen(stats, k)
        self.story["chosen"] = at._asdict()
        if not self._is_home(at, ad.effective_speakers(stats)):
            return None
        return Adapted(self.shared(stats, k, NONE), steps, k, None, len(stats.speaker_ids), NONE._asdict())

    def _is_home(self, at: Chosen, n_speakers: float) -> bool:
        """Whether the target is like the source, by what held-out speakers chose and by its mean."""
        usual = domain.limit(self.domain.n_dimensions, max(1, int(n_speakers)), self.domain.n_recordings)
        if at.noise > LIKE_SOURCE or self.distance > usual:
            return False
        who = "speakers" if self.story["method"] == "labels" else "clusters"
        self._note(
            f"held-out {who} choose a share of {at.noise:g} of the noise (up to {LIKE_SOURCE:g}), and the distance of "
            f"{self.distance:.3g} is usual (up to {usual:.3g}): the target is taken to be like the source, whose "
            "covariances and calibration stay"
        )
        return True

    def _by_sessions(self) -> Adapted:
        if self.weights or isinstance(self.target, Statistics):
            k = self.way(self.raw.n_sessions)
            steps = self.centred(k)
            stats = self.statistics(self.target, steps, BUCKETS)
            if self.weights:
                at = Chosen(*self.weights)
            elif _have_folds(stats):
                at = self.chosen(stats, k)
            else:
                remedy = "gather statistics with n_folds=16, or give weights"
                raise DuopldaError(f"held-out sessions choose the shares: {remedy}")
            self.story["chosen"] = at._asdict()
            at = NONE if not self.weights and self._is_home(at, self.raw.n_sessions) else at
            return Adapted(self.shared(stats, k, at), steps, k, None, 0, at._asdict())
        start = self._clustered()
        if isinstance(start, Adapted):
            return start
        stats, steps, k = start
        at = self.chosen(stats, k)
        self.story["chosen"] = at._asdict()
        at = NONE if self._is_home(at, ad.effective_speakers(stats)) else at
        return Adapted(self.shared(stats, k, at), steps, k, None, len(stats.speaker_ids), at._asdict())

    def _clustered(self) -> Adapted | tuple[Statistics, dict[str, Any], float]:
        """Statistics of a first partition, by the source; or the mean alone, where clusters are too few."""
        k = self.way(self.raw.n_sessions)
        steps = self.centred(k)
        self._start = self.shared(self.statistics(self.target, steps), k, NONE), steps
        first = self.partition("source", *self._start, TRUST[0])
        n = len(np.unique(first.speakers))
        if n < FEWEST["clusters"]:
            self._note(f"{n} clusters were found, fewer than {FEWEST['clusters']}: only the mean is adapted", warn=True)
            self.story["target"]["clusters"] = n
            return self._centred_by(self.way(max(n, 1)))
        k = self.way(_effective(first))
        steps = self.centred(k)
        return self.statistics(first, steps, BUCKETS), steps, k

    def _by_clusters(self) -> Adapted:
        start = self._clustered()
        if isinstance(start, Adapted):
            return start
        stats, steps, k = start
        if (near := self._like_source(stats, steps, k)) is not None:
            self.story["target"]["clusters"] = near.n_speakers
            return near
        at = Chosen(**self.story["chosen"]) if "chosen" in self.story else NONE
        second = self.shared(stats, k, at), steps
        rounds: list[dict[str, Any]] = []
        found = [
            self._try(name, *model, trust, rounds)
            for name, model in (("source", self._start), ("shares", second))
            for trust in TRUST
        ]
        best = _best([each for each in found if each is not None])
        if best is None:
            self._note("no partition has enough clusters: only the mean is adapted", warn=True)
            return self._centred_by(k)
        found = [self._try("adapted", best.model, best.steps, trust, rounds) for trust in TRUST]
        best = _best([best, *(each for each in found if each is not None)])
        assert best is not None
        self.story |= {"partitions": rounds}
        self.story["target"]["clusters"] = best.n_speakers
        if best.calibration is None:
            self._note(f"{best.n_speakers} clusters are too few to calibrate with (at least {ENOUGH['clusters']})")
        return best

    def _try(self, name: str, model: Model, steps: dict[str, Any], trust: float, rounds: list[Any]) -> Adapted | None:
        """Adapt to clusters that a model finds; None: they are too few."""
        target = self.partition(name, model, steps, trust)
        n = len(np.unique(target.speakers))
        k = self.way(_effective(target))
        rounds.append({"by": name, "trust": trust, "clusters": n})
        if n < FEWEST["clusters"]:
            return None
        same = self.tried.get(key := target.speakers.tobytes())
        if same is None:
            found = self._adapted(f"{name} {trust:g}", target, self.centred(k), k, "clusters")
            same = self.tried[key] = replace(found, covered=_covered(target))
        if same.calibration is not None:
            rounds[-1]["cost"] = same.calibration.cost
        return same

    def _by_centre(self) -> Adapted:
        n = ad.effective_speakers(self.raw) if self.known == "speakers" else self.raw.n_sessions
        return self._centred_by(self.way(n))

    def _centred_by(self, k: float) -> Adapted:
        steps = self.centred(k)
        target = Target.of(self._fitting(self.statistics(self.target, steps)))
        return Adapted(self.levels.result(self.levels.moved(target, k)), steps, k, None, 0, {})

    def _behind(self) -> tuple[Target, dict[str, Any], float, Statistics]:
        """The target behind steps that are wholly centred on it, unless it was said how far."""
        if self.raw.n_recordings < 2:
            raise DuopldaError("1 recording of the target tells no covariance: give more, hundreds if you can")
        k = 1.0 if self.fixed is None else float(self.fixed)
        steps = self.centred(k)
        stats = self._fitting(self.statistics(self.target, steps))
        return Target.of(stats), steps, k, stats

    def _by_total(self) -> Adapted:
        if not self.weights and self.fixed is None and self._at_home():
            return Adapted(self.levels.model, dict(self.backend.steps_), 0.0, None, 0, {"total": 0.0})
        target, steps, k, stats = self._behind()
        share = self.weights[0] if self.weights else min(ad.MOST, stats.n_recordings / (stats.n_recordings + stats.d))
        return Adapted(ad.through_total(self.levels, target, share, k), steps, k, None, 0, {"total": share})

    def _at_home(self) -> bool:
        """Whether the target's mean is one that recordings like the source have: their covariance would only harm."""
        usual = domain.limit(self.domain.n_dimensions, self.domain.n_recordings, self.domain.n_recordings)
        if self.distance > usual:
            return False
        self._note(
            f"the target's mean is at a squared distance of {self.distance:.3g} from the source's, and up to "
            f"{usual:.3g} is usual: the target is taken to be like the source, and nothing is changed"
        )
        return True

    def _by_coral(self) -> Adapted:
        target, steps, k, _ = self._behind()
        share = self.weights[0] if self.weights else 1.0
        return Adapted(ad.through_total(self.levels, target, share, k), steps, k, None, 0, {"total": share})

    def _by_coral_plus(self) -> Adapted:
        target, steps, k, _ = self._behind()
        share = self.weights[0] if self.weights else 1.0
        return Adapted(ad.coral_plus(self.levels, target, share, k), steps, k, None, 0, {"total": share})

    def _by_kaldi(self) -> Adapted:
        target, steps, k, _ = self._behind()
        given = dict(zip(("within", "between", "mean_diff"), self.weights or (0.3, 0.7, 1.0), strict=False))
        return Adapted(ad.kaldi(self.levels, target, **given), steps, k, None, 0, given)

    def _by_pooled(self) -> Adapted:
        """EM on the source's statistics and the target's, which count for `weights` times as much."""
        plda = self.backend.plda_
        given = self.source
        if isinstance(given, Recordings):
            given = Statistics.of(given, partial(through, self.backend.steps_), device=self.device)
        if not isinstance(given, Statistics):
            raise DuopldaError(f"source must be Statistics or Recordings, got {type(given).__name__}")
        k = self.way(self.raw.n_speakers)
        steps = self.centred(k)
        weight = self.weights[0] if self.weights else 1.0
        stats = self._fitting(replace(self.statistics(self.target, steps), folds=(), sample=None))
        both = Statistics.sum([replace(self._fitting(given), folds=(), sample=None), weight * stats])
        amount = tuple(plda.shrinkage_) if hasattr(plda, "shrinkage_") else None
        ranks = {"n_speaker_factors": plda.model_.ny, "n_session_factors": plda.model_.nx}
        new = replace(plda, shrinkage=amount, n_channels=None, model=None, callback=None, **ranks).fit_statistics(both)
        return Adapted(new.model_, steps, k, None, 0, {"target": weight})

    # -- the end

    def _note(self, text: str, warn: bool = False) -> None:
        self.story["notes"].append(text)
        if warn:
            warnings.warn(text, UserWarning, stacklevel=6)

    def _result(self, found: Adapted) -> Any:
        """The new back-end. Scales stay; a calibration that the target gives replaces that of the source."""
        source = self.backend.plda_
        backend = copy(self.backend)
        plda = copy(source)
        plda._keep(found.model, plda.channel_priors_)
        reasons = self.story["reasons"]
        reasons.setdefault("centre", "as the method has it" if self.fixed is None else "as given")
        reasons["shares"] = "as given" if self.weights else WHY_SHARES.get(self.story["method"], "as the method has it")
        self.story |= {"centre": found.k, "shares": {name: float(share) for name, share in found.shares.items()}}
        if found.calibration is not None:
            scale, offset, cost = found.calibration
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
        backend.steps_ = found.steps
        backend.plda_ = plda
        return backend


def _best(found: list[Adapted]) -> Adapted | None:
    """That of the lowest cost of held-out trials; that of the most clusters, if none has a cost.

    Clusters of none but obvious pairs would cost little: partitions that leave many more sessions alone do not compete.
    """
    with_cost = [each for each in found if each.calibration is not None]
    if with_cost:
        most = max(each.covered for each in with_cost)
        with_cost = [each for each in with_cost if each.covered >= COVERED * most]
        return min(with_cost, key=lambda each: each.calibration.cost)  # type: ignore[union-attr]
    return max(found, key=lambda each: each.n_speakers) if found else None


def bounded(tar: Floats, non: Floats, priors: Any, weight: Floats) -> Calibration:
    """The calibration of lowest cost among those whose scale and offset are within limits.

    The cost is convex: where the best scale is beyond a limit, the best one within is that limit, and so is the offset.
    """
    _, (scale, offset) = decision.calibrate(tar, non, priors, weight)
    if not SLOPE[0] <= scale <= SLOPE[1]:
        scale = float(np.clip(scale, *SLOPE))
        offset = decision.best_offset(scale * tar, scale * non, priors, weight)

    def value(scale: float) -> float:
        return decision.cost(tar, non, scale, offset, priors, weight)

    if abs(offset) > OFFSET:
        offset = float(np.clip(offset, -OFFSET, OFFSET))
        between = minimize_scalar(value, bounds=SLOPE, method="bounded").x
        scale = min((*SLOPE, float(between)), key=value)
    return Calibration(float(scale), float(offset), value(scale))


def _placed(model: Model, step: EStep) -> Model:
    """A model of the host where the statistics of an E-step are."""
    return replace(model, **{name: put(getattr(model, name), step.stats.offset) for name in ("mu", "V", "U", "W")})


def _n_folds(stats: Statistics) -> int:
    """Folds of three speakers or more, at most five."""
    return int(np.clip(len(stats.speaker_ids) // 3, 2, 5))


def _have_folds(stats: Statistics) -> bool:
    return sum(len(f.speaker_ids) > 0 for f in stats.folds) > 1


def _folds(stats: Statistics, turn: int = 0) -> Iterator[tuple[Statistics, Statistics]]:
    """Each fold, and the rest."""
    folds = [replace(fold, sample=None) for fold in stats.regrouped(_n_folds(stats), turn).folds]
    for i, fold in enumerate(folds):
        yield fold, Statistics.sum([f for j, f in enumerate(folds) if j != i])


def _mean(stats: Statistics) -> Floats:
    """(d,) of all recordings."""
    total = sum(to_numpy(f)[of] for b, f in zip(stats.blocks, stats.f, strict=True) for _, _, of in b.parts)
    return to_numpy(stats.offset) + total / stats.n_recordings


def _effective(target: Relabelled) -> float:
    """The number of clusters, those with few sessions counting for less."""
    n = np.unique(target.speakers, return_counts=True)[1].astype(float)
    return float(n.sum() ** 2 / np.sum(n**2))


def _covered(target: Relabelled) -> float:
    """The share of sessions that are not alone in their cluster."""
    n = np.unique(target.speakers, return_counts=True)[1]
    return float(n[n > 1].sum() / n.sum())


def _refuse_constant(stats: Statistics) -> None:
    spread = np.diagonal(to_numpy(anova.total_covariance(stats)))
    constant = np.flatnonzero(spread <= 1e-24 * (np.abs(_mean(stats)) + 1e-150) ** 2)
    if len(constant) and stats.n_recordings > 1:
        remedy = "are these vectors of the same extractor?"
        raise DuopldaError(f"columns {some(constant)} of the target are constant: {remedy}")


def _moved(step: Center, stats: Statistics, k: float) -> Center:
    """A centring that goes the part k of the way to the target's mean, for each kind that the target has."""
    new = copy(step)
    shift = k * (_mean(stats) - step.mean_)
    new.mean_ = step.mean_ + shift
    new.channel_means_ = step.channel_means_ + shift
    if step.by_channel:
        means = to_numpy(anova.kind_means(stats)) + to_numpy(stats.offset)
        for kind, mean in zip(stats.kinds.tolist(), means, strict=True):
            for at in np.flatnonzero(step.channels_ == kind):
                new.channel_means_[at] = step.channel_means_[at] + k * (mean - step.channel_means_[at])
    return new
