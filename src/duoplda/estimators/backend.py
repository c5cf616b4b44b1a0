"""The whole chain as one object and one file: centre, LDA, whitening, length normalisation, PLDA, calibration."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from duoplda.arrays import check_finite, check_rows, on_device, to_numpy
from duoplda.data import labels as lab
from duoplda.data.labels import Labels
from duoplda.errors import DuopldaError
from duoplda.estimators import files as backendfile
from duoplda.estimators.files import CALIBRATIONS, FORMAT, channel_noise, plain_parameters, read_parts, variance_shares
from duoplda.estimators.plda import PLDA
from duoplda.estimators.preprocessing import LDA, Center, LengthNorm, Spread, Whiten, mapped
from duoplda.io import container as modelfile
from duoplda.model.parameters import Model
from duoplda.model.statistics import Statistics, as_labels
from duoplda.trials.blocks import Sides

ROWS = 4096  # of a chunk

Chunks = Callable[[], Iterable[Any]]


Transform = Callable[[Any, Any], NDArray[np.float64]]  # of recordings and their kinds of channels


def through(steps: Mapping[str, Any], X: Any, channel: Any = None) -> NDArray[np.float64]:
    """(N, k) recordings after the fitted steps."""
    out = np.asarray(check_rows(X)[0])
    for name, step in steps.items():
        out = step.transform(out, channel) if name == "center" else step.transform(out)
    return out


class Passes(Protocol):
    """Data that training reads once or twice, wherever they are."""

    def n_kinds(self) -> int:
        """Kinds of channels that the labels know."""

    def spread(self, labelled: bool) -> Spread:
        """Mean and covariance; where `labelled`, with its parts of speakers, sessions and channels."""

    def statistics(self, transform: Transform | None, *, n_folds: int, seed: int) -> Statistics:
        """Statistics of the recordings after `transform`."""

    def forget(self) -> None:
        """Nothing more will be asked."""


class _Chunked:
    """Passes over chunks of rows on this machine."""

    def __init__(self, chunks: Chunks, labels: Any, device: str):
        self.chunks, self.given, self.device = chunks, labels, device
        self.known: Labels | None = None if callable(labels) else as_labels(labels)

    @property
    def labels(self) -> Labels:
        if self.known is None:
            self.known = as_labels(self.given())
        return self.known

    def n_kinds(self) -> int:
        return len(self.labels.kinds)

    def spread(self, labelled: bool) -> Spread:
        if labelled:
            return Spread.of(Statistics.accumulate(self.chunks(), self.labels))
        return Spread.accumulate(self.chunks())

    def statistics(self, transform: Transform | None, *, n_folds: int, seed: int) -> Statistics:
        rows = (on_device(x, self.device) for x in (self._through(transform) if transform else self.chunks()))
        return Statistics.accumulate(rows, self.labels, n_folds=n_folds, seed=seed)

    def _through(self, transform: Transform) -> Iterator[Any]:
        row, labels = 0, self.labels
        for X in self.chunks():
            channel = labels.kinds[labels.kind[row : row + len(X)]]
            try:
                yield transform(X, channel)
            except DuopldaError:
                check_finite(np.asarray(X), row)  # which names the rows of the data, not those of the chunk
                raise
            row += len(X)

    def forget(self) -> None:
        self.known = None


class Backend(BaseEstimator):
    """Centre -> optional LDA -> optional whitening -> length normalisation -> PLDA (-> calibration).

    Parameters
    ----------
    lda : int or None
        Dimensions to keep; sessions count as nuisance. None: no LDA.
    whiten, length_norm : bool
    center_by_channel : bool
        Centre each kind of channel on its own mean; recordings of unknown kind on the mean of all.
    n_speaker_factors, n_session_factors, shrinkage, n_channels, tol, max_iter, random_state, n_folds, callback
        As for `PLDA`; shrinkage is "auto" here, chosen by held-out speakers.

    Attributes
    ----------
    steps_ : dict of the fitted transformers by name   plda_ : PLDA   calibration_ : or None
    counts_ : dict   recordings, sessions and speakers of the training data
    provenance : dict   versions, seed, command and hashes, written by `save`

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> backend = Backend(lda=16, shrinkage=None).fit(X, speaker, session=session)
    >>> enrolled, tests = backend.enroll(X[:40], speaker[:40], session[:40]), backend.enroll(X[40:50], range(10))
    >>> backend.llr(enrolled, tests).shape == (len(enrolled), 10)
    True
    """

    def __init__(
        self,
        lda: int | None = None,
        whiten: bool = True,
        length_norm: bool = True,
        center_by_channel: bool = False,
        n_speaker_factors: int | str | None = None,
        n_session_factors: int | str | None = None,
        shrinkage: Any = "auto",
        n_channels: int | None = None,
        tol: float = 1e-6,
        max_iter: int = 500,
        random_state: Any = 0,
        n_folds: int = 4,
        callback: Callable[[int, float, Model], Any] | None = None,
    ) -> None:
        self.lda = lda
        self.whiten = whiten
        self.length_norm = length_norm
        self.center_by_channel = center_by_channel
        self.n_speaker_factors = n_speaker_factors
        self.n_session_factors = n_session_factors
        self.shrinkage = shrinkage
        self.n_channels = n_channels
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.n_folds = n_folds
        self.callback = callback

    # -- training

    def fit(self, X: Any, y: Any = None, session: Any = None, channel: Any = None) -> Self:
        """Learn from recordings `X` (N, d), their speakers `y`, sessions and kinds of channels (N,)."""
        if y is None:
            raise DuopldaError(
                "Backend requires y to be passed, but the target y is None: give the speaker of each row"
            )
        X = np.asarray(check_rows(X)[0])
        labels = lab.encode(y, session, channel, len(X))

        def chunks() -> Iterator[Any]:
            for i in range(0, len(X), ROWS):
                yield X[i : i + ROWS]

        if channel is None and (self.n_channels or 1) > 1:  # kinds are learnt from the rows themselves
            self._fit_steps(Spread.of(Statistics.accumulate(chunks(), labels)))
            self.plda_ = self._plda().fit(through(self.steps_, X), y, session=session)
            self._count(labels)
            return self
        return self.fit_chunks(chunks, labels)

    def fit_chunks(
        self,
        chunks: Chunks,
        labels: Any,
        *,
        start: Model | None = None,
        trace: Sequence[float] = (),
        device: str = "cpu",
    ) -> Self:
        """The same from data that do not fit in memory.

        They are read twice: for mean, LDA and whitening, then for the PLDA; once only without length normalisation,
        as the statistics of the first pass can then be mapped. One chunk is in memory at a time.

        Parameters
        ----------
        chunks : a function that gives an iterable of arrays of rows, anew at each call
        labels : `(speaker, session)`, `(speaker, session, channel)`, a mapping of those names, or `Labels`, in the
            order of the rows; or a function that gives them, called after the first pass where that needs none
        start, trace : the model and the log-likelihoods of an interrupted training, to go on from
        device : "cpu", or a torch device ("cuda") for the statistics and EM
        """
        return self.fit_passes(_Chunked(chunks, labels, device), start=start, trace=trace)

    def fit_passes(self, data: Passes, *, start: Model | None = None, trace: Sequence[float] = ()) -> Self:
        """The same from passes over data that are made elsewhere, on a cluster for one."""
        if not self.length_norm:
            stats = self._statistics(data, None)
            self._fit_steps(Spread.of(stats))
            stats = self._map(stats)
        else:
            self._fit_steps(data.spread(self.lda is not None or self.center_by_channel))
            stats = self._statistics(data, partial(through, self.steps_))
        self._count(stats)
        data.forget()  # a million labels are tens of megabytes that EM does not need
        done = max(len(trace) - 1, 0)
        plda = self._plda().set_params(max_iter=max(self.max_iter - done, 0))
        plda.fit_statistics(stats, start=_put_model(start, stats))
        plda.set_params(max_iter=self.max_iter)
        if start is not None and done:
            before = [self._first_value(stats, start), *trace[1:-1]]
            plda.log_likelihoods_ = np.concatenate([before, plda.log_likelihoods_])
            plda.n_iter_ = len(plda.log_likelihoods_) - 1
        for name in ("channel_means_", "channel_priors_", "mean_", "speaker_loadings_", "session_loadings_"):
            setattr(plda, name, to_numpy(getattr(plda, name)))
        plda.noise_precision_ = to_numpy(plda.noise_precision_)
        self.plda_ = plda
        return self

    def _statistics(self, data: Passes, transform: Transform | None) -> Statistics:
        K = data.n_kinds()
        if (self.n_channels or 1) > 1 and K == 1:
            raise DuopldaError(
                f"n_channels={self.n_channels} without channel labels needs the recordings in memory: use fit(X, ...), "
                "or label the channels"
            )
        parts = [self.shrinkage, self.n_speaker_factors, self.n_session_factors]
        folds = "auto" in [p for p in parts if isinstance(p, str)] or K > 1
        seed = int(self.random_state) if isinstance(self.random_state, Integral) else 0
        return data.statistics(transform, n_folds=self.n_folds if folds else 0, seed=seed)

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

    def _fit_steps(self, spread: Spread) -> None:
        self.n_features_in_ = len(spread.mean)
        self.calibration_ = None
        self.steps_ = self._unfitted()
        if self.center_by_channel and len(spread.kinds) == 1 and str(spread.kinds[0]) == "":
            raise DuopldaError("center_by_channel=True needs channel: the kind of each recording")
        for step in self.steps_.values():
            step.fit_statistics(spread)
            if hasattr(step, "matrix_"):
                spread = spread.mapped(step.matrix_)

    def _plda(self) -> PLDA:
        names = ("n_speaker_factors", "n_session_factors", "shrinkage", "n_channels", "tol", "max_iter", "n_folds")
        given = {name: getattr(self, name) for name in names}
        return PLDA(**given, random_state=self.random_state, callback=self.callback)

    def _first_value(self, stats: Statistics, model: Model) -> float:
        """The log-likelihood of the start of a training that was interrupted."""
        ny, nx = model.V.shape[1], model.U.shape[1]
        first = self._plda().set_params(max_iter=0, callback=None, n_speaker_factors=ny, n_session_factors=nx)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(first.set_params(shrinkage=(0.0, 0.0, 0.0)).fit_statistics(stats).log_likelihoods_[0])

    def _count(self, data: Labels | Statistics) -> None:
        n = (len(data.speaker_ids), int(data.n_sessions), int(data.n_recordings))
        self.counts_ = dict(zip(("speakers", "sessions", "recordings"), n, strict=True))

    def _map(self, stats: Statistics) -> Statistics:
        """Statistics of the rows as the affine steps leave them."""
        matrix = np.eye(stats.d)
        for step in self.steps_.values():
            matrix = matrix @ getattr(step, "matrix_", np.eye(matrix.shape[1]))
        center = self.steps_["center"]
        means = center.channel_means_ if self.center_by_channel else np.repeat(center.mean_[None, :], stats.K, axis=0)
        return mapped(stats, means, matrix)

    # -- use

    @property
    def pipeline(self) -> Pipeline:
        """The preprocessing steps and the PLDA as a scikit-learn Pipeline: fitted where this is."""
        fitted = hasattr(self, "plda_")
        steps = self.steps_ if fitted else self._unfitted()
        return Pipeline([*steps.items(), ("plda", self.plda_ if fitted else self._plda())])

    def transform(self, X: Any, channel: Any = None) -> NDArray[np.float64]:
        """(N, k) recordings as the PLDA takes them."""
        check_is_fitted(self, "plda_")
        return through(self.steps_, X, channel)

    def enroll(self, X: Any, speaker: Any, session: Any = None, channel: Any = None) -> Sides:
        """Sum up sets of recordings as sides of trials, as `PLDA.enroll` does."""
        return self.plda_.enroll(self.transform(X, channel), speaker, session, channel)

    def llr(self, enrolled: Sides, tests: Sides, pairs: Any = None, calibrated: bool = True) -> Any:
        """Natural-log likelihood ratios, as `PLDA.llr` gives them; calibrated where `calibrate` was called."""
        check_is_fitted(self, "plda_")
        scores = self.plda_.llr(enrolled, tests, pairs)
        return self._calibrated(scores, calibrated)

    def llr_blocks(
        self, enrolled: Sides, tests: Sides, *, calibrated: bool = True, **options: Any
    ) -> Iterator[tuple[slice, Any]]:
        """Blocks of columns of `llr`, with the options of `PLDA.llr_blocks`."""
        check_is_fitted(self, "plda_")
        blocks = self.plda_.llr_blocks(enrolled, tests, **options)
        return ((part, self._calibrated(block, calibrated)) for part, block in blocks)

    def top(self, enrolled: Sides, tests: Sides, k: int, calibrated: bool = True) -> tuple[Any, Any]:
        """Rows of the k best of `enrolled` for each test, and their `llr`, as `PLDA.top` gives them.

        >>> from duoplda import PLDA
        >>> chain = Backend.from_plda(PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]]))
        >>> sides = chain.enroll([[-1.0], [0.0], [2.0]], ["a", "b", "c"])
        >>> chain.top(sides, sides, 1)[0].tolist()
        [[0], [1], [2]]
        """
        check_is_fitted(self, "plda_")
        rows, scores = self.plda_.top(enrolled, tests, k)
        return rows, self._calibrated(scores, calibrated)

    def _calibrated(self, scores: Any, calibrated: bool) -> Any:
        if not calibrated or self.calibration_ is None:
            return scores
        return self.calibration_.transform(to_numpy(scores))

    def calibrate(self, scores: Any, labels: Any, method: str = "affine", **options: Any) -> Self:
        """Learn from uncalibrated scores (n,) of trials and whether they are targets (n,): "affine" or "pav"."""
        check_is_fitted(self, "plda_")
        if method not in CALIBRATIONS:
            raise DuopldaError(f"method={method!r} must be one of {', '.join(CALIBRATIONS)}")
        self.calibration_ = CALIBRATIONS[method](**options).fit(scores, labels)
        return self

    def summary(self) -> dict[str, Any]:
        """What is in it: plain numbers, texts and lists."""
        check_is_fitted(self, "plda_")
        plda, fit = self.plda_, {}
        n = self.counts_.get("recordings", 0)
        if hasattr(plda, "log_likelihoods_"):
            trace = plda.log_likelihoods_.tolist()
            fit = {"converged": bool(plda.converged_), "n_iter": len(trace) - 1, "log_likelihoods": trace}
            fit["log_likelihood_per_recording"] = trace[-1] / n if n else float("nan")
        amount = plda.shrinkage_._asdict() if hasattr(plda, "shrinkage_") else {}
        return {
            "steps": [*self.steps_, "plda", *(["calibration"] if self.calibration_ is not None else [])],
            "n_features_in": int(self.n_features_in_),
            "n_dimensions": int(plda.n_features_in_),
            "n_speaker_factors": int(plda.speaker_loadings_.shape[1]),
            "n_session_factors": int(plda.session_loadings_.shape[1]),
            "channels": plda.channels_.tolist(),
            "channel_noise": channel_noise(plda),
            "variance_shares": variance_shares(plda),
            "data": dict(self.counts_),
            "training": fit,
            "shrinkage": {k: float(v) for k, v in amount.items() if k != "channel" or len(plda.channels_) > 1},
            "calibration": type(self.calibration_).__name__ if self.calibration_ is not None else None,
            "parameters": plain_parameters(self),
            "provenance": dict(getattr(self, "provenance", {})),
        }

    # -- files

    def save(
        self, path: str | os.PathLike[str], *, command: str | None = None, inputs: Mapping[str, str] | None = None
    ) -> None:
        """Write everything to one safetensors file, whole or not at all; `inputs` are hashes of files by name."""
        check_is_fitted(self, "plda_")
        self.provenance = backendfile.write(path, self, command, inputs)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; a file of `PLDA.save` gives a chain of the PLDA alone."""
        arrays, header = read_parts(path, (FORMAT, modelfile.FORMAT))
        if header.get("format") == modelfile.FORMAT:
            return cls.from_plda(PLDA.load(path))
        try:
            return backendfile.restore(cls, arrays, header)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DuopldaError(f"{path} is damaged: {' '.join(str(error).split())}") from None

    @classmethod
    def from_plda(cls, plda: PLDA) -> Self:
        """A chain without preprocessing."""
        backend = cls(whiten=False, length_norm=False, shrinkage=None)
        backend.steps_, backend.plda_, backend.calibration_ = {}, plda, None
        backend.n_features_in_, backend.counts_ = plda.n_features_in_, {}
        return backend


def _put_model(model: Model | None, stats: Statistics) -> Model | None:
    from duoplda.arrays import put

    if model is None:
        return None
    parts = {name: put(to_numpy(getattr(model, name)), stats.offset) for name in ("mu", "V", "U", "W")}
    return replace(model, **parts)
