"""The whole chain as one object and one file: centre, LDA, whitening, length normalisation, PLDA, calibration."""

import warnings
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from duoplda.arrays import Array, Device, on_device, to_numpy
from duoplda.data import Recordings
from duoplda.data.labels import NO_KIND
from duoplda.errors import DuopldaError
from duoplda.estimators import adaptation, checks, domain, files
from duoplda.estimators.plda import PLDA, ScoresTrials
from duoplda.estimators.preprocessing import LDA, Center, Covariances, LengthNorm, Whiten, folded, through, unfolded
from duoplda.estimators.scorers import cllr_scorer
from duoplda.io import DiagonalModel, ForeignModel, Transform
from duoplda.io.common import PathLike
from duoplda.model.collapse import Loss, collapse
from duoplda.model.em import State
from duoplda.model.occasions import independent_count
from duoplda.model.parameters import Model
from duoplda.model.statistics import Statistics
from duoplda.model.summary import channel_noise, level_covariances, variance_shares
from duoplda.observer import SILENT, Observer
from duoplda.trials.sides import Sides

Steps = dict[str, Any]  # transformers by name


@dataclass(eq=False, repr=False)
class Backend(ScoresTrials, checks.NeedsSpeakers, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Centre -> optional LDA -> optional whitening -> length normalisation -> PLDA (-> calibration).

    It is what to use for embeddings as a network gives them, and is one object and one file. Expect ratios that are
    calibrated for recordings like the training data; for others, `adapt` it first.

    Parameters
    ----------
    lda : the number of dimensions that LDA keeps; sessions count as nuisance there. None: no LDA
    whiten : whether recordings are whitened, which needs more recordings than dimensions
    length_norm : whether recordings are scaled to one length. "twice": they are also scaled before LDA and whitening,
        and centred again after these, as VBx and pyannote do (see `preset`)
    center_by_channel : centre each kind of channel on its own mean; recordings of unknown kind on the mean of all
    plda : an unfitted PLDA with its own parameters; None: `PLDA(shrinkage="auto", random_state=0)`

    Attributes
    ----------
    steps_ : dict of the fitted transformers by name   plda_ : the fitted PLDA   calibration_ : what `calibrate` learnt
    counts_ : dict   numbers of recordings, sessions and speakers of the training data
    provenance_ : dict   where the model comes from, as its file says
    adapted_ : dict or None   what `adapt` did and why; None for a model that was not adapted

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> backend = Backend(lda=16, plda=PLDA()).fit(X, speaker, session=session)
    >>> enrolled, tests = backend.enroll(X[:40], speaker[:40], session[:40]), backend.enroll(X[40:50], range(10))
    >>> backend.llr(enrolled, tests).shape == (len(enrolled), 10)
    True
    """

    lda: int | None = None
    whiten: bool = True
    length_norm: bool | str = True
    center_by_channel: bool = False
    plda: PLDA | None = None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "plda_")

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
        state: State | None = None,
        observer: Observer = SILENT,
    ) -> Self:
        """Learn all steps from recordings.

        The recordings are read twice, chunk by chunk: for mean, LDA and whitening, then for the PLDA. Without length
        normalisation they are read once, as the statistics of the first pass can then be mapped; with two length
        normalisations they are read three times, as the first pass then gives only the first mean.

        Parameters
        ----------
        X, y, session, channel, occasion, device, observer : as for `PLDA.fit`
        state : the state of an interrupted EM, from which to go on (see `PLDA.fit_statistics`)
        """
        recordings = self._recordings(X, y, session, channel, occasion)
        plda = self._plda()
        without: list[Steps] = []  # for each fold, the steps that are fitted without it
        if not self.length_norm and not plda.learns_channels:
            stats = plda.statistics(recordings, device=device)
            steps = self._fit_steps(Covariances.of(stats), 0)
            matrices = [step.matrix_ for step in steps.values() if hasattr(step, "matrix_")]
            stats = stats.mapped(steps["center"].channel_means_, reduce(np.matmul, matrices, np.eye(stats.d)))
        else:
            steps = {}
            n_folds = plda.folds_needed(recordings)
            seed = checks.seed(plda.random_state)
            for i, stage in enumerate(self._stages()):
                before = steps
                if not before and "lda" not in stage and not self.center_by_channel:
                    first_pass = Statistics.unlabelled(recordings, n_folds=n_folds, seed=seed, device=device)
                else:
                    transform = partial(through, before) if before else None
                    first_pass = Statistics.of(recordings, transform, n_folds=n_folds, seed=seed, device=device)
                steps = before | self._fit_steps(Covariances.of(first_pass), i)
            if plda.criterion == "decision":
                without = [before | last for last in self._fit_without(first_pass, i)]
            del first_pass
            stats = plda.statistics(recordings, partial(through, steps), device=device)
        stats = stats.map_samples(partial(_as_if_unseen, steps, without))
        self.plda_ = plda.fit_statistics(stats, state, observer=observer).to_host()
        self.steps_ = steps
        self.n_features_in_ = steps["center"].n_features_in_
        self.provenance_: dict[str, Any] = {}
        self.counts_ = dict(self.plda_.counts_)
        return self

    def _fit_without(self, stats: Statistics, stage: int) -> list[Steps]:
        """For each fold, the steps of a stage fitted without its speakers; none where they cannot be fitted."""
        without = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the steps that were fitted to all data have given the same warnings
            for fold in stats.folds:
                others = [other for other in stats.folds if other is not fold and other.n_recordings]
                if not others:
                    return []
                try:
                    without.append(self._fit_steps(Covariances.of(Statistics.sum(others)), stage))
                except DuopldaError as error:
                    cause = str(error)
                    break
            else:
                return without
        effect = "the steps before held-out trials have seen their speakers, and these trials look too easy"
        remedy = "give more speakers, a lower `lda`, or `shrinkage` as numbers"
        warnings.warn(f"without the speakers of one fold, {cause}. So {effect}: {remedy}", UserWarning, stacklevel=3)
        return []

    def _plda(self) -> PLDA:
        """An unfitted PLDA to train."""
        if self.plda is None:
            return PLDA(shrinkage="auto", random_state=0)
        if not isinstance(self.plda, PLDA):
            raise DuopldaError(f"plda={self.plda!r} must be a PLDA, or None")
        checks.plda_parameters(self.plda)
        return replace(self.plda)  # unlike a clone, it has the very same callback

    def _stages(self) -> list[Steps]:
        """The unfitted steps in parts, each of which is fitted in one reading; a length normalisation ends a part."""
        if not isinstance(self.length_norm, (bool, np.bool_)) and self.length_norm != "twice":
            raise DuopldaError(f"length_norm={self.length_norm!r} must be True, False or 'twice'")
        by = bool(self.center_by_channel)
        first: Steps = {"center": Center(by_channel=by)}
        linear: Steps = {}
        if self.lda is not None:
            linear["lda"] = LDA(self.lda, by_channel=by)
        if self.whiten:
            linear["whiten"] = Whiten(by_channel=by)
        if self.length_norm == "twice":
            second = {**linear, "center_2": Center(by_channel=by), "length_norm_2": LengthNorm()}
            return [{**first, "length_norm": LengthNorm()}, second]
        return [first | linear | ({"length_norm": LengthNorm()} if self.length_norm else {})]

    def _fit_steps(self, covariances: Covariances, stage: int) -> Steps:
        """The transformers of a stage, fitted one after another."""
        if self.center_by_channel and covariances.kinds.tolist() == NO_KIND.tolist():
            raise DuopldaError("center_by_channel=True needs channel: the kind of each recording")
        steps = self._stages()[stage]
        for step in steps.values():
            step.fit_statistics(covariances)
            if hasattr(step, "matrix_"):
                covariances = covariances.mapped(step.matrix_)
        return steps

    # -- another domain

    def adapt(
        self,
        X: ArrayLike | Recordings,
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
        observer: Observer = SILENT,
    ) -> Self:
        """A copy of this chain that is adapted to recordings of another domain (the target).

        Use it where recordings are unlike the training data (a `DomainWarning` says so): ratios there may be worse than
        no information. The better the recordings are labelled, the more it helps; 5 labelled speakers also give a
        calibration. A target like the source changes next to nothing, and fewer than 4 clusters change only the mean.
        Look at `adapted_` before you rely on the result.

        Parameters
        ----------
        X : (N, d) recordings of the target, or `Recordings`, which bring their own labels
        speaker, session, channel : (N,) their speakers, sessions and kinds of channels, as far as they are known
        occasion : (N,) the day, the call or the file of each, if these are known. Trials between labelled speakers are
            then across occasions, and tell what sessions of one occasion have in common (`occasion_correlation_`).
        method : "auto": "labels", "clusters" or "total", by what is known of the recordings.
            "labels": speakers are known (at least 3): each level of the model moves towards the target's.
            "clusters": sessions are known: they are put into clusters, which count as speakers.
            "sessions": the same sessions, but only the noise and the sum of the levels above it move.
            "total": nothing is known: all levels move with the total covariance, halfway.
            "centre": only the mean moves.
            "kaldi": what Kaldi's `ivector-adapt-plda` does, with shares of the excess of variance.
        weights : the shares of the target, from 0 to 1, instead of the usual ones. "labels": (speaker, session, noise);
            "sessions": (noise, what is above it); "total": one number; "kaldi": (within, between) or (within, between,
            mean difference).
        centre : how far the mean goes, from 0 to 1; None: as far as the number of speakers allows
        prior : for clusters, the probability that two random sessions are of one speaker
        device : a device of torch, such as "cuda", through which recordings of the host are streamed
        observer : receives the progress, and may give the results of stages that an earlier run has finished

        Returns
        -------
        the adapted chain. Its `adapted_` tells what was done and why: the method, the size of the target, its distance,
        how far the mean went (`centre`), the `shares` of the target, the `partitions` that were tried, and the
        calibration, which comes from trials of speakers or clusters that were left out in turn, if there are at least 5
        speakers or 8 clusters.

        Examples
        --------
        >>> from duoplda.datasets import make_recordings
        >>> X, speaker, session, _ = make_recordings(60, seed=0)
        >>> model = Backend(plda=PLDA()).fit(X, speaker, session=session)
        >>> Y, speaker, session, _ = make_recordings(30, seed=1)
        >>> adapted = model.adapt(2 * Y + 1, speaker, session)
        >>> adapted.adapted_["method"], adapted.adapted_["target"]["speakers"]
        ('labels', 30)
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
            observer=observer,
        )

    def with_plda(self, plda: PLDA, steps: Steps | None = None) -> Self:
        """A copy with another fitted PLDA, and with other fitted steps before it where these are given."""
        backend = copy(self)
        backend.plda_ = plda
        backend.steps_ = self.steps_ if steps is None else steps
        return backend

    @property
    def adapted_(self) -> Any:
        """What an adaptation did and why; None for a model that was not adapted."""
        return self.plda_.adapted_

    # -- use

    @property
    def pipeline(self) -> Pipeline:
        """The preprocessing steps and the PLDA as a Pipeline of scikit-learn, which is fitted if this chain is."""
        fitted = hasattr(self, "plda_")
        steps = self.steps_ if fitted else {name: step for stage in self._stages() for name, step in stage.items()}
        return Pipeline([*steps.items(), ("plda", self.plda_ if fitted else self._plda())])

    def transform(self, X: ArrayLike, channel: ArrayLike | None = None, *, device: Device = None) -> Array:
        """(N, k) recordings after all steps before the PLDA; those of the host are moved to `device`, if given."""
        return through(self.steps_, on_device(self._rows(X, channel=channel), device), channel)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        sample_weight: None = None,
    ) -> float:
        """Minus the Cllr of trials between recordings of other speakers, in bits: 0 is perfect, -1 is of no use.

        Higher is better, as for all scores of scikit-learn. `duoplda.metrics.held_out_trials` says which trials are
        made, and `duoplda.metrics` has scorers by other metrics. Unlike the likelihood (`PLDA.score`), it can compare
        chains with different steps. `X` must be of speakers who were not in the training. `sample_weight` must be
        None, as for `PLDA.score`.
        """
        checks.no_weights(sample_weight)
        check_is_fitted(self)
        return cllr_scorer(self, X, y, session=session, channel=channel)

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
        """Enroll sets of recordings as sides of trials, as `PLDA.enroll` does.

        The sides also keep the sum of all vectors, so that `llr`, `llr_blocks`, `top` and `cluster` can warn where
        recordings are far from the training data (a `DomainWarning`, once; see `duoplda.estimators.domain`).
        """
        rows = on_device(self._rows(X, ids=ids, session=session, channel=channel, occasion=occasion), device)
        transformed = through(self.steps_, rows, channel)
        enrolled = self.plda_.enroll(transformed, ids, session, channel, occasion)
        enrolled.seen = domain.see(self, rows, transformed, channel)
        return enrolled

    @property
    def ratio_model_(self) -> Model:
        """The parameters that ratios are computed with: those of the PLDA."""
        return self.plda_.ratio_model_

    @property
    def calibration_(self) -> Any:
        """The calibration of ratios that training or `calibrate` learnt, or None."""
        return self.plda_.calibration_

    @calibration_.setter
    def calibration_(self, value: Any) -> None:
        self.plda_.calibration_ = value

    def summary(self) -> dict[str, Any]:
        """What is in this chain and how it was trained, as plain numbers, texts and lists."""
        check_is_fitted(self)
        plda = self.plda_
        fit = {}
        if hasattr(plda, "log_likelihoods_"):
            trace = plda.log_likelihoods_.tolist()
            fit = {"converged": bool(plda.converged_), "n_iter": len(trace) - 1, "log_likelihoods": trace}
            fit["log_likelihood_per_recording"] = trace[-1] / (self.counts_.get("recordings") or float("nan"))
        amount = plda.shrinkage_._asdict() if hasattr(plda, "shrinkage_") else {}
        parts = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_, plda.channel_priors_
        kappa = plda.occasion_correlation_
        worth = float(independent_count(12, kappa or 0.0))
        return {
            "steps": [*self.steps_, "plda", *(["calibration"] if self.calibration_ is not None else [])],
            "n_features_in": int(self.n_features_in_),
            "n_dimensions": int(plda.n_features_in_),
            "n_speaker_factors": int(plda.speaker_loadings_.shape[1]),
            "n_session_factors": int(plda.session_loadings_.shape[1]),
            "channels": plda.channels_.tolist(),
            "channel_noise": channel_noise(*parts),
            "variance_shares": variance_shares(*level_covariances(*parts)),
            "data": dict(self.counts_),
            "training": fit,
            "shrinkage": {k: float(v) for k, v in amount.items() if k != "channel" or len(plda.channels_) > 1},
            "scales": {k: float(v) for k, v in plda.scales_._asdict().items()},
            "cost": plda.cost_,
            "occasions": None if kappa is None else {"correlation": kappa, "sessions": 12, "count_as": worth},
            "model_costs": dict(plda.model_costs_),
            "channel_costs": dict(plda.channel_costs_),
            "calibration": type(self.calibration_).__name__ if self.calibration_ is not None else None,
            "calibration_values": {} if self.calibration_ is None else self.calibration_.summary(),
            "parameters": {**{k: v for k, v in files.plain(self).items() if k != "plda"}, "plda": files.plain(plda)},
            "adapted": self.adapted_,
            "provenance": dict(self.provenance_),
        }

    @property
    def _n_features_out(self) -> int:
        return self.plda_.n_features_in_

    # -- the chain of VBx and pyannote

    @classmethod
    def preset(cls, name: str, *, lda: int | None = 128, **parameters: Any) -> Self:
        """An unfitted chain by name. "vbx": centre, normalise lengths, LDA, centre, normalise lengths, PLDA.

        Use it to exchange models with VBx, pyannote 4 and DiariZen, whose files hold such a chain (see `folded`).
        `parameters` are those of `Backend`.

        >>> Backend.preset("vbx", lda=100)
        Backend(lda=100, length_norm='twice', whiten=False)
        """
        if name != "vbx":
            raise DuopldaError(f"there is no preset {name!r}: there is 'vbx'")
        return cls(**{"lda": lda, "whiten": False, "length_norm": "twice", **parameters})

    @classmethod
    def from_transform(cls, transform: Transform, plda: PLDA) -> Self:
        """A chain of the preprocessing in a file of VBx or pyannote, in our scale, and a PLDA."""
        steps = unfolded(transform)
        if steps["length_norm_2"].n_features_in_ != plda.n_features_in_:
            d = plda.n_features_in_
            k = transform.lda.shape[1]
            raise DuopldaError(f"the transform gives {k} dimensions, the PLDA has {d}")
        backend = cls.from_plda(plda)
        backend.set_params(lda=transform.lda.shape[1], whiten=False, length_norm="twice")
        backend.steps_ = steps
        backend.n_features_in_ = steps["center"].n_features_in_
        return backend

    @classmethod
    def from_foreign(cls, foreign: ForeignModel) -> Self:
        """A chain of what `duoplda.io.read_model` read: the PLDA, and the steps before it if there are any."""
        plda = PLDA.from_parameters(*foreign.parameters)
        return cls.from_plda(plda) if foreign.transform is None else cls.from_transform(foreign.transform, plda)

    def folded(self) -> Transform:
        """The preprocessing in the form of VBx's and pyannote's files; an error where that would not be exact."""
        check_is_fitted(self)
        return folded(self.steps_)

    def collapsed(self, *, one_session: bool = False) -> tuple[DiagonalModel, Loss]:
        """The PLDA without session level and kinds of channels, and the loss: see `duoplda.model.collapse.collapse`."""
        check_is_fitted(self)
        p = self.plda_
        parts = p.channel_means_, p.speaker_loadings_, p.session_loadings_, p.noise_precision_, p.channel_priors_
        return collapse(*map(to_numpy, parts), one_session=one_session)

    # -- files

    @classmethod
    def load(cls, path: PathLike) -> Self:
        """Read what `save` wrote; a file of `PLDA.save` gives a chain of the PLDA alone."""
        with files.reading(path) as saved:
            backend = cls(**saved.chain, plda=PLDA(**saved.parameters))
            backend.__dict__.update(saved.backend, plda_=PLDA.restored(saved))
        return backend

    @classmethod
    def from_plda(cls, plda: PLDA) -> Self:
        """A chain without preprocessing."""
        check_is_fitted(plda)
        backend = cls(whiten=False, length_norm=False, plda=replace(plda, callback=None))
        backend.steps_ = {}
        backend.plda_ = copy(plda)
        backend.n_features_in_ = plda.n_features_in_
        backend.counts_ = dict(plda.counts_)
        backend.provenance_ = {}
        return backend


def _as_if_unseen(steps: Steps, without: list[Steps], X: NDArray[Any], channel: NDArray[Any], fold: int) -> Array:
    """Recordings of a fold as if the steps had not been fitted to their speakers, up to an affine map.

    An affine map does not change ratios, and all steps before length normalisation are affine. But the length of a
    recording matters: a whitening that was fitted to the recording gives it another length than one that was not. So
    each recording gets the length that the steps without its fold give it. Where lengths are normalised twice, this is
    done for the second normalisation only: the mean before the first one is that of all speakers, as a mean without
    each fold would take one more reading of the recordings for each.
    """
    rows = through(steps, X, channel)
    if not isinstance(list(steps.values())[-1], LengthNorm) or not without:
        return rows
    lengths = []
    for chain in (steps, without[fold]):
        before = dict(list(chain.items())[:-1])
        lengths.append(np.linalg.norm(through(before, X, channel), axis=1, keepdims=True))
    return rows * (lengths[0] / lengths[1])
