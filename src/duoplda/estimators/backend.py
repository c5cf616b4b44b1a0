"""The whole chain as one object and one file: centre, LDA, whitening, length normalisation, PLDA, calibration."""

import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from duoplda.arrays import Array, on_device
from duoplda.data.labels import NO_KIND
from duoplda.errors import DuopldaError
from duoplda.estimators import checks, files
from duoplda.estimators.plda import PLDA, ScoresTrials
from duoplda.estimators.preprocessing import LDA, Center, LengthNorm, Spread, Whiten, through
from duoplda.model.statistics import Statistics
from duoplda.model.summary import channel_noise, level_covariances, variance_shares
from duoplda.trials.sides import Sides


@dataclass(eq=False, repr=False)
class Backend(ScoresTrials, checks.NeedsSpeakers, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Centre -> optional LDA -> optional whitening -> length normalisation -> PLDA (-> calibration).

    Parameters
    ----------
    lda : the number of dimensions that LDA keeps, where sessions count as nuisance; None: no LDA
    whiten, length_norm : whether recordings are whitened, and scaled to one length
    center_by_channel : centre each kind of channel on its own mean; recordings of unknown kind on the mean of all
    plda : an unfitted PLDA with its own parameters; None: `PLDA(shrinkage="auto", random_state=0)`

    Attributes
    ----------
    steps_ : dict of the fitted transformers by name   plda_ : the fitted PLDA   calibration_ : what `calibrate` learnt
    counts_ : dict   numbers of recordings, sessions and speakers of the training data
    provenance_ : dict   where the model comes from, as its file says

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
    length_norm: bool = True
    center_by_channel: bool = False
    plda: PLDA | None = None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "plda_")

    # -- training

    def fit(
        self, X: Any, y: Any = None, session: Any = None, channel: Any = None, *, device: Any = None, state: Any = None
    ) -> Self:
        """Learn all steps from recordings.

        The recordings are read twice, chunk by chunk: for mean, LDA and whitening, then for the PLDA. Without length
        normalisation they are read once, as the statistics of the first pass can then be mapped.

        Parameters
        ----------
        X, y, session, channel, device : as for `PLDA.fit`
        state : of an EM that was interrupted, to go on from (see `PLDA.fit_statistics`)
        """
        recordings, plda = self._recordings(X, y, session, channel), self._plda()
        without: list[dict[str, Any]] = []  # the steps as they are without each fold
        if not self.length_norm and not plda.learns_channels:
            stats = plda.statistics(recordings, device=device)
            steps = self._fit_steps(Spread.of(stats))
            matrices = [step.matrix_ for step in steps.values() if hasattr(step, "matrix_")]
            stats = stats.mapped(steps["center"].channel_means_, reduce(np.matmul, matrices, np.eye(stats.d)))
        else:
            first = Statistics.of if self.lda is not None or self.center_by_channel else Statistics.unlabelled
            found = first(recordings, device=device, **plda.folds(recordings))
            steps = self._fit_steps(Spread.of(found))
            without = self._fit_without(found) if plda.criterion == "decision" else []
            stats = plda.statistics(recordings, partial(through, steps), device=device)
        self.plda_ = plda.fit_statistics(stats, state, partial(_held_out, steps, without)).to_host()
        self.steps_, self.n_features_in_ = steps, steps["center"].n_features_in_
        self.provenance_: dict[str, Any] = {}
        self.counts_ = {"speakers": len(stats.speaker_ids), "sessions": int(stats.n_sessions)}
        self.counts_["recordings"] = int(stats.n_recordings)
        return self

    def _fit_without(self, stats: Statistics) -> list[dict[str, Any]]:
        """The steps as they are without the speakers of each fold; none where that cannot be."""
        rest = [[other for other in stats.folds if other is not fold and other.n_recordings] for fold in stats.folds]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about all data too
            try:
                return [self._fit_steps(Spread.of(Statistics.sum(parts))) for parts in rest] if all(rest) else []
            except DuopldaError:  # LDA to more dimensions than a fold's absence leaves
                return []

    def _plda(self) -> PLDA:
        """An unfitted PLDA to train."""
        if self.plda is None:
            return PLDA(shrinkage="auto", random_state=0)
        if not isinstance(self.plda, PLDA):
            raise DuopldaError(f"plda={self.plda!r} must be a PLDA, or None")
        checks.plda_parameters(self.plda)
        return replace(self.plda)  # unlike a clone, it has the very same callback

    def _unfitted(self) -> dict[str, Any]:
        by = bool(self.center_by_channel)
        steps: dict[str, Any] = {"center": Center(by_channel=by)}
        if self.lda is not None:
            steps["lda"] = LDA(self.lda, by_channel=by)
        if self.whiten:
            steps["whiten"] = Whiten(by_channel=by)
        if self.length_norm:
            steps["length_norm"] = LengthNorm()
        return steps

    def _fit_steps(self, spread: Spread) -> dict[str, Any]:
        """The transformers, fitted one after another."""
        if self.center_by_channel and spread.kinds.tolist() == NO_KIND.tolist():
            raise DuopldaError("center_by_channel=True needs channel: the kind of each recording")
        steps = self._unfitted()
        for step in steps.values():
            step.fit_statistics(spread)
            if hasattr(step, "matrix_"):
                spread = spread.mapped(step.matrix_)
        return steps

    # -- use

    @property
    def pipeline(self) -> Pipeline:
        """The preprocessing steps and the PLDA as a scikit-learn Pipeline, which is fitted if this is."""
        fitted = hasattr(self, "plda_")
        steps = self.steps_ if fitted else self._unfitted()
        return Pipeline([*steps.items(), ("plda", self.plda_ if fitted else self._plda())])

    def transform(self, X: Any, channel: Any = None, *, device: Any = None) -> Array:
        """(N, k) recordings as the PLDA takes them; those of the host are moved to `device` ("cuda"), if given."""
        check_is_fitted(self)
        return through(self.steps_, on_device(checks.rows(self, X), device), channel)

    def enroll(self, X: Any, ids: Any, session: Any = None, channel: Any = None, *, device: Any = None) -> Sides:
        """Sum up sets of recordings as sides of trials, as `PLDA.enroll` does."""
        return self.plda_.enroll(self.transform(X, channel, device=device), ids, session, channel)

    @property
    def calibration_(self) -> Any:
        """What training or `calibrate` learnt: a calibration of the ratios, or None."""
        return self.plda_.calibration_

    @calibration_.setter
    def calibration_(self, value: Any) -> None:
        self.plda_.calibration_ = value

    def summary(self) -> dict[str, Any]:
        """What is in it: plain numbers, texts and lists."""
        check_is_fitted(self)
        plda, fit = self.plda_, {}
        if hasattr(plda, "log_likelihoods_"):
            trace = plda.log_likelihoods_.tolist()
            fit = {"converged": bool(plda.converged_), "n_iter": len(trace) - 1, "log_likelihoods": trace}
            fit["log_likelihood_per_recording"] = trace[-1] / (self.counts_.get("recordings") or float("nan"))
        amount = plda.shrinkage_._asdict() if hasattr(plda, "shrinkage_") else {}
        parts = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_, plda.channel_priors_
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
            "model_costs": dict(plda.model_costs_),
            "channel_costs": dict(plda.channel_costs_),
            "calibration": type(self.calibration_).__name__ if self.calibration_ is not None else None,
            "calibration_values": files.numbers(self.calibration_),
            "parameters": {**{k: v for k, v in files.plain(self).items() if k != "plda"}, "plda": files.plain(plda)},
            "provenance": dict(self.provenance_),
        }

    @property
    def _n_features_out(self) -> int:
        return self.plda_.n_features_in_

    # -- files

    def save(self, path: files.Path, *, provenance: Mapping[str, Any] | None = None, force: bool = True) -> None:
        """Write everything to one safetensors file, whole or not at all.

        `provenance` says where the model comes from, in terms of JSON; versions of the software are added to it.
        """
        check_is_fitted(self)
        files.write(path, self, provenance, force)

    @classmethod
    def load(cls, path: files.Path) -> Self:
        """Read what `save` wrote; a file of `PLDA.save` gives a chain of the PLDA alone."""
        with files.reading(path) as saved:
            backend = cls.from_plda(PLDA.restored(saved)).set_params(**saved.chain)
        backend.__dict__.update(saved.backend)
        return backend

    @classmethod
    def from_plda(cls, plda: PLDA) -> Self:
        """A chain without preprocessing."""
        check_is_fitted(plda)
        backend = cls(whiten=False, length_norm=False, plda=replace(plda, callback=None))
        backend.steps_, backend.plda_ = {}, copy(plda)
        backend.n_features_in_, backend.counts_, backend.provenance_ = plda.n_features_in_, {}, {}
        return backend


def _held_out(
    steps: dict[str, Any], without: list[dict[str, Any]], X: NDArray[Any], channel: NDArray[Any], fold: int
) -> Array:
    """Recordings of a fold as they would be had their speakers not been seen, but for an affine map.

    The steps before length normalisation are affine, to which ratios do not object; a length, though, is another one
    under a whitening that has seen the recording. So each gets the length that the steps without its fold give it.
    """
    rows = through(steps, X, channel)
    if "length_norm" not in steps or not without:
        return rows
    lengths = []
    for own in (steps, without[fold]):
        before = {name: step for name, step in own.items() if name != "length_norm"}
        lengths.append(np.linalg.norm(through(before, X, channel), axis=1, keepdims=True))
    return rows * (lengths[0] / lengths[1])
