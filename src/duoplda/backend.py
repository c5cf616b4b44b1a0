"""The whole chain as one object and one file: centre, LDA, whitening, length normalisation, PLDA, calibration."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from duoplda import calibration as cal
from duoplda import labels as lab
from duoplda import modelfile
from duoplda import shrinkage as shr
from duoplda._array import to_numpy
from duoplda.errors import DuopldaError
from duoplda.estimator import PLDA
from duoplda.labels import Labels
from duoplda.llr import Sides
from duoplda.model import Model
from duoplda.preprocessing import LDA, Center, LengthNorm, Spread, Whiten
from duoplda.statistics import Statistics, check_finite, check_rows

FORMAT, VERSION = "duoplda-backend", 1
CALIBRATIONS: dict[str, Any] = {"affine": cal.AffineCalibration, "pav": cal.PAVCalibration}
STEPS: dict[str, Any] = {"center": Center, "lda": LDA, "whiten": Whiten, "length_norm": LengthNorm}
LEARNT = {"center": ("mean_", "channels_", "channel_means_"), "lda": ("matrix_", "ratios_"), "whiten": ("matrix_",)}
ROWS = 4096  # of a chunk

Chunks = Callable[[], Iterable[Any]]


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
            raise DuopldaError("Backend requires y to be passed, but the target y is None: give the speaker of each row")
        X = np.asarray(check_rows(X)[0])
        labels = lab.encode(y, session, channel, len(X))

        def chunks() -> Iterator[Any]:
            for i in range(0, len(X), ROWS):
                yield X[i : i + ROWS]

        if channel is None and (self.n_channels or 1) > 1:  # kinds are learnt from the rows themselves
            self._fit_steps(Spread.of(Statistics.accumulate(chunks(), labels)))
            self.plda_ = self._plda().fit(self._transform(X, None), y, session=session)
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
        labels : `(speaker, session)`, `(speaker, session, channel)`, a mapping of those names, or `Labels`, in the order
            of the rows; or a function that gives them, called after the first pass where that can do without them
        start, trace : the model and the log-likelihoods of an interrupted training, to go on from
        device : "cpu", or a torch device ("cuda") for the statistics and EM
        """
        known: list[Labels] = [] if callable(labels) else [_as_labels(labels)]

        def get() -> Labels:
            if not known:
                known.append(_as_labels(labels()))
            return known[0]

        if not callable(labels):
            self._refuse_learnt_channels(get())
        if not self.length_norm:
            self._refuse_learnt_channels(get())
            stats = self._statistics((_put(x, device) for x in chunks()), get())
            self._fit_steps(Spread.of(stats))
            stats = self._map(stats)
        else:
            if self.lda is None and not self.center_by_channel:
                spread = Spread.accumulate(chunks())
            else:
                spread = Spread.of(Statistics.accumulate(chunks(), get()))
            self._fit_steps(spread)
            self._refuse_learnt_channels(get())
            stats = self._statistics(self._transformed(chunks(), get(), device), get())
        done = max(len(trace) - 1, 0)
        plda = self._plda().set_params(max_iter=max(self.max_iter - done, 0))
        plda.fit_statistics(stats, start=_put_model(start, stats))
        plda.set_params(max_iter=self.max_iter)
        if done:
            plda.log_likelihoods_ = np.concatenate([np.asarray(trace, float)[:-1], plda.log_likelihoods_])
            plda.n_iter_ = len(plda.log_likelihoods_) - 1
        for name in ("channel_means_", "channel_priors_", "mean_", "speaker_loadings_", "session_loadings_"):
            setattr(plda, name, to_numpy(getattr(plda, name)))
        plda.noise_precision_ = to_numpy(plda.noise_precision_)
        self.plda_ = plda
        self._count(get())
        return self

    def _statistics(self, chunks: Iterable[Any], labels: Labels) -> Statistics:
        parts = [self.shrinkage, self.n_speaker_factors, self.n_session_factors]
        folds = "auto" in [p for p in parts if isinstance(p, str)] or len(labels.kinds) > 1
        seed = self.random_state if isinstance(self.random_state, int) else 0
        return Statistics.accumulate(chunks, labels, n_folds=self.n_folds if folds else 0, seed=seed)

    def _transformed(self, chunks: Iterable[Any], labels: Labels, device: str) -> Iterator[Any]:
        row, names = 0, labels.kinds
        for X in chunks:
            channel = names[labels.kind[row : row + len(X)]] if self.center_by_channel else None
            try:
                yield _put(self._transform(X, channel), device)
            except DuopldaError:
                check_finite(np.asarray(X), row)  # which names the rows of the data, not those of the chunk
                raise
            row += len(X)

    def _refuse_learnt_channels(self, labels: Labels) -> None:
        if (self.n_channels or 1) > 1 and len(labels.kinds) == 1:
            raise DuopldaError(
                f"n_channels={self.n_channels} without channel labels needs the recordings in memory: use fit(X, ...), "
                "or label the channels"
            )

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

    def _count(self, labels: Labels) -> None:
        n = (len(labels.speaker_ids), labels.n_sessions, labels.n_recordings)
        self.counts_ = dict(zip(("speakers", "sessions", "recordings"), n, strict=True))

    def _map(self, stats: Statistics) -> Statistics:
        """Statistics of the rows as the affine steps leave them."""
        matrix = np.eye(stats.d)
        for step in self.steps_.values():
            matrix = matrix @ getattr(step, "matrix_", np.eye(matrix.shape[1]))
        center = self.steps_["center"]
        means = center.channel_means_ if self.center_by_channel else np.repeat(center.mean_[None, :], stats.K, axis=0)
        return _mapped(stats, means, matrix)

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
        return self._transform(X, channel)

    def _transform(self, X: Any, channel: Any) -> NDArray[np.float64]:
        out = np.asarray(check_rows(X)[0])
        for name, step in self.steps_.items():
            out = step.transform(out, channel) if name == "center" else step.transform(out)
        return out

    def enroll(self, X: Any, speaker: Any, session: Any = None, channel: Any = None) -> Sides:
        """Sum up sets of recordings as sides of trials, as `PLDA.enroll` does."""
        return self.plda_.enroll(self.transform(X, channel), speaker, session, channel)

    def llr(self, enrolled: Sides, tests: Sides, pairs: Any = None, calibrated: bool = True) -> Any:
        """Natural-log likelihood ratios, as `PLDA.llr` gives them; calibrated where `calibrate` was called."""
        check_is_fitted(self, "plda_")
        scores = self.plda_.llr(enrolled, tests, pairs)
        return self.calibration_.transform(scores) if calibrated and self.calibration_ is not None else scores

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
            "variance_shares": variance_shares(plda),
            "data": dict(self.counts_),
            "training": fit,
            "shrinkage": {k: float(v) for k, v in amount.items() if k != "channel" or len(plda.channels_) > 1},
            "calibration": type(self.calibration_).__name__ if self.calibration_ is not None else None,
            "parameters": self._parameters(),
            "provenance": dict(getattr(self, "provenance", {})),
        }

    # -- files

    def _parameters(self) -> dict[str, Any]:
        given = {k: v for k, v in self.get_params(deep=False).items() if k != "callback"}
        seed = given["random_state"]
        return {**given, "random_state": seed if isinstance(seed, int) else None}

    def save(
        self, path: str | os.PathLike[str], *, command: str | None = None, inputs: Mapping[str, str] | None = None
    ) -> None:
        """Write everything to one safetensors file, whole or not at all; `inputs` are hashes of files by name."""
        check_is_fitted(self, "plda_")
        plda = self.plda_
        arrays: dict[str, NDArray[Any]] = {}
        steps: dict[str, Any] = {}
        for name, step in self.steps_.items():
            steps[name] = step.get_params()
            for attribute in LEARNT.get(name, ()):
                value = getattr(step, attribute)
                if attribute == "channels_":
                    steps[name] = {**steps[name], attribute: value.tolist()}
                else:
                    arrays[f"{name}.{attribute}"] = value
        for attribute in ("channel_means_", "channel_priors_", "speaker_loadings_", "session_loadings_"):
            arrays[f"plda.{attribute}"] = to_numpy(getattr(plda, attribute))
        noise = to_numpy(plda.noise_precision_)
        arrays["plda.noise_precision_"] = noise.reshape(len(plda.channels_), *noise.shape[-2:])
        old = dict(getattr(self, "provenance", {}))
        header: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "parameters": self._parameters(),
            "steps": steps,
            "n_features_in": int(self.n_features_in_),
            "channels": plda.channels_.tolist(),
            "counts": self.counts_,
            "variance_shares": variance_shares(plda),
            "provenance": {
                "versions": old.get("versions") or versions(),
                "seed": self._parameters()["random_state"],
                "command": command if command is not None else old.get("command"),
                "inputs": dict(inputs) if inputs is not None else old.get("inputs", {}),
            },
        }
        if hasattr(plda, "shrinkage_"):
            header["shrinkage"] = list(plda.shrinkage_)
        if hasattr(plda, "log_likelihoods_"):
            arrays["plda.log_likelihoods_"] = np.asarray(plda.log_likelihoods_, float)
            header["fit"] = {"converged": bool(plda.converged_), "n_evaluations": int(plda.n_evaluations_)}
        if self.calibration_ is not None:
            header["calibration"] = type(self.calibration_).__name__
            for key, value in self.calibration_.get_state().items():
                arrays[f"calibration.{key}"] = np.asarray(value, float)
        modelfile.write(path, arrays, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; a file of `PLDA.save` gives a chain of the PLDA alone."""
        arrays, header = _read(path)
        if header.get("format") == modelfile.FORMAT:
            return cls.from_plda(PLDA.load(path))
        try:
            return cls._from_parts(arrays, header)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DuopldaError(f"{path} is damaged: {' '.join(str(error).split())}") from None

    @classmethod
    def from_plda(cls, plda: PLDA) -> Self:
        """A chain without preprocessing."""
        backend = cls(whiten=False, length_norm=False, shrinkage=None)
        backend.steps_, backend.plda_, backend.calibration_ = {}, plda, None
        backend.n_features_in_, backend.counts_ = plda.n_features_in_, {}
        return backend

    @classmethod
    def _from_parts(cls, arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> Self:
        backend = cls(**header["parameters"])
        if isinstance(backend.shrinkage, list):
            backend.shrinkage = tuple(backend.shrinkage)
        backend.n_features_in_ = d = int(header["n_features_in"])
        backend.steps_ = {}
        for name, given in header["steps"].items():
            step = STEPS[name](**{k: v for k, v in given.items() if not k.endswith("_")})
            step.n_features_in_ = d
            for attribute in LEARNT.get(name, ()):
                value = np.array(given[attribute]) if attribute in given else arrays[f"{name}.{attribute}"]
                setattr(step, attribute, value)
            if name == "center" and not (
                step.mean_.shape == (d,) and step.channel_means_.shape == (len(step.channels_), d)
            ):
                raise DuopldaError(f"means of shapes {step.mean_.shape}, {step.channel_means_.shape}")
            if hasattr(step, "matrix_"):
                if step.matrix_.ndim != 2 or step.matrix_.shape[0] != d or not np.isfinite(step.matrix_).all():
                    raise DuopldaError(f"the matrix of {name} has shape {step.matrix_.shape}, or is not finite")
                d = step.matrix_.shape[1]
            backend.steps_[name] = step
        parts = ("channel_means_", "speaker_loadings_", "session_loadings_", "noise_precision_")
        mean, V, U, W = (arrays[f"plda.{part}"] for part in parts)
        plda = PLDA.from_parameters(mean, V, U, W, np.array(header["channels"]), arrays["plda.channel_priors_"])
        if plda.n_features_in_ != d:
            raise DuopldaError(f"the PLDA has {plda.n_features_in_} dimensions, what comes before it {d}")
        plda.set_params(**{k: v for k, v in backend._plda().get_params().items() if k != "callback"})
        if "shrinkage" in header:
            plda.shrinkage_ = shr.Shrinkage(*header["shrinkage"])
        if "plda.log_likelihoods_" in arrays:
            plda.log_likelihoods_ = arrays["plda.log_likelihoods_"]
            plda.n_iter_ = len(plda.log_likelihoods_) - 1
            plda.converged_, plda.n_evaluations_ = header["fit"]["converged"], header["fit"]["n_evaluations"]
        backend.plda_, backend.counts_ = plda, dict(header["counts"])
        backend.provenance = dict(header["provenance"])
        backend.calibration_ = None
        if "calibration" in header:
            kind = {c.__name__: c for c in CALIBRATIONS.values()}[header["calibration"]]
            prefix = "calibration."
            state = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            backend.calibration_ = kind.from_state(state)
        return backend


def variance_shares(plda: PLDA) -> dict[str, float]:
    """Shares of the total variance of the speaker, the session and the channel (mean over kinds), in PLDA's space."""
    V, U, W = (to_numpy(a) for a in (plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_))
    priors = to_numpy(plda.channel_priors_)
    noise = np.linalg.inv(W.reshape(len(priors), *W.shape[-2:]))
    sizes = [float((V**2).sum()), float((U**2).sum()), float(priors @ np.trace(noise, axis1=1, axis2=2))]
    return {name: size / sum(sizes) for name, size in zip(("speaker", "session", "channel"), sizes, strict=True)}


def versions() -> dict[str, str]:
    """Of what made a model."""
    from importlib.metadata import version

    own = {name: version(name) for name in ("duoplda", "numpy", "scipy", "scikit-learn")}
    return {**own, "python": platform.python_version()}


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and header, or a clear word on why there are none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("duoplda", "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        detail = " ".join(str(error).split())
        raise DuopldaError(f"{path} is not a model of duoplda, or it is truncated or damaged: {detail}") from None
    except OSError as error:
        raise DuopldaError(f"cannot read the model {path}: {error.strerror or error}") from None
    if not isinstance(header, dict) or header.get("format") not in (FORMAT, modelfile.FORMAT):
        raise DuopldaError(f"{path} is a safetensors file, but no model of duoplda")
    if header["format"] == FORMAT and header.get("version") != VERSION:
        raise DuopldaError(
            f"{path} has format version {header.get('version')}, this duoplda reads version {VERSION}: "
            "use the duoplda that wrote it, or a newer one"
        )
    return arrays, header


def _as_labels(labels: Any) -> Labels:
    if isinstance(labels, Labels):
        return labels
    return lab.encode(**labels) if isinstance(labels, Mapping) else lab.encode(*labels)


def _mapped(stats: Statistics, means: NDArray[np.float64], matrix: NDArray[np.float64]) -> Statistics:
    """Statistics of (x - mean of its kind) A from those of x: exact, as the maps are affine."""
    from duoplda._array import namespace, put

    A, delta = put(matrix, stats.offset), stats.offset - put(means, stats.offset)  # (K, d): x = offset + ... - mean
    xp, d, k = namespace(A), stats.d, matrix.shape[1]
    blocks = []
    for b, f, H in zip(stats.blocks, stats.f, stats.H, strict=True):
        n = len(b.present)
        shift = xp.concat([int(b.counts[j]) * delta[j, :] for j in b.present.tolist()])
        fd = f[:, None] * shift[None, :]
        own = b.A + put(b.n.astype(float), b.A)[:, None] * shift[None, :]
        T = b.T + fd + fd.T + float(H) * shift[:, None] * shift[None, :]
        own = xp.concat([own[:, i * d : (i + 1) * d] @ A for i in range(n)], axis=1)
        cells = [[A.T @ T[i * d : (i + 1) * d, j * d : (j + 1) * d] @ A for j in range(n)] for i in range(n)]
        T = xp.concat([xp.concat(row, axis=1) for row in cells])
        blocks.append(replace(b, A=own, T=T))
    within = xp.stack([A.T @ stats.within[i, ...] @ A for i in range(stats.K)])
    folds = tuple(_mapped(part, means, matrix) for part in stats.folds)
    offset = put(np.zeros(k), stats.offset)
    return replace(stats, offset=offset, blocks=tuple(blocks), within=within, folds=folds)


def _put(X: Any, device: str) -> Any:
    """Rows as NumPy has them, or as a tensor on a device of torch."""
    if device == "cpu":
        return X
    try:
        import torch
    except ImportError:
        raise DuopldaError(f"device {device!r} needs torch: pip install 'duoplda[torch]'") from None
    try:
        return torch.as_tensor(np.asarray(X), device=device)
    except (RuntimeError, AssertionError) as error:
        raise DuopldaError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None


def _put_model(model: Model | None, stats: Statistics) -> Model | None:
    from duoplda._array import put

    if model is None:
        return None
    parts = {name: put(to_numpy(getattr(model, name)), stats.offset) for name in ("mu", "V", "U", "W")}
    return replace(model, **parts)
