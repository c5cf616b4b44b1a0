"""Adapting a back-end to another domain by recordings whose speakers, or whose sessions, are known, or neither.

The mean that the first step subtracts moves first; all that follows is about recordings after the steps, which is what
the PLDA sees. If the speakers of the target are known, the levels of the model move towards those of the target
(`duoplda.model.adaptation`). If only sessions are known, they are put into clusters, which then count as speakers. If
there are enough speakers (or clusters), some of them are left out of the adaptation in turn: they choose among
partitions into clusters, and calibrate the ratios (`duoplda.selection.adaptation`).

The recordings are read once for the mean, once more for each centring after the first, and once for the distance if the
chain does not whiten; then once for statistics. If nothing is known of them, they are also read for a sample, and with
clusters twice for each of at most seven partitions. While sessions are clustered, `ny + nx` numbers of each are in
memory; nothing else grows with the number of recordings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, Device, on_device
from duoplda.data.labels import KNOWN
from duoplda.data.recordings import Recordings, Relabelled, as_recordings
from duoplda.errors import DuopldaError
from duoplda.estimators import checks
from duoplda.estimators.preprocessing import through
from duoplda.estimators.sessions import Enroll, SessionSides
from duoplda.estimators.target import Steps, TargetPasses
from duoplda.evaluation.calibration import AffineCalibration, StructureCalibration
from duoplda.model import adaptation as levels_of
from duoplda.model.adaptation import Move, SessionShares, Shares, Target, labelled
from duoplda.model.parameters import Model
from duoplda.model.sample import few
from duoplda.model.shrinkage import Scales
from duoplda.model.statistics import Statistics
from duoplda.observer import SILENT, Arrays, Observer
from duoplda.selection import adaptation as selection
from duoplda.selection.decision import TrialOptions, know_occasions
from duoplda.trials.clustering import cluster
from duoplda.trials.sides import Sides

if TYPE_CHECKING:
    from duoplda.estimators.plda import PLDA, ScoresTrials

Source = TypeVar("Source", bound="ScoresTrials")

METHODS: dict[str, tuple[int, ...]] = {  # the numbers of weights that each method takes
    "auto": (),
    "labels": (3,),
    "clusters": (),
    "sessions": (2,),
    "total": (1,),
    "centre": (),
    "kaldi": (2, 3),
}
# If nothing is known, this many recordings teach as much about covariances as one labelled speaker. With 1 instead of
# 10, 28 of the 39 cells with 3 to 10 speakers of the table in docs/adaptation.md were worse than no adaptation.
RECORDINGS_OF_A_SPEAKER = 10
# Clusters of a sample of this many recordings count as speakers, which tells how far the mean of the target scatters.
# With 150, the mean of the nine speakers of cvau would seem to scatter a third more than it does.
RECORDINGS_TO_CLUSTER = 300
# The mean of a few speakers who are like the source's may be this many times as far away as it is on average.
USUAL_SCATTER = 2.0
FEWEST_CLUSTERS = 4  # of several sessions, to adapt covariances to: fewer tell next to nothing of how speakers differ
# This share of the sessions must be in clusters of several: a single session is of a new speaker, or separated from
# its own. With one half also for few clusters, drawn sessions of 10 speakers that varied three times as much did harm.
LEAST_IN_COMPANY = 0.75
LEAST_OF_MANY = 0.5
MANY_CLUSTERS = 16
FEWEST_OF_TRIALS = 5  # speakers or clusters: ways to adapt to fewer are not compared by trials between them
ENOUGH_CLUSTERS = 8  # to calibrate with: more than labelled speakers (5), because some clusters are wrong
# Weights of the ratios against the prior of a partition; 0.5, as the ratios of an unadapted model are too large.
TRUSTS = (1.0, 0.5)
ODDS = (1.0, 2.0, 4.0)  # factors on the odds of the usual shares: at most .8 of sessions and noise; trials choose
FOLDS = 16  # the parts into which a pass divides speakers by their names; those left out together are several parts


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model that is adapted in one way, and how good it is."""

    model: Model
    steps: Steps
    centre: float  # how far the mean moved, from 0 to 1
    shares: Mapping[str, float] = field(default_factory=dict)  # of the target, by level
    calibration: selection.HeldOutCalibration | None = None
    chosen: Mapping[str, float] = field(default_factory=dict)  # levels that those left out chose, and their gain
    notes: tuple[str, ...] = ()
    n_clusters: int = 0
    kappa: float | None = None  # what sessions of one occasion have in common, if trials across occasions told
    cost: float = 1.0  # of trials between those left out; 1: they tell nothing, or there are none


def adapt(
    source: Source,
    X: ArrayLike | Recordings | Statistics,
    speaker: ArrayLike | None = None,
    session: ArrayLike | None = None,
    channel: ArrayLike | None = None,
    *,
    occasion: ArrayLike | None = None,
    method: str = "auto",
    weights: ArrayLike | None = None,
    centre: float | None = None,
    prior: float = 0.02,
    device: Any = None,
    observer: Observer = SILENT,
) -> Source:
    """The PLDA or chain for the domain of the recordings `X`: see `Backend.adapt`. The source stays as it is.

    The observer may give the arrays of an earlier run instead of computing them.
    """
    if method not in METHODS:
        raise DuopldaError(f"method={method!r} must be one of {', '.join(METHODS)}")
    if centre is not None and not (isinstance(centre, Real) and 0 <= float(centre) <= 1):
        raise DuopldaError(f"centre={centre!r} must be None, or a number from 0 to 1")
    if not (isinstance(prior, Real) and 0 < float(prior) < 1):
        raise DuopldaError(f"prior={prior!r} must be a number between 0 and 1")
    if isinstance(X, Statistics):
        if X.is_open:
            raise DuopldaError("the statistics have open sessions: join all shards, and close them")
        if source.steps_:
            raise DuopldaError("statistics are of the PLDA's space: adapt the PLDA, or give recordings to the back-end")
    target = X if isinstance(X, Statistics) else as_recordings(X, speaker, session, channel, occasion)
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
    passes = TargetPasses(source, target, fixed, device)
    return Adaptation(passes, method, numbers, prior, observer).run()


@dataclass(eq=False)
class Adaptation:
    """The adaptation of one chain to one target; `story` records what is done and why."""

    passes: TargetPasses  # over the recordings of the target
    method: str
    weights: tuple[float, ...]
    prior: float
    observer: Observer

    def __post_init__(self) -> None:
        self.source = self.passes.source
        self.target = self.passes.recordings
        self.levels = self.passes.levels
        self.partitions: dict[tuple[str, float], Relabelled] = {}  # by model and weight of its ratios
        self.posteriors: dict[str, float] = {}  # logs, of the partitions with weight 1, by the name of the model
        self.tried: dict[bytes, Adapted] = {}  # by the clusters of all sessions, which two models may both find
        self.story: dict[str, Any] = {"method": self.method, "notes": [], "reasons": {"method": "as asked for"}}

    def run(self) -> Any:
        """The adapted chain."""
        is_statistics = isinstance(self.target, Statistics)
        if self.method == "auto":
            methods_by_labels = {
                "speakers": ("labels", "the target's speakers are known"),
                "sessions": ("clusters", "the target's sessions are known"),
                "nothing": ("total", "nothing is known of the target's recordings"),
            }
            self.method, self.story["reasons"]["method"] = methods_by_labels[self.passes.known]
            if self.method == "clusters" and is_statistics:
                self.method = "sessions"
                self._note("statistics cannot be clustered: only their sessions are used")
            self.story["method"] = self.method
        needs = {"labels": "speakers", "clusters": "sessions", "sessions": "sessions"}.get(self.method, "nothing")
        if KNOWN.index(self.passes.known) > KNOWN.index(needs):
            cause = f"needs {needs} of the target's recordings, and {self.passes.known} is known"
            raise DuopldaError(f"method={self.method!r} {cause}")
        if self.method == "clusters" and is_statistics:
            raise DuopldaError("statistics cannot be clustered: give recordings, or use method='sessions'")
        # A first look at the target refuses vectors of no use before any work is done.
        self.story["target"] = self.passes.survey()
        self.story["distance"] = self.passes.domain.distance
        methods = {
            "labels": self._by_labels,
            "clusters": self._by_clusters,
            "sessions": self._by_sessions,
            "total": self._by_total,
            "centre": self._by_centre,
            "kaldi": self._by_kaldi,
        }
        return self._result(methods[self.method]())

    def _stage(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """The results of a stage: computed now, or by an earlier run that was interrupted."""
        kept = self.observer.stage(name)
        if kept is None:
            kept = compute()
            self.observer.stage_done(name, kept)
        return kept

    # -- methods

    def _by_labels(self) -> Adapted:
        speakers = self.story["target"]["speakers"]
        if speakers < 3:
            remedy = "give more of them, or leave out their labels"
            raise DuopldaError(f"{speakers} labelled speakers are too few to adapt to (at least 3): {remedy}")
        k, steps = self.passes.centring(levels_of.effective_speakers(self.passes.raw), self.passes.measured())
        return self._to_speakers("labels", self.passes.statistics(steps, FOLDS), steps, k, enough=5)

    def _by_sessions(self) -> Adapted:
        """By the weights that were given, or else by shares that held-out sessions (of recordings: clusters) choose."""
        if not self.weights and not isinstance(self.target, Statistics):
            return self._by_clusters()
        k, steps = self.passes.centring(self.passes.raw.n_sessions)
        stats = self.passes.statistics(steps, FOLDS)
        if not self.weights and not selection.have_folds(stats):
            remedy = "gather statistics with n_folds=16, or give weights"
            raise DuopldaError(f"held-out sessions choose the shares: {remedy}")
        return self._to_sessions(stats, steps, k)

    def _by_clusters(self) -> Adapted:
        """Adapt to the best of several partitions of the sessions into clusters.

        The source finds partitions, then the source with shares of the target, then the model that is adapted to the
        best of these. A partition that leaves too many sessions alone does not count; if all do, clusters are not
        used. The source stays as it is if no move of levels makes held-out clusters more likely. With
        method="sessions", clusters only choose the shares.
        """
        # The source finds the first clusters, with its mean moved as if each session were of another speaker.
        source = self._to_mean(*self.passes.centring(self.passes.raw.n_sessions))
        first = self._partition("source", TRUSTS[0], source)
        n = len(first.sizes)
        measured = self.passes.measured(first) if n > 1 else None
        k, steps = self.passes.centring(levels_of.effective_number(first.sizes), measured)
        if n < FEWEST_CLUSTERS:
            cause = f"{n} clusters were found, fewer than {FEWEST_CLUSTERS}"
            self._note(f"{cause}: they do not show how speakers differ", warn=True)
            return replace(self._by_total(first), n_clusters=n)
        stats = self.passes.statistics(steps, FOLDS, first)
        shared = self._to_sessions(stats, steps, k)
        if self.method == "sessions":
            return shared
        name, moved = self._likeliest_growth(stats, shared)
        candidates = [*self._candidates("source", source, k, steps), *self._candidates(name, moved, k, steps)]
        if not candidates:
            return replace(self._without_clusters(first, stats, shared), n_clusters=n)
        best = min(candidates, key=lambda adapted: adapted.cost)
        return min([best, *self._candidates("adapted", best, k, steps)], key=lambda adapted: adapted.cost)

    def _likeliest_growth(self, stats: Statistics, shared: Adapted) -> tuple[str, Adapted]:
        """Where both levels above the noise move together: whether speakers or sessions take the variance that grows.

        As long as each session is taken for another speaker, both models are equally likely. So the posteriors of the
        partitions that the two models find tell which of them is more probable.
        """
        target = Target.of(self.levels.fitting(stats))
        shares = SessionShares(**shared.shares)
        if not shares.both or target.noise is None or target.both is None:
            return "shares", shared
        model = levels_of.between(self.levels, target, shares, shared.centre, sessions_grow=True)
        moved = {"shares": shared, "growing sessions": replace(shared, model=model)}
        for name, adapted in moved.items():
            self._partition(name, TRUSTS[0], adapted)
        return max(moved.items(), key=lambda item: self.posteriors[item[0]])

    def _without_clusters(self, first: Relabelled, stats: Statistics, shared: Adapted) -> Adapted:
        """Adapt where clusters of several sessions are few, or leave too many sessions alone.

        Sessions that differ more than those of the source end up alone: what has grown is then taken to be at the
        levels below the speakers. Otherwise there are few speakers, and the target counts as if nothing were known.
        """
        target = Target.of(self.levels.fitting(stats))
        sessions_differ = _in_company(first.sizes) < LEAST_IN_COMPANY and self.levels.has_grown(target)
        if not sessions_differ or not any(shared.shares.values()):
            self._note("few clusters have several sessions: they are not used to learn how speakers differ")
            return self._by_total(first)
        self._note(
            "many sessions are alone in their cluster: what has grown is taken to be at levels below the speakers"
        )
        model = levels_of.below_growing(self.levels, target, SessionShares(**shared.shares), shared.centre)
        return replace(shared, model=model)

    def _by_centre(self) -> Adapted:
        if self.passes.known == "speakers":
            n = levels_of.effective_speakers(self.passes.raw)
            return self._to_mean(*self.passes.centring(n, self.passes.measured()))
        return self._to_mean(*self.passes.centring(self.passes.raw.n_sessions))

    def _by_total(self, clusters: Relabelled | None = None) -> Adapted:
        """Move all levels, at most halfway; but nothing if the target's mean is usual for speakers like the source's.

        `clusters` of sessions, if there are any, tell how many speakers there are.
        """
        if self.weights:
            share = self.weights[0]
            stats, steps, k = self._centred(None)
            return Adapted(levels_of.through_total(self.levels, Target.of(stats), share, k), steps, k, {"total": share})
        n_speakers, scatter = (None, None) if self.passes.centre is not None else self._unknown_speakers(clusters)
        if scatter is not None:
            distance = self.passes.domain.distance
            usual = 0.06 * self.passes.domain.n_dimensions + USUAL_SCATTER * scatter
            if distance <= usual:
                self._note(
                    f"the target's mean is at a squared distance of {distance:.3g} from the source's, and "
                    f"up to {usual:.3g} is usual: the target is taken to be like the source, and nothing is changed"
                )
                return Adapted(self.levels.model, dict(self.source.steps_), 0.0, {"total": 0.0})
        if self.source.plda_.calibration_ is not None:
            cause = "without speakers or sessions there is nothing to calibrate with"
            self._note(f"{cause}: the source's calibration may not hold here")
        stats, steps, k = self._centred(n_speakers, scatter)
        n = max(1, round(self.passes.raw.n_recordings / RECORDINGS_OF_A_SPEAKER))
        share = min(levels_of.LARGEST_SHARE, levels_of.speaker_share(n))
        model = levels_of.through_growing_total(self.levels, Target.of(stats), share, k)
        return Adapted(model, steps, k, {"total": share})

    def _unknown_speakers(self, clusters: Relabelled | None) -> tuple[float, float]:
        """About how many speakers unlabelled recordings are of, and how far the mean of this many speakers scatters.

        Clusters of sessions, or of a sample of the recordings, count as speakers. The recordings are not centred
        first, as those of a single speaker would then fall apart. One cluster shows no scatter; so the scatter is at
        least that of speakers like the source's.
        """
        if isinstance(self.target, Statistics):
            n = max(1.0, self.passes.raw.n_recordings / RECORDINGS_OF_A_SPEAKER)
            return n, self.passes.scatter_of_speakers(n)
        if clusters is not None:
            stats = self.passes.measured(clusters)
        else:
            X = few(self.target, RECORDINGS_TO_CLUSTER)
            sides = self._enroll(self.levels.model, self.source.steps_)(X, np.arange(len(X)))
            stats = self.passes.measured(Recordings.from_arrays(X, cluster(sides).labels))
        n = levels_of.effective_speakers(stats)
        least = self.passes.scatter_of_speakers(n)
        return n, max(self.passes.scatter_of_mean(stats), least) if len(stats.speaker_ids) > 1 else least

    def _by_kaldi(self) -> Adapted:
        stats, steps, k = self._centred(None)
        shares = dict(zip(("within", "between", "mean_diff"), self.weights or (0.3, 0.7, 1.0), strict=False))
        return Adapted(levels_of.kaldi(self.levels, Target.of(stats), **shares), steps, k, shares)

    # -- what the methods share

    def _centred(self, n_speakers: float | None, scatter: float | None = None) -> tuple[Statistics, Steps, float]:
        """Statistics of the target after steps that are centred on it, as far as `n_speakers` allow; None: wholly."""
        if self.passes.raw.n_recordings < 2:
            cause = "1 recording of the target does not show how recordings vary"
            raise DuopldaError(f"{cause}: give more, hundreds if you can")
        k, steps = self.passes.centring(n_speakers, scatter=scatter)
        return self.levels.fitting(self.passes.statistics(steps)), steps, k

    def _to_mean(self, k: float, steps: Steps) -> Adapted:
        """Move the mean by the share k of the way; all covariances stay."""
        target = Target.of(self.levels.fitting(self.passes.statistics(steps)))
        return Adapted(self.levels.result(self.levels.moved(target, k)), steps, k)

    def _to_sessions(self, stats: Statistics, steps: Steps, k: float) -> Adapted:
        """Adapt to sessions whose speakers are not known: the noise moves, and the two levels above it together."""
        whole = self.levels.fitting(stats)
        target = Target.of(whole)
        if self.weights:
            shares = SessionShares(*self.weights)
            return Adapted(levels_of.between(self.levels, target, shares, k), steps, k, shares._asdict())

        def adapted(target: Target, part: Statistics, move: Move) -> Model:
            return levels_of.between(self.levels, target, move.session_shares(part), k)

        candidates = [move for move in selection.moves(target) if move.speaker == move.session]
        gain = self._choose_levels("sessions", stats, candidates, adapted)
        shares = gain.move.session_shares(whole)
        return Adapted(adapted(target, whole, gain.move), steps, k, shares._asdict(), chosen=_told(gain))

    def _to_speakers(self, name: str, stats: Statistics, steps: Steps, k: float, enough: int) -> Adapted:
        """Adapt to speakers, or to clusters that stand for them; `enough` of them calibrate the ratios.

        Those left out choose the levels that move, by their likelihood, and how far these go, by the cost of trials.
        """
        if self.weights:
            return self._to_speakers_by_weights(name, stats, steps, k, enough)
        of_clusters = name != "labels"
        levels = self.levels
        whole = levels.fitting(stats)

        def moved(target: Target, shares: Shares) -> Model:
            if of_clusters:  # some clusters are a part of a speaker, which makes differences between sessions too large
                return labelled(levels, target, shares, k)
            # A level that moves starts at the size of the target's: shapes go halfway at most.
            grown = levels.grown(target, session=shares.session > 0, noise=shares.noise > 0)
            return labelled(grown, target, shares, k)

        def adapted(move: Move, part: Statistics) -> Model:
            fitting = levels.fitting(part)
            return moved(Target.of(fitting), move.shares(fitting))

        candidates = selection.moves(Target.of(whole))
        gain = self._choose_levels(name, stats, candidates, lambda target, part, move: moved(target, move.shares(part)))
        moves = candidates[:1]  # the source
        if any(gain.move[:3]):
            # Clusters may be wrong: with them, no share becomes larger than usual.
            moves += [gain.move._replace(odds=odds) for odds in (ODDS[:1] if of_clusters else ODDS)]
        ways = [partial(adapted, move) for move in moves]
        n = len(stats.speaker_ids)
        compared = n >= FEWEST_OF_TRIALS and (len(moves) > 1 or of_clusters)
        tried = self._calibrations(name, stats, steps, ways) if compared else []
        decision = selection.decide(tried, len(moves), n, enough, of_clusters)
        move = moves[decision.way]
        way = ways[decision.way]
        return Adapted(
            way(stats),
            steps,
            k,
            move.shares(whole)._asdict(),
            decision.calibration,
            chosen={**_told(gain), "odds": move.odds},
            notes=decision.notes,
            kappa=None if of_clusters else self._kappa(stats, steps, way),  # clusters may divide an occasion
            cost=decision.cost,
        )

    def _to_speakers_by_weights(self, name: str, stats: Statistics, steps: Steps, k: float, enough: int) -> Adapted:
        """Adapt to speakers with the shares that were given; `enough` of them calibrate the ratios."""
        shares = Shares(*self.weights)
        if not (k or any(shares)):
            self._note("the weights give the target no influence: the source stays as it is")
            return Adapted(self.levels.model, steps, k, shares._asdict())

        def adapted(part: Statistics) -> Model:
            return labelled(self.levels, Target.of(self.levels.fitting(part)), shares, k)

        calibrations = self._calibrations(name, stats, steps, [adapted]) if len(stats.speaker_ids) >= enough else []
        calibration = calibrations[0] if calibrations else None
        kappa = self._kappa(stats, steps, adapted)
        return Adapted(adapted(stats), steps, k, shares._asdict(), calibration, kappa=kappa)

    def _calibrations(
        self, name: str, stats: Statistics, steps: Steps, ways: Sequence[selection.Way]
    ) -> list[selection.HeldOutCalibration]:
        """A calibration for each way to adapt, from trials of those left out; none if no trials can be made."""
        if not selection.have_folds(stats):
            return []

        def compute() -> Arrays:
            before = self.source.plda_.calibration_
            calibrations = selection.calibrate(self._left_out(stats, ways, steps), before, name != "labels")
            return {"calibrations": np.array(calibrations, float).reshape(-1)}

        kept = self._stage(f"calibration {name}", compute)
        return [selection.HeldOutCalibration(*row) for row in kept["calibrations"].reshape(-1, 4).tolist()]

    def _kappa(self, stats: Statistics, steps: Steps, way: selection.Way) -> float | None:
        """What sessions of one occasion have in common, for one way to adapt; None if no trials tell."""
        if not selection.have_folds(stats) or not know_occasions([fold.sample for fold in stats.folds]):
            return None

        def compute() -> Arrays:
            kappa = selection.kappa_of_occasions(self._left_out(stats, [way], steps))
            return {"kappa": np.array([] if kappa is None else [kappa])}

        kappa = self._stage("occasions", compute)["kappa"]
        return float(kappa[0]) if len(kappa) else None

    def _left_out(self, stats: Statistics, ways: Sequence[selection.Way], steps: Steps) -> selection.LeftOut:
        """Everything that trials between those left out need, for some ways to adapt."""
        plda = self.source.plda_
        options = TrialOptions(checks.enrolment(plda.enrolment), checks.priors(plda.priors))
        return selection.LeftOut(self.levels, stats, ways, partial(through, steps), plda.scales_, options)

    def _choose_levels(
        self,
        name: str,
        stats: Statistics,
        candidates: Sequence[Move],
        adapted: Callable[[Target, Statistics, Move], Model],
    ) -> selection.Gain:
        """The levels that those left out choose to move; all levels if nobody can be left out."""
        if not selection.have_folds(stats):
            self._note("without folds (Statistics.of(..., n_folds=16)) nothing is chosen by held-out speakers")
            return selection.Gain(candidates[-1], 0.0, 0.0)

        def compute() -> Arrays:
            gain = selection.choose_levels(self.levels, stats, candidates, adapted)
            return {"move": np.array(gain.move, float), "gain": np.array(gain[1:])}

        kept = self._stage(f"levels {name}", compute)
        return selection.Gain(Move(*map(bool, kept["move"][:3].tolist())), *kept["gain"].tolist())

    # -- clusters that stand for speakers

    def _partition(self, name: str, trust: float, adapted: Adapted) -> Relabelled:
        """The recordings with clusters of their sessions, which an adapted model finds, as speakers."""
        target = self.target
        assert isinstance(target, Recordings)
        if (name, trust) in self.partitions:
            return self.partitions[name, trust]

        def compute() -> Arrays:
            job = SessionSides(self._enroll(adapted.model, adapted.steps), labelled=True, device=self.passes.device)
            sides = reduce(Sides.add, (part for _, _, part in target.map(job)))
            clusters = cluster(sides, prior=self.prior, weight=trust)
            order = np.argsort(clusters.ids)
            sessions = clusters.ids[order]
            labels = clusters.labels[order]
            # A cluster gets the name of its first session, so that names do not depend on the order of the clusters.
            first = np.unique(labels, return_index=True)[1]
            posterior = np.round([clusters.log_posterior], 6)  # the last digits depend on the order of recordings
            return {"sessions": sessions, "speakers": sessions[first][labels], "posterior": posterior}

        kept = self._stage(f"partition {name} {trust:g}", compute)
        self.partitions[name, trust] = Relabelled(target, kept["sessions"], kept["speakers"])
        if trust == TRUSTS[0]:
            self.posteriors[name] = float(kept["posterior"][0])
        return self.partitions[name, trust]

    def _enroll(self, model: Model, steps: Steps) -> Enroll:
        """`enroll` of a model after some steps, without the scales: these are chosen for trials, not for partitions."""
        plda = self.source.plda_.with_model(model)
        plda.scales_ = Scales()
        return partial(_enrolled, plda, steps)

    def _candidates(self, name: str, model: Adapted, k: float, steps: Steps) -> list[Adapted]:
        """Adaptations to the partitions that a model finds, without those that leave too many sessions alone.

        The cost of a partition is that of trials between its clusters, which are scored by models that are adapted to
        other clusters. Sessions that are alone in their cluster count as sessions that tell nothing (a cost of 1).
        """
        candidates = []
        for trust in TRUSTS:
            clusters = self._partition(name, trust, model)
            sizes = clusters.sizes
            covered = _in_company(sizes)
            several = int((sizes > 1).sum())
            least = LEAST_OF_MANY if several >= MANY_CLUSTERS else LEAST_IN_COMPANY
            if several < FEWEST_CLUSTERS or covered < least:
                continue
            key = clusters.speakers.tobytes()
            if key not in self.tried:
                stats = self.passes.statistics(steps, FOLDS, clusters)
                adapted = self._to_speakers(f"{name} {trust:g}", stats, steps, k, ENOUGH_CLUSTERS)
                cost = 1 - covered * (1 - adapted.cost)
                self.tried[key] = replace(adapted, n_clusters=len(sizes), cost=cost)
            adapted = self.tried[key]
            told = {"by": name, "trust": trust, "clusters": len(sizes), "cost": adapted.cost}
            self.story.setdefault("partitions", []).append(told)
            candidates.append(adapted)
        return candidates

    # -- the end

    def _note(self, text: str, warn: bool = False) -> None:
        self.story["notes"].append(text)
        if warn:
            warnings.warn(text, UserWarning, stacklevel=6)

    def _result(self, adapted: Adapted) -> ScoresTrials:
        """The new chain. Scales stay; if the target gives a calibration, it replaces that of the source."""
        source = self.source.plda_
        plda = source.with_model(adapted.model)
        self._tell(adapted)
        if adapted.kappa is not None:
            plda.occasion_correlation_ = adapted.kappa
            self._note(f"sessions of one occasion have a correlation of {adapted.kappa:g}, by trials across occasions")
        if adapted.calibration is not None:
            scale, offset, plda.cost_, _ = adapted.calibration
            if isinstance(source.calibration_, StructureCalibration):
                plda.calibration_ = source.calibration_.rescaled(scale, offset)
            else:
                plda.calibration_ = AffineCalibration.of(scale, offset)
        plda.adapted_ = self.story
        return self.source.with_plda(plda, adapted.steps)

    def _tell(self, adapted: Adapted) -> None:
        """Record what came of the adaptation, and by which rules."""
        source = self.source.plda_
        rules = {
            "labels": "by the numbers of speakers, sessions and recordings",
            "clusters": "by the numbers of speakers, sessions and recordings",
            "sessions": "chosen by held-out sessions or clusters",
            "centre": "only the mean moves",
        }
        by_rule = "by the method" if self.passes.centre is None else "as given"
        self.story["reasons"]["centre"] = self.passes.centre_reason or by_rule
        self.story["reasons"]["shares"] = "as given" if self.weights else rules.get(self.method, "by the method")
        self.story["centre"] = adapted.centre
        self.story["shares"] = {name: float(share) for name, share in adapted.shares.items()}
        self.story["notes"] += adapted.notes
        if adapted.chosen:
            self.story["chosen"] = dict(adapted.chosen)
        if adapted.n_clusters:
            self.story["target"]["clusters"] = adapted.n_clusters
        if adapted.calibration is not None:
            what = "clusters" if "clusters" in self.story["target"] else "speakers"
            reason = f"from trials between {what} that were left out of the adaptation in turn"
            values = {name: getattr(adapted.calibration, name) for name in ("scale", "offset", "cost")}
            self.story["calibration"] = {**values, "reason": reason}
        else:
            reason = "that of the source stays" if source.calibration_ is not None else "there is none"
            self.story["calibration"] = {"reason": reason}
        if source.adapted_ is not None:
            self.story["before"] = source.adapted_


def _enrolled(
    plda: PLDA,
    steps: Steps,
    X: Array,
    ids: ArrayLike,
    session: ArrayLike | None = None,
    channel: ArrayLike | None = None,
    occasion: ArrayLike | None = None,
    *,
    device: Device = None,
) -> Sides:
    """Enroll recordings after some steps. Workers of a cluster can be sent a function of a module, but no closure."""
    Z = through(steps, on_device(X, device), channel)
    return plda.enroll(Z, ids, session, channel, occasion, device=device)


def _in_company(sizes: NDArray[Any]) -> float:
    """The share of all sessions that are not alone in their cluster; `sizes` are numbers of sessions."""
    return float(sizes[sizes > 1].sum() / sizes.sum())


def _told(gain: selection.Gain) -> dict[str, float]:
    """The choice of those left out in numbers: 1 for each level that moves; the mean gain in nats and its error."""
    chosen: dict[str, float] = {level: int(getattr(gain.move, level)) for level in ("speaker", "session", "noise")}
    return {**chosen, "gain": gain.mean, "error": gain.error}
