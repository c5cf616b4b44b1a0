"""PLDA as a scikit-learn estimator. It checks input and keeps attributes; the computations are in `duoplda.model`."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from duoplda.arrays import Array, Device, check_finite, namespace, on_device, put, symmetric, take, to_float, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.datasets import draw
from duoplda.errors import DuopldaError, some
from duoplda.estimators import adaptation, checks, domain, files
from duoplda.estimators.clustering import cluster_recordings
from duoplda.evaluation.calibration import CALIBRATIONS, StructureCalibration
from duoplda.io.common import PathLike
from duoplda.model import em, parameters, posteriors
from duoplda.model.occasions import USUAL_KAPPA
from duoplda.model.parameters import Model
from duoplda.model.shrinkage import Scales, scaled
from duoplda.model.statistics import Statistics
from duoplda.model.training import EMOptions
from duoplda.observer import SILENT, Observer, WithCallback
from duoplda.selection import channels
from duoplda.selection.decision import TrialOptions
from duoplda.selection.held_out import Choice
from duoplda.selection.training import Training
from duoplda.trials import sides
from duoplda.trials.blocks import Scorer, listed_pairs
from duoplda.trials.clustering import Clustering
from duoplda.trials.sides import Sides
from duoplda.trials.structure import Structure, Structures, of_sides

Ids = NDArray[Any]
Blocks = Iterator[tuple[slice, Array]]


class ModelParameter:
    """A parameter of the fitted model that can be read and assigned.

    Assigning one makes a new model, which refuses sides that the old one enrolled. Reading gives a read-only array of
    NumPy, or a copy from other libraries, so that no model changes while sides refer to it.
    """

    def __init__(self, name: str):
        self.name = name

    def __get__(self, plda: PLDA | None, owner: type | None = None) -> Array:
        if plda is None:
            return self
        value = getattr(plda.model_, self.name)
        value = value[0, ...] if self.name == "W" and plda.model_.K == 1 else value
        if namespace(value) is not np:
            return namespace(value).asarray(value, copy=True)
        value = value.view()
        value.flags.writeable = False
        return value

    def __set__(self, plda: PLDA, value: ArrayLike) -> None:
        check_is_fitted(plda)
        values = {name: to_numpy(getattr(plda.model_, name)) for name in ("mu", "V", "U", "W", "kinds")}
        new = to_numpy(value)
        values[self.name] = new[None] if self.name == "W" and new.ndim == 2 else new
        plda.model_ = parameters.checked(*values.values()).like(plda.model_.V)


class ScoresTrials(ABC):
    """Comparing enrolled sides: the methods that a PLDA and a `Backend` share."""

    plda_: PLDA  # of a PLDA itself
    steps_: dict[str, Any]  # the fitted steps before it, by name; a PLDA alone has none
    counts_: dict[str, int]  # of the training data, as far as they are known
    n_features_in_: int
    calibration_: Any = None
    adapted_: Any = None

    @cached_property
    def domain_memory(self) -> domain.DomainMemory:
        """Says whether this object has warned of recordings unlike its training data; a copy of it warns again."""
        return domain.DomainMemory()

    def __getstate__(self) -> dict[str, Any]:
        # What is computed from the parameters when it is needed stays out: scoring does not change a pickle.
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return {name: value for name, value in state.items() if name not in ("domain_memory", "_scaled")}

    @property
    @abstractmethod
    def ratio_model_(self) -> Model:
        """The parameters that likelihood ratios are computed with."""

    @abstractmethod
    def with_plda(self, plda: PLDA, steps: dict[str, Any] | None = None) -> Self:
        """A copy with another fitted PLDA, and with other fitted steps before it where these are given."""

    @abstractmethod
    def transform(self, X: ArrayLike, channel: ArrayLike | None = None) -> Array:
        """Map each recording by itself: see the estimators."""

    @abstractmethod
    def enroll(
        self,
        X: ArrayLike,
        ids: ArrayLike,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        occasion: ArrayLike | None = None,
        *,
        device: Device = None,
    ) -> Sides:
        """Enroll sets of recordings as sides of trials."""

    def llr(
        self,
        enrolled: Sides | ArrayLike,
        tests: Sides | ArrayLike,
        pairs: ArrayLike | None = None,
        calibrated: bool = True,
        *,
        approximate: bool = False,
    ) -> Array:
        """ln P(both | same speaker) - ln P(both | different speakers) for all sides, (len(enrolled), len(tests)).

        A side comes from `enroll`, or is a matrix of recordings (n, d): each row is then a side by itself, a recording
        in a session of its own. For sets of recordings, or sessions that both sides share, use `enroll`.

        A ratio above 0 speaks for one speaker, below 0 for two: it is to be added to the log odds before the
        recordings were heard (`posterior_probability`). It means what it says only if the model is calibrated for such
        recordings; a `DomainWarning` tells where they are unlike the training data.

        With `pairs` (n, 2), rows of `enrolled` and of `tests`, only the (n,) ratios of these pairs. The calibration
        that training or `calibrate` learnt is applied, unless `calibrated` is False.

        If nearly every side has its own counts of sessions and recordings, no matrix product serves many pairs, and
        each pair takes a matrix factorisation: some thousands of pairs a second. `approximate` takes a few products
        for all pairs, whatever the counts. Its ratios are exact where all sessions have the same number of recordings;
        otherwise they may be wrong by several nats, without a bound. It refuses sides that share a session. Use it to
        rank many candidates, not for ratios that are reported.

        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> plda.llr([[-1.0], [2.0]], [[-1.1], [0.0], [2.2]]).round(2).tolist()
        [[0.33, 0.06, -1.08], [-1.02, -0.19, 0.87]]
        """
        enrolled, tests = self._sides(enrolled, tests)
        scorer = self.scorer(enrolled, calibrated)
        if approximate:
            return self._calibrated(scorer.guesses(tests, pairs), calibrated)
        return self._calibrated(scorer.columns(tests) if pairs is None else scorer.pairs(tests, pairs), calibrated)

    def llr_blocks(
        self,
        enrolled: Sides | ArrayLike,
        tests: Sides | ArrayLike,
        *,
        cells: int | None = None,
        host: bool = False,
        calibrated: bool = True,
    ) -> Blocks:
        """The matrix of `llr` in blocks of columns: (slice of tests, (len(enrolled), k)), of about `cells` ratios each.

        With `host` the blocks are arrays of NumPy; those of a GPU are copied while the next one is computed.

        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> sides = plda.enroll([[-1.0], [0.0], [2.0]], ["a", "b", "c"])
        >>> [(part, block.shape) for part, block in plda.llr_blocks(sides, sides, cells=6)]
        [(slice(0, 2, None), (3, 2)), (slice(2, 3, None), (3, 1))]
        """
        enrolled, tests = self._sides(enrolled, tests)
        blocks = self.scorer(enrolled, calibrated).blocks(tests, cells, host)
        return ((part, self._calibrated(block, calibrated)) for part, block in blocks)

    def top(
        self, enrolled: Sides | ArrayLike, tests: Sides | ArrayLike, k: int, calibrated: bool = True
    ) -> tuple[Array, Array]:
        """The k highest-scoring rows of `enrolled` for each test, highest first, and their ratios, (len(tests), k).

        Use it where only the best candidates matter, as the whole matrix is never in memory. Of equal ratios the lower
        row comes first; if fewer than k sides are enrolled, all of them come.

        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> sides = plda.enroll([[-1.0], [0.0], [2.0]], ["a", "b", "c"])
        >>> rows, ratios = plda.top(sides, sides, 2)
        >>> sides.ids[rows].tolist()
        [['a', 'b'], ['b', 'a'], ['c', 'b']]
        """
        enrolled, tests = self._sides(enrolled, tests)
        rows, ratios = self.scorer(enrolled, calibrated).top(tests, k)
        return rows, self._calibrated(ratios, calibrated)

    def cluster(
        self,
        X: ArrayLike | Recordings | Sides,
        session: ArrayLike | Mapping[str, Any] | None = None,
        channel: ArrayLike | Mapping[str, Any] | None = None,
        *,
        prior: float | None = None,
        n_speakers: int | None = None,
        min_speakers: int | None = None,
        max_speakers: int | None = None,
        must_link: ArrayLike | Sequence[tuple[Hashable, Hashable]] | None = None,
        cannot_link: ArrayLike | Sequence[tuple[Hashable, Hashable]] | None = None,
        known: Sides | None = None,
        weight: float = 1.0,
        discount: float = 1.0,
        refine: bool = True,
        within_session: bool = False,
        device: Device = None,
    ) -> Clustering:
        """Put recordings into clusters, one for each speaker, however many speakers there are.

        Clusters are merged and sessions moved as long as that makes the partition of the sessions more probable; the
        most probable partition on that path is the result, which need not be the best of all. The prior is that of
        Ewens, so that there is no threshold to tune. The unscaled model is used (`model_`). The number of clusters is
        an estimate: expect it to be good for recordings like the training data, and too small or too large for others.
        Adapt the model to these first.

        Parameters
        ----------
        X : recordings (n, d), or `Recordings`, or enrolled sides, each of which then is of one speaker; sessions of one
            occasion of a side count for less there as well
        session, channel : (n,) as for `enroll`; for `Recordings`, mappings by id. The recordings of a session are of
            one speaker, and count as one.
        prior : the probability that two random sessions are of one speaker. None: it is learned from the recordings,
            so that as many speakers are found as the prior expects (`Clustering.prior` has what was learned).
        n_speakers, min_speakers, max_speakers : the number of speakers, or bounds on it, if they are known
        must_link, cannot_link : pairs (k, 2) of recordings (row numbers, or ids) that are of one speaker, or of two
        known : enrolled speakers. A cluster may be one of them, or somebody else; all ratios then come from
            `ratio_model_`.
        weight : the weight of the log ratios against that of the prior. A weight below 1 trusts the ratios less.
        discount : the weight of the evidence of each item. Give less than 1 for items that are not independent
            sessions, such as windows of speech that overlap.
        refine : whether single sessions are moved after clusters have been merged, as long as that makes the
            partition more probable
        within_session : whether all recordings are of one session, such as the segments of a file if files were the
            sessions of the training: speakers then differ by VV' + UU', and recordings by the noise

        Examples
        --------
        >>> from duoplda.datasets import make_recordings
        >>> X, speaker, session, _ = make_recordings(12, 5, 3, n_dimensions=40, seed=1)
        >>> clusters = PLDA(20, 30).fit(X, speaker, session=session).cluster(X, session)
        >>> len(clusters), clusters.sessions.tolist()
        (12, [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5])
        """
        check_is_fitted(self)
        return cluster_recordings(
            self,
            X,
            session,
            channel,
            device,
            within_session,
            prior=prior,
            n_speakers=n_speakers,
            min_speakers=min_speakers,
            max_speakers=max_speakers,
            must_link=must_link,
            cannot_link=cannot_link,
            known=known,
            weight=weight,
            discount=discount,
            refine=refine,
        )

    def predict(self, X: ArrayLike) -> Array:
        """Ratios of pairs in one matrix, for services such as those of mlflow that can call `predict` alone.

        Two recordings side by side in each row, `X` (n, 2 d) or (n, 2, d), give the (n,) ratios of these pairs, each
        in a session of its own, as `llr` gives them; single recordings (n, d) give what `transform` gives.

        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> plda.predict([[-1.0, -1.1], [-1.0, 2.2]]).round(2).tolist()
        [0.33, -1.08]
        """
        check_is_fitted(self)
        d = self.n_features_in_
        rows = X if hasattr(X, "shape") else np.asarray(X)
        if tuple(rows.shape[1:]) not in ((2 * d,), (2, d)):
            return self.transform(X)
        both = to_numpy(rows) if namespace(rows) is np else rows
        both = namespace(both).reshape(both, (-1, 2, d))
        index = np.arange(both.shape[0])
        with warnings.catch_warnings():  # columns of pairs have other names than those of recordings
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            return self.llr(both[:, 0, :], both[:, 1, :], np.stack([index, index], axis=1))

    def _sides(self, enrolled: Sides | ArrayLike, tests: Sides | ArrayLike) -> tuple[Sides, Sides]:
        """Both sides of trials, with a side for each row of a matrix.

        Sides of other models are refused, and recordings that are far from the training data give a warning.
        """
        sides = []
        for name, side in (("enrolled", enrolled), ("tests", tests)):
            if isinstance(side, Recordings):
                raise DuopldaError(f"{name} are Recordings, which may not fit into memory: use duoplda.score for them")
            if not isinstance(side, Sides):
                try:
                    side = self.enroll(side, np.arange(self._rows(side).shape[0]))
                except (DuopldaError, TypeError) as error:
                    raise DuopldaError(f"{name}: {error}") from None
            sides.append(side)
        self.check_sides(*sides)
        domain.check_sides(self, *sides, may_be_copies=not isinstance(enrolled, Sides))
        return sides[0], sides[1]

    def _rows(self, X: ArrayLike, **labels: Any) -> Array:
        check_is_fitted(self)
        return checks.rows(self, X, **labels)

    def scorer(self, enrolled: Sides, calibrated: bool = True) -> Scorer:
        """What computes ratios of enrolled sides; it calibrates them only by structure, which needs the sides."""
        known = calibrated and isinstance(self.calibration_, StructureCalibration)
        return Scorer(enrolled, calibration=self.calibration_.maps if known else None)

    def _calibrated(self, ratios: Array, calibrated: bool) -> Array:
        """Ratios of a `scorer`, calibrated here unless that goes by structure and the scorer has done it."""
        if not calibrated or self.calibration_ is None or isinstance(self.calibration_, StructureCalibration):
            return ratios
        return self.calibration_.apply(ratios)

    def structure(
        self, enrolled: Sides | ArrayLike, tests: Sides | ArrayLike, pairs: ArrayLike | None = None
    ) -> Structure:
        """What is known of trials without their vectors: `expected` and `alike`, of the shape that `llr` gives.

        `expected` is the ratio in nats that the model expects of a target trial, the mutual information of the two
        sides; `alike` is the share of pairs of recordings, one of each side, that are of one kind of channel. A session
        that both sides share is counted as if it were two.

        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> few, many = plda.enroll([[0.3]], ["one"]), plda.enroll([[0.1], [0.2], [0.4]], ["three"] * 3)
        >>> [plda.structure(few, side).expected.round(3).tolist() for side in (few, many)]
        [[[0.144]], [[0.235]]]
        """
        enrolled, tests = self._sides(enrolled, tests)
        if pairs is None:
            return of_sides(enrolled, tests)
        i, j = listed_pairs(pairs, (len(enrolled), len(tests))).T
        return Structures(enrolled).of_pairs(tests, i, j)

    def calibrate(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        method: str = "affine",
        *,
        structure: Structure | None = None,
        **options: Any,
    ) -> Self:
        """Learn a calibration of the ratios from trials of known truth; it replaces the one that was there.

        Expect ratios that mean what they say for trials like those it learns from, and for no others: use trials of
        speakers who were not in the training, recorded as in use. The scores must be raw, as the calibration is
        applied to raw ratios. From calibrated ones it would learn to do next to nothing, and nothing in the scores
        shows that mistake.

        Parameters
        ----------
        scores : (n,) ratios of trials, those of `llr(..., calibrated=False)`
        labels : (n,) whether each is a target
        method : "affine", a scale and an offset; "pav", a rising step function, which needs many more trials;
            "structure", a scale and an offset for each structure, which needs trials of several structures
        structure : for method="structure": the structure of the trials, as `structure` gives it
        options : parameters of the calibration (`duoplda.calibration`)
        """
        check_is_fitted(self)
        if (method == "structure") != (structure is not None):
            raise DuopldaError("method='structure' needs the structure of the trials, and no other method takes it")
        if structure is not None:
            fitted = StructureCalibration(**options)
            self.calibration_ = fitted.fit(scores, labels, expected=structure.expected, alike=structure.alike)
            return self
        if method not in ("affine", "pav"):
            raise DuopldaError(f"method={method!r} must be one of affine, pav, structure")
        self.calibration_ = CALIBRATIONS[method](**options).fit(scores, labels)
        return self

    def load_sides(self, path: PathLike, *, device: Device = None) -> Sides:
        """Read sides that this model enrolled and `Sides.save` wrote; with `device`, onto a device of torch."""
        check_is_fitted(self)
        return sides.load(path, self.ratio_model_.like(on_device(np.zeros(1), device)))

    def save(self, path: PathLike, *, provenance: Mapping[str, Any] | None = None, force: bool = False) -> None:
        """Write the model, with all its steps, to one safetensors file, whole or not at all.

        `force` replaces an existing file. `provenance` says where the model comes from, as a dictionary that JSON can
        hold; the versions of the software are added to it.
        """
        check_is_fitted(self)
        files.write(path, self, provenance, force)

    def check_sides(self, *both: Sides) -> None:
        """Refuse sides that another model enrolled, or that are not in one array library on one device."""
        check_is_fitted(self)
        for side in both:
            if not isinstance(side, Sides):
                raise DuopldaError(f"sides must come from enroll or from a file of sides, got {type(side).__name__}")
        places = [f"{type(side.gamma).__name__} on {side.gamma.device}" for side in both]
        if len(set(places)) > 1:
            where = ", ".join(places)
            raise DuopldaError(f"the two sides are in different array libraries or on different devices: {where}")
        model = self.ratio_model_.like(both[0].gamma)
        if not all(parameters.same(model, side.model) for side in both):
            raise DuopldaError("the sides were enrolled by different models: enroll both with the model that scores")


@dataclass(eq=False, repr=False)
class PLDA(ScoresTrials, checks.NeedsSpeakers, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """PLDA with two sources of inter-session variability.

        phi_ijl = mean + V y_i + U x_ij + eps_ijl,    y_i, x_ij ~ N(0, I),    eps_ijl ~ N(0, W^-1)

    for recording l of session j of speaker i. All recordings of a session (one conversation through several channels,
    or its augmented copies) share x_ij, so that they are not taken for independent evidence.

    It expects recordings that are about Gaussian: use `Backend` for embeddings, which centres, whitens and normalises
    their lengths first. With fewer than some hundred speakers, set `shrinkage="auto"`: maximum likelihood overfits,
    and its ratios are badly calibrated. Where no session has two recordings, the model is simplified PLDA, for which
    any other implementation will do as well.

    Parameters
    ----------
    n_speaker_factors : int, None or "auto"
        Columns of V. None: full rank. "auto": chosen by held-out speakers (see `criterion`).
    n_session_factors : int, None or "auto"
        Columns of U. None: full rank if any session has several recordings, and any speaker several sessions;
        otherwise 0, which is simplified PLDA.
    model : None, "auto", "plain", "two-source" or "kinds"
        "plain": no sessions and no kinds of channels, as if each recording were a session; "two-source": sessions, one
        kind; "kinds": both. None: all that is labelled. "auto": chosen by held-out speakers (see `criterion`). That
        reads the recordings once, and takes as long as training all three models.
    shrinkage : None, "auto", float or (speaker, session, noise[, channel])
        How far the covariances VV', UU' and W^-1 are moved towards the shape of the total covariance after training,
        from 0 to 1 (see `duoplda.model.shrinkage`); `channel` moves the noise of each kind towards the mean over the
        kinds. "auto": chosen by held-out speakers (see `criterion`). None: maximum likelihood, except that kinds of
        channels are moved towards each other where one of them has fewer than 10 d recordings; held-out speakers
        choose how far. Shrunk covariances are of full rank.
    criterion : {"decision", "likelihood"}
        What decides wherever "auto" is given. "decision": the cost of trials between held-out speakers, which also
        chooses scales of VV' and UU' and a calibration of the ratios (see `duoplda.selection.decision`); where no
        speaker has two sessions, the likelihood, with a warning. "likelihood": the likelihood of held-out speakers.
    enrolment : None or ((sessions, recordings), ...)
        What enrolments will look like in use, for the held-out trials: pairs of a number of sessions and a number of
        recordings of each (None: all that there are). None: a mixture, from one recording to all recordings of three
        sessions.
    priors : prior probabilities of a target at which decisions will be made, for the held-out trials
    calibration : {"affine", "structure"}
        The calibration that held-out trials learn: one scale and one offset, or a scale and an offset for each
        structure of trials (`duoplda.calibration.StructureCalibration`), if that lowers the cost of held-out trials by
        more than its standard error.
    n_channels : int, None or "auto"
        Learn this number of kinds of channels where they are not labelled. The model is then trained on a bounded
        sample (256 MiB, at most 64 sessions of a speaker and 16 recordings of a session; see `duoplda.model.sample`),
        and the recordings are read once more. Only sessions with several recordings can tell kinds apart. `channels_`
        are then 0 .. n_channels - 1. "auto": the smallest number, up to 8, over which no larger one gains: recordings
        of held-out speakers would have to be likelier by two standard errors, and their trials to cost less by one.
        Where kinds bring little, fewer are found than there are.
    n_folds : the number of folds into which speakers are divided, to be held out in turn
    init : {"moments", "random"}: EM starts from an analysis of variance, or from loadings drawn with `random_state`
    tol : EM stops when an iteration gains less than this, in nats per recording
    max_iter : the largest number of iterations; a ConvergenceWarning says when they were not enough
    accelerate : whether Anderson acceleration, safeguarded by the likelihood, saves iterations
    minimum_divergence : whether a minimum-divergence step follows each maximum-likelihood step; without it EM is very
        slow
    noise_floor : float
        No eigenvalue of W^-1 falls below this share of the mean variance of a dimension. With 0 there is no floor, and
        data from which W^-1 would be singular are refused.
    random_state : int, RandomState instance or None
        Seeds `init="random"` and, if it is an int, the division of speakers into folds.
    callback : callable or None
        `callback(iteration, log_likelihood, model)` is called after each iteration; returning True ends training. An
        observer (`duoplda.observer`), which `fit` takes, learns more.

    Attributes
    ----------
    mean_ : (d,)   speaker_loadings_ : (d, ny)   session_loadings_ : (d, nx)   noise_precision_ : (d, d) or (K, d, d)
        mu, V, U and the precision W (Kaldi and wespeaker call a covariance W), one for each kind if there are several.
        They can be assigned; sides that were enrolled before are then refused.
    channels_ : (K,)   channel_means_ : (K, d)   channel_priors_ : (K,)
        Kinds of channels, their means and their shares of the recordings; `mean_` is the mean over them.
    model_ : the same parameters as one frozen object
    shrinkage_ : Shrinkage   shrinkage_path_ : dict
        The shrinkage that was chosen or given; and for every choice that was tried, the log-likelihood per recording of
        held-out speakers, or the cost of their trials.
    scales_ : Scales   calibration_ : a calibration or None   cost_ : float or None
        What held-out trials chose: factors of VV' and UU' in the model that serves ratios (`model_`, likelihoods and
        posteriors do not use them), the calibration that `llr` applies, and the cost of these trials with it: 0 is
        perfect, 1 is as good as no recordings at all.
    occasion_correlation_ : float or None
        kappa, what sessions of one occasion have in common beside the speaker, as a share of what differs from session
        to session. Held-out trials across occasions choose it where occasions were named. It can be assigned.
    model_costs_ : dict
        With `model="auto"`: the cost of held-out trials of each model, the chosen one first (minus the likelihood, if
        that was the criterion).
    channel_costs_ : dict
        With `n_channels="auto"`: the same for each number of kinds that was tried.
    adapted_ : dict or None
        What `adapt` did and why; None for a model that was not adapted.
    counts_ : dict
        Numbers of recordings, sessions and speakers of the training data.
    log_likelihoods_ : (n_iter_ + 1,)
        Of the training data, at the start and after each iteration. With several kinds, the log of their common prior
        is added. It keeps the noise of every kind regular, and counts as one recording, or as d recordings where a kind
        has fewer than 10 d.
    n_iter_ : int   n_evaluations_ : int   converged_ : bool

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> plda = PLDA(n_speaker_factors=16, n_session_factors=12).fit(X, speaker, session=session)
    >>> enrolled = plda.enroll(X[:40], speaker[:40], session[:40])
    >>> tests = plda.enroll(X[40:50], range(10))
    >>> plda.llr(enrolled, tests).shape == (len(enrolled), 10)
    True
    """

    speaker_loadings_ = ModelParameter("V")
    session_loadings_ = ModelParameter("U")
    noise_precision_ = ModelParameter("W")
    channel_means_ = ModelParameter("mu")
    channels_ = ModelParameter("kinds")

    n_speaker_factors: int | str | None = None
    n_session_factors: int | str | None = None
    _: KW_ONLY
    model: str | None = None
    shrinkage: float | Sequence[float] | str | None = None
    criterion: str = "decision"
    enrolment: Sequence[tuple[int, int | None]] | None = None
    priors: float | Sequence[float] = (0.5, 0.01)
    calibration: str = "affine"
    n_channels: int | str | None = None
    n_folds: int = 5
    init: str = "moments"
    tol: float = 1e-6
    max_iter: int = 500
    accelerate: bool = True
    minimum_divergence: bool = True
    noise_floor: float = 0.0
    random_state: int | np.random.RandomState | None = None
    callback: Callable[[int, float, Model], object] | None = None
    occasion_correlation_ = None

    # -- training

    def fit(
        self,
        X: ArrayLike | Recordings,
        y: ArrayLike | None = None,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        *,
        occasion: ArrayLike | None = None,
        device: Device = None,
        observer: Observer = SILENT,
    ) -> Self:
        """Learn the parameters from recordings.

        Speakers need several recordings each, and in several sessions if speaker and session are to be told apart:
        `duoplda.advise` says what given labels allow. Where EM has not converged, there is a `ConvergenceWarning`.

        Parameters
        ----------
        X : (N, d) recordings, or a `Recordings`, which brings its own labels
        y, session, channel : (N,) the speaker, the session (None: each recording is one) and the kind of channel
        occasion : (N,) the day, the call or the file that sessions are of, if these are known. Trials across occasions
            then tell what their sessions have in common, where held-out trials choose (`shrinkage="auto"`).
        device : a device of torch, such as "cuda", through which recordings of the host are streamed
        observer : receives the progress of the training (`duoplda.observer`)
        """
        stats = self.statistics(self._recordings(X, y, session, channel, occasion), device=device)
        self.n_features_in_ = stats.d
        return self._fit(stats, None, observer)

    def statistics(
        self, recordings: Recordings, transform: channels.Transform | None = None, *, device: Device = None
    ) -> Statistics:
        """Gather in one pass what `fit_statistics` needs, with folds if held-out speakers are to choose something.

        `transform(X, channel)` is applied to each chunk first, but not to the samples of recordings that folds keep.
        """
        checks.plda_parameters(self)
        seed = checks.seed(self.random_state)
        n_kinds = self.n_channels or 1
        if self.learns_channels:
            recordings, self.channel_costs_ = channels.learn(self._training(), n_kinds, recordings, transform, seed)
        n_folds = self.folds_needed(recordings)
        return Statistics.of(recordings, transform, device=device, n_folds=n_folds, seed=seed)

    @property
    def learns_channels(self) -> bool:
        """Whether kinds of channels are learnt."""
        return self.n_channels not in (None, 1)

    def folds_needed(self, recordings: Recordings) -> int:
        """The number of folds of `Statistics.of`: 0, unless held-out speakers choose something."""
        choices = (self.n_speaker_factors, self.n_session_factors, self.shrinkage, self.model)
        chosen = any(isinstance(c, str) and c == "auto" for c in choices)
        several = recordings.may_have_kinds or self.learns_channels
        return self.n_folds if chosen or (self.shrinkage is None and several) else 0

    def fit_statistics(self, stats: Statistics, state: em.State | None = None, *, observer: Observer = SILENT) -> Self:
        """Learn the parameters from statistics, which must have folds (`n_folds=5`) if held-out speakers choose any.

        With `state`, EM goes on from where an earlier training of the same statistics was interrupted, and ends with
        the same model; the observer gets the state of each iteration. If the statistics are of transformed recordings,
        their samples must have been transformed as well (`Statistics.map_samples`).
        """
        if not isinstance(stats, Statistics):
            raise DuopldaError(f"fit_statistics needs Statistics, got {type(stats).__name__}: use fit for recordings")
        checks.plda_parameters(self)
        checks.width(self, stats.d)
        return self._fit(stats, state, observer)

    def _fit(self, stats: Statistics, state: em.State | None, observer: Observer) -> Self:
        if state is None:
            state = observer.training_begins()
        if self.callback is not None:
            observer = WithCallback(self.callback, observer)
        model, shares, choice, self.shrinkage_path_, fit, self.model_costs_ = self._training(observer)(stats, state)
        self._keep(model, shares, choice)
        numbers = len(stats.speaker_ids), int(stats.n_sessions), int(stats.n_recordings)
        self.counts_ = dict(zip(("speakers", "sessions", "recordings"), numbers, strict=True))
        if not self.learns_channels or not hasattr(self, "channel_costs_"):  # `statistics` may have learnt kinds
            self.channel_costs_ = {}
        self.log_likelihoods_ = fit.log_likelihoods
        self.n_iter_ = len(fit.log_likelihoods) - 1
        self.n_evaluations_ = fit.n_evaluations
        self.converged_ = fit.converged
        if not fit.converged and self.n_iter_ >= self.max_iter:
            gain = float(np.diff(fit.log_likelihoods)[-1]) / stats.n_recordings if self.n_iter_ else float("inf")
            cause = f"the last one gained {gain:.2g} nats per recording, and tol={self.tol:g}"
            remedy = "Raise max_iter, or tol if that is precise enough"
            warnings.warn(f"EM did not converge in {self.n_iter_} iterations: {cause}. {remedy}", ConvergenceWarning, 3)
        return self

    def _training(self, observer: Observer = SILENT) -> Training:
        """The parameters of this estimator as a `Training`."""
        trials = None
        if self.criterion == "decision":
            enrolment = checks.enrolment(self.enrolment)
            by_structure = self.calibration == "structure"
            trials = TrialOptions(enrolment, checks.priors(self.priors), by_structure, self.learns_channels)
        return Training(
            n_speaker_factors=self.n_speaker_factors,
            n_session_factors=self.n_session_factors,
            model=self.model,
            shrinkage=checks.shrinkage(self.shrinkage),
            trials=trials,
            em_options=EMOptions(
                noise_floor=self.noise_floor,
                tol=self.tol,
                max_iter=self.max_iter,
                accelerate=self.accelerate,
                minimum_divergence=self.minimum_divergence,
                init=self.init,
                random_state=self.random_state,
            ),
            observer=observer,
        )

    def _keep(self, model: Model, priors: Array, choice: Choice | None = None) -> Self:
        self.model_ = replace(model, W=symmetric(model.W))  # as a file gives it back, to the last digit
        self.channel_priors_ = put(priors, model.mu)
        if choice is not None:
            self.shrinkage_, self.scales_, self.calibration_, self.cost_, self.occasion_correlation_ = choice
            self.adapted_ = None
        return self

    @property
    def ratio_model_(self) -> Model:
        """The parameters that ratios are computed with: `model_` with VV' and UU' scaled by `scales_`."""
        if self.scales_ == Scales():
            return self.model_
        key = (self.model_, self.scales_)
        if self.__dict__.get("_scaled", (None,))[0] != key:
            self._scaled = (key, scaled(*key))
        return self._scaled[1]

    def to_host(self) -> Self:
        """Move the parameters into arrays of NumPy, wherever they were trained."""
        check_is_fitted(self)
        return self._keep(self.model_.like(np.zeros(1)), to_numpy(self.channel_priors_))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __getstate__(self) -> dict[str, Any]:
        # As pairs: skops, which stores estimators without pickle, cannot store keys that are tuples.
        state = super().__getstate__()
        return state | {k: list(state[k].items()) for k in ("shrinkage_path_",) if k in state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {k: dict(state[k]) for k in ("shrinkage_path_",) if k in state})

    @property
    def mean_(self) -> Array:
        """(d,) the mean; with several kinds of channels, the mean over them."""
        return self.channel_means_[0, ...] if self.model_.K == 1 else self.channel_priors_ @ self.channel_means_

    @mean_.setter
    def mean_(self, value: ArrayLike) -> None:
        check_is_fitted(self)
        if self.model_.K > 1:
            raise DuopldaError("mean_ is the mean over several kinds of channels: assign channel_means_ instead")
        self.channel_means_ = to_numpy(value)[None, ...]

    @classmethod
    def from_parameters(
        cls,
        mean: ArrayLike,
        speaker_loadings: ArrayLike,
        session_loadings: ArrayLike | None,
        noise_precision: ArrayLike,
        channels: ArrayLike | None = None,
        channel_priors: ArrayLike | None = None,
    ) -> Self:
        """A model with given parameters; with `session_loadings=None` it has no session factors.

        For K `channels`: `mean` (K, d), `noise_precision` (K, d, d), `channel_priors` (K,), which are equal by default.
        """
        model = parameters.checked(mean, speaker_loadings, session_loadings, noise_precision, channels)
        priors = np.full(model.K, 1 / model.K) if channel_priors is None else to_numpy(channel_priors).astype(float)
        if priors.shape != (model.K,) or not (priors > 0).all():
            raise DuopldaError(f"channel_priors must be {model.K} positive numbers, got {priors}")
        plda = cls(n_speaker_factors=model.ny, n_session_factors=model.nx)
        plda.n_features_in_ = model.d
        plda.scales_ = Scales()
        plda.calibration_ = None
        plda.occasion_correlation_ = None
        plda.cost_ = None
        plda.counts_ = {}
        plda.model_costs_ = {}
        plda.channel_costs_ = {}
        return plda._keep(model, priors / priors.sum())

    # -- another domain

    def adapt(
        self,
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
        device: Device = None,
    ) -> Self:
        """The model for another domain: see `Backend.adapt`. `X` may also be `Statistics` of the target.

        Statistics suffice where speakers or sessions are known. With `n_folds=16` they also give a calibration.

        >>> from duoplda.datasets import make_recordings
        >>> X, speaker, session, _ = make_recordings(60, seed=0)
        >>> plda = PLDA().fit(X, speaker, session=session)
        >>> Y, speaker, session, _ = make_recordings(30, seed=1)
        >>> stats = Statistics.from_arrays(2 * Y + 1, speaker, session, n_folds=16)
        >>> plda.adapt(stats).adapted_["method"]
        'labels'
        """
        check_is_fitted(self)
        return adaptation.adapt(
            self,
            X,
            speaker,
            session,
            channel,
            occasion=occasion,
            method=method,
            weights=weights,
            centre=centre,
            prior=prior,
            device=device,
        )

    @property
    def plda_(self) -> Self:  # type: ignore[override]
        """This PLDA: it is a chain without steps."""
        return self

    @property
    def steps_(self) -> dict[str, Any]:  # type: ignore[override]
        """No steps: recordings are taken as they are."""
        return {}

    def with_plda(self, plda: PLDA, steps: dict[str, Any] | None = None) -> Self:
        """The other PLDA itself, as nothing comes before it."""
        assert not steps
        assert isinstance(plda, type(self))
        return plda

    def with_model(self, model: Model) -> Self:
        """A copy of this fitted PLDA with the parameters of another model; all else stays, the calibration included."""
        plda = copy(self)
        return plda._keep(model, plda.channel_priors_)

    # -- densities and posteriors

    def log_likelihood(
        self, X: ArrayLike, speaker: ArrayLike, session: ArrayLike | None = None, channel: ArrayLike | None = None
    ) -> tuple[Ids, Array]:
        """The sorted speaker ids, and ln P(Phi_i | model) of each speaker's recordings, in nats.

        Differences between models, or between ways to put the same recordings together, mean something; the values
        themselves depend on the number and the units of the dimensions.
        """
        model, rows, labels = self._labelled(X, speaker, session, channel)
        return labels.speaker_ids, posteriors.log_likelihoods(model, rows, labels)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        sample_weight: None = None,
    ) -> float:
        """The mean log marginal likelihood per recording, in nats: higher is better, as for other densities.

        Use it to compare models of the very same vectors, such as numbers of factors. Densities after different steps
        (LDA to other dimensions, with or without whitening) cannot be compared: choose those by the decisions that
        they lead to (`Backend.score`, `duoplda.metrics.cllr_scorer`).

        `sample_weight` must be None: recordings of a speaker depend on each other, and cannot be weighted one by one.
        It is here because a `Pipeline` of scikit-learn routes an argument of this name to every `score`.
        """
        checks.no_weights(sample_weight)
        model, rows, labels = self._labelled(X, y, session, channel)
        values = posteriors.log_likelihoods(model, rows, labels)
        return float(namespace(values).sum(values)) / rows.shape[0]

    def conditional_log_likelihood(
        self,
        X: ArrayLike,
        y: ArrayLike,
        x: ArrayLike,
        speaker: ArrayLike,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
    ) -> tuple[Ids, Array]:
        """The sorted speaker ids, and ln P(Phi_i | y_i, X_i) for given hidden variables.

        `y` (M, ny) has a row for each of the sorted speaker ids, and `x` (H, nx) one for each of the sorted session ids
        (for each recording if `session` is None).
        """
        model, rows, labels = self._labelled(X, speaker, session, channel)
        hidden = (to_float(values, namespace(rows)) for values in (y, x))
        return labels.speaker_ids, posteriors.conditional_log_likelihoods(model, rows, labels, *hidden)

    def partition_log_likelihood(
        self, X: ArrayLike, labels: ArrayLike, session: ArrayLike | None = None, channel: ArrayLike | None = None
    ) -> float:
        """ln P(Phi | theta) of a partition into speakers; two partitions differ by their ln likelihood ratio."""
        _, values = self.log_likelihood(X, labels, session, channel)
        return float(namespace(values).sum(values))

    def posterior(
        self, X: ArrayLike, speaker: ArrayLike, session: ArrayLike | None = None, channel: ArrayLike | None = None
    ) -> posteriors.Posterior:
        """Posteriors of the speaker factors y, of the session factors x given y, and the marginal means of x."""
        return posteriors.posterior(*self._labelled(X, speaker, session, channel))

    def transform(self, X: ArrayLike, channel: ArrayLike | None = None) -> Array:
        """(N, ny) E[y | phi], the expected speaker factors, of each recording by itself.

        They show speakers in few dimensions. Do not compare two speakers by a distance between them: `llr` also knows
        how certain they are.
        """
        rows = self._rows(X, channel=channel)
        kind = self._kind(rows, channel)
        return _finite(rows, posteriors.transform(self.model_.like(rows), to_float(rows, namespace(rows)), kind))

    def channel_posterior(self, X: ArrayLike) -> Array:
        """(N, K) probabilities of the kinds `channels_` for each recording by itself, from its marginal density."""
        rows = self._rows(X)
        xp = namespace(rows)
        priors = put(to_numpy(self.channel_priors_), rows)
        with np.errstate(over="ignore", invalid="ignore"):
            log_posterior = posteriors.kind_log_posterior(self.model_.like(rows), to_float(rows, xp), priors)
            return _finite(rows, xp.exp(log_posterior))

    def sample(
        self,
        n_speakers: int = 1,
        sessions: int | tuple[int, int] = 1,
        recordings: int | tuple[int, int] = 1,
        random_state: int | np.random.Generator | None = None,
        channel: str | int | None = None,
    ) -> tuple[NDArray[Any], ...]:
        """Draw recordings, with their speaker and session ids.

        `sessions` of a speaker and `recordings` of a session are numbers, or ranges (low, high) to draw from uniformly.
        A model of several kinds also gives each recording's kind: drawn by `channel_priors_`, or `channel` for all.
        """
        check_is_fitted(self)
        known = self.channels_.tolist()
        if channel is not None and channel not in known:
            raise DuopldaError(f"channel={channel!r} is not a kind of this model: {some(known)}")
        priors = to_numpy(self.channel_priors_) if channel is None else np.array([float(k == channel) for k in known])
        X, speaker, session, kind = draw(self.model_, n_speakers, sessions, recordings, random_state, priors)
        return (X, speaker, session, *([self.channels_[kind]] if len(known) > 1 else []))

    # -- trials

    def enroll(
        self,
        X: ArrayLike,
        ids: ArrayLike,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        occasion: ArrayLike | None = None,
        *,
        device: Device = None,
    ) -> Sides:
        """Enroll sets of recordings as sides of trials: one side for each id in `ids` (N,), sorted by id.

        A side takes as little memory for many recordings as for one. A set may hold several sessions, and several
        recordings of each. Name the sessions where recordings are copies of one conversation: otherwise
        each counts as independent evidence, and ratios are far too large. Session ids also tell when the two sides of
        a trial share a session, which `llr` then takes into account. Where the kind of channel is not given, or not
        known to the model, it is inferred from the recording.

        With `occasion` (N,), the day, the call or the file of each recording, m sessions of one occasion of a side
        count as m / (1 + (m - 1) kappa), as they share more than the speaker. kappa is `occasion_correlation_`, or .1
        where nothing was learned. A trial between two sides of one occasion is scored as if it were between two.

        The sides are on the device of the recordings. With `device`, a device of torch such as "cuda", recordings of
        the host are streamed there, and need not fit into its memory.
        """
        rows = self._rows(X, ids=ids, session=session, channel=channel, occasion=occasion)
        like = rows if device is None or namespace(rows) is not np else on_device(np.zeros(1), device)
        kappa = USUAL_KAPPA if self.occasion_correlation_ is None else self.occasion_correlation_
        if not (isinstance(kappa, Real) and 0 <= float(kappa) <= 1):
            raise DuopldaError(f"occasion_correlation_={kappa!r} must be None, or a number from 0 to 1")
        model = self.ratio_model_.like(like)
        enrolled = sides.enroll(model, rows, ids, session, self._kind(rows, channel), occasion, float(kappa))
        with np.errstate(over="ignore"):
            xp = namespace(enrolled.gamma)
            _finite(rows, *(xp.sum(a * a, axis=1) for a in (enrolled.gamma, enrolled.z)))
        enrolled.seen = domain.see(self, rows, rows)
        return enrolled

    @staticmethod
    def posterior_probability(llr: ArrayLike, prior: float = 0.01) -> Array:
        """P(same speaker | recordings) = 1 / (1 + exp(-LLR) (1 - prior) / prior).

        `prior` is the probability of one speaker before the recordings were heard, in (0, 1). It comes from the use,
        not from the model: whoever decides must give it, as the answer depends on it as much as on the ratio.
        """
        if not (isinstance(prior, Real) and 0 < prior < 1):
            raise DuopldaError(f"prior={prior!r} must lie between 0 and 1")
        xp = namespace(llr)
        with np.errstate(over="ignore"):
            return 1 / (1 + xp.exp(-float(logit(prior)) - to_float(llr, xp)))

    # -- files

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Read a model that `save` wrote, or a `Backend` without steps."""
        with files.reading(path) as saved:
            plda = cls.restored(saved)
        if saved.backend["steps_"]:
            more = ", ".join(saved.backend["steps_"])
            raise DuopldaError(f"{path} holds more than a PLDA ({more}): read it with Backend.load")
        return plda

    @classmethod
    def restored(cls, saved: files.SavedModel) -> Self:
        """The PLDA that a file holds."""
        plda = cls(**saved.parameters)
        plda.__dict__.update(saved.plda, n_features_in_=saved.model.d)
        return plda._keep(saved.model, plda.channel_priors_)

    # -- inside

    @property
    def _n_features_out(self) -> int:
        return self.model_.ny

    def _kind(self, X: Array, channel: ArrayLike | None) -> NDArray[np.int64]:
        """The kind of each recording: its label where the model knows that, else the most probable kind."""
        n = X.shape[0]
        K = self.model_.K
        if K == 1:
            return np.zeros(n, np.int64)
        kind = np.full(n, -1) if channel is None else lab.codes_among(channel, self.model_.kinds, n)
        unknown = np.flatnonzero(kind < 0)
        if len(unknown):
            kind[unknown] = np.argmax(to_numpy(self.channel_posterior(take(X, unknown))), axis=1)
        return kind

    def _labelled(
        self, X: ArrayLike, speaker: ArrayLike | None, session: ArrayLike | None, channel: ArrayLike | None
    ) -> tuple[Model, Array, lab.Labels]:
        self._check_speakers(speaker)
        rows = self._rows(X, speaker=speaker, session=session, channel=channel)
        labels = lab.encode(speaker, session, None, rows.shape[0]).filled
        kind = self._kind(rows, channel)
        return self.model_.like(rows), rows, replace(labels, kinds=self.model_.kinds, kind=kind)


def _finite(X: Array, *results: Array) -> Array:
    """Return the first result if all are finite; otherwise name the rows of X that are not, or the largest ones."""
    if all(bool(namespace(r).all(namespace(r).isfinite(r))) for r in results):
        return results[0]
    check_finite(X)
    size = np.abs(to_numpy(X)).max(axis=1)
    rows = some(np.flatnonzero(size > 1e-3 * size.max()))
    remedy = "are they on the scale of the training data?"
    raise DuopldaError(f"recordings have values too large to compute with, rows {rows}: {remedy}")
