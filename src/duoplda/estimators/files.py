"""The file of a back-end: safetensors with a JSON header, as for the PLDA alone (`modelfile`)."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import to_numpy
from duoplda.errors import DuopldaError
from duoplda.estimators.plda import PLDA
from duoplda.estimators.preprocessing import LDA, Center, LengthNorm, Whiten
from duoplda.evaluation import calibration as cal
from duoplda.io import container as modelfile
from duoplda.model import shrinkage as shr

FORMAT, VERSION = "duoplda-backend", 1
CALIBRATIONS: dict[str, Any] = {"affine": cal.AffineCalibration, "pav": cal.PAVCalibration}
STEPS: dict[str, Any] = {"center": Center, "lda": LDA, "whiten": Whiten, "length_norm": LengthNorm}
LEARNT = {"center": ("mean_", "channels_", "channel_means_"), "lda": ("matrix_", "ratios_"), "whiten": ("matrix_",)}


def write(path: str | os.PathLike[str], backend: Any, command: str | None, inputs: Mapping[str, str] | None) -> Any:
    """Write a fitted back-end, whole or not at all; what is noted about its origin comes back."""
    parameters = plain_parameters(backend)
    plda = backend.plda_
    arrays: dict[str, NDArray[Any]] = {}
    steps: dict[str, Any] = {}
    for name, step in backend.steps_.items():
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
    old = dict(getattr(backend, "provenance", {}))
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "parameters": parameters,
        "steps": steps,
        "n_features_in": int(backend.n_features_in_),
        "channels": plda.channels_.tolist(),
        "counts": backend.counts_,
        "variance_shares": variance_shares(plda),
        "provenance": {
            "versions": old.get("versions") or versions(),
            "seed": parameters["random_state"],
            "command": command if command is not None else old.get("command"),
            "inputs": dict(inputs) if inputs is not None else old.get("inputs", {}),
        },
    }
    if hasattr(plda, "shrinkage_"):
        header["shrinkage"] = list(plda.shrinkage_)
    if hasattr(plda, "log_likelihoods_"):
        arrays["plda.log_likelihoods_"] = np.asarray(plda.log_likelihoods_, float)
        header["fit"] = {"converged": bool(plda.converged_), "n_evaluations": int(plda.n_evaluations_)}
    if backend.calibration_ is not None:
        header["calibration"] = type(backend.calibration_).__name__
        for key, value in backend.calibration_.get_state().items():
            arrays[f"calibration.{key}"] = np.asarray(value, float)
    modelfile.write(path, arrays, header)
    return header["provenance"]


def restore(cls: Any, arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> Any:
    """The back-end that was written; KeyError, TypeError or ValueError where the parts do not fit together."""
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


def plain_parameters(backend: Any) -> dict[str, Any]:
    """What the back-end was made with, as JSON has it."""
    given = {k: v for k, v in backend.get_params(deep=False).items() if k != "callback"}
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
    if isinstance(plain["shrinkage"], (tuple, list, np.ndarray)):
        plain["shrinkage"] = [float(a) for a in plain["shrinkage"]]
    seed = plain["random_state"]
    return {**plain, "random_state": int(seed) if isinstance(seed, Integral) else None}


def variance_shares(plda: PLDA) -> dict[str, float]:
    """Shares of the total variance of the speaker, the session and the channel (mean over kinds), in PLDA's space."""
    V, U, W = (to_numpy(a) for a in (plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_))
    priors = to_numpy(plda.channel_priors_)
    noise = np.linalg.inv(W.reshape(len(priors), *W.shape[-2:]))
    sizes = [float((V**2).sum()), float((U**2).sum()), float(priors @ np.trace(noise, axis1=1, axis2=2))]
    return {name: size / sum(sizes) for name, size in zip(("speaker", "session", "channel"), sizes, strict=True)}


def channel_noise(plda: PLDA) -> list[list[float]]:
    """For each kind of channel its share of the recordings, and the noise's share of the variance of its recordings."""
    V, U, W = (to_numpy(a) for a in (plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_))
    priors = to_numpy(plda.channel_priors_)
    noise = np.trace(np.linalg.inv(W.reshape(len(priors), *W.shape[-2:])), axis1=1, axis2=2)
    common = float((V**2).sum() + (U**2).sum())
    return [[float(p), float(n / (n + common))] for p, n in zip(priors, noise, strict=True)]


def versions() -> dict[str, str]:
    """Of what made a model."""
    from importlib.metadata import version

    own = {name: version(name) for name in ("duoplda", "numpy", "scipy", "scikit-learn")}
    return {**own, "python": platform.python_version()}


def read_parts(
    path: str | os.PathLike[str], formats: tuple[str, ...]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and header of a file of one of the formats, or a clear word on why there are none."""
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
    if not isinstance(header, dict) or header.get("format") not in formats:
        raise DuopldaError(f"{path} is a safetensors file, but no model of duoplda")
    if header["format"] == FORMAT and header.get("version") != VERSION:
        raise DuopldaError(
            f"{path} has format version {header.get('version')}, this duoplda reads version {VERSION}: "
            "use the duoplda that wrote it, or a newer one"
        )
    return arrays, header
