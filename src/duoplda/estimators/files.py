"""The file of a model: a PLDA, and if there are any, the steps before it and the calibration after it.

The arrays are named after the attributes that they restore (`center.mean_`, `plda.speaker_loadings_`); the header has
parameters, names and counts. A file whose parts do not fit together is refused as damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from duoplda.arrays import to_numpy
from duoplda.errors import DuopldaError, printable
from duoplda.estimators.preprocessing import LDA, Center, LengthNorm, Whiten
from duoplda.evaluation import calibration as cal
from duoplda.io import read_container, write_container
from duoplda.model.parameters import LARGEST, Model, checked
from duoplda.model.shrinkage import Scales, Shrinkage
from duoplda.trials.side_files import fingerprint as fingerprint_of_model

if TYPE_CHECKING:
    from duoplda.estimators.backend import Backend
    from duoplda.estimators.plda import ScoresTrials

Path = str | os.PathLike[str]
Arrays = dict[str, NDArray[Any]]

STEPS: dict[str, type[Center | LDA | Whiten | LengthNorm]] = {
    "center": Center,
    "lda": LDA,
    "whiten": Whiten,
    "length_norm": LengthNorm,
    "center_2": Center,
    "length_norm_2": LengthNorm,
}
# The attributes that each kind of step learns; with its parameters, they are all that a file needs to restore it
LEARNT_BY_STEP = {
    Center: ("mean_", "channels_", "channel_means_"),
    LDA: ("matrix_", "ratios_"),
    Whiten: ("matrix_",),
    LengthNorm: (),
}
# In the order in which `checked` takes the first four
PLDA_ARRAYS = ("channel_means_", "speaker_loadings_", "session_loadings_", "noise_precision_", "channel_priors_")
CHAIN_PARAMETERS = ("lda", "whiten", "length_norm", "center_by_channel")


@dataclass(frozen=True, eq=False)
class SavedModel:
    """What a model file holds."""

    model: Model
    parameters: dict[str, Any]  # of the PLDA
    plda: dict[str, Any]  # its other fitted attributes
    chain: dict[str, Any]  # parameters of the back-end
    backend: dict[str, Any]  # its fitted attributes


# -- writing


def write(path: Path, model: ScoresTrials, provenance: Mapping[str, Any] | None, force: bool) -> None:
    """Write a fitted PLDA, or a back-end with its PLDA; the object stays as it is."""
    plda = model.plda_
    arrays: Arrays = {f"plda.{name}": to_numpy(getattr(plda, name)) for name in PLDA_ARRAYS}
    header: dict[str, Any] = {
        "plda": plain(plda),
        "channels": plda.channels_.tolist(),
        "provenance": {"versions": versions(), **getattr(model, "provenance_", {}), **(provenance or {})},
        "scales": list(plda.scales_),
        "cost": plda.cost_,
        "model_costs": plda.model_costs_,
        "channel_costs": list(plda.channel_costs_.items()),
        "counts": dict(model.counts_),
    }
    if plda.occasion_correlation_ is not None:
        header["occasion_correlation"] = float(plda.occasion_correlation_)
    if plda.adapted_ is not None:
        header["adapted"] = plda.adapted_
    if hasattr(plda, "shrinkage_"):
        header["shrinkage"] = list(plda.shrinkage_)
    if plda.calibration_ is not None:
        header["calibration"] = type(plda.calibration_).__name__
        arrays |= {f"calibration.{k}": np.asarray(v, float) for k, v in plda.calibration_.get_state().items()}
    if hasattr(plda, "log_likelihoods_"):
        arrays["plda.log_likelihoods_"] = np.asarray(plda.log_likelihoods_, float)
        header["fit"] = {"converged": bool(plda.converged_), "n_evaluations": int(plda.n_evaluations_)}
    if model is not plda:
        _add_chain(model, arrays, header)
    write_container(path, "duoplda-backend", arrays, header, force=force)


def _add_chain(backend: Any, arrays: Arrays, header: dict[str, Any]) -> None:
    """Add what a back-end has besides its PLDA: its parameters and its fitted steps."""
    header["chain"] = {name: _json(getattr(backend, name)) for name in CHAIN_PARAMETERS}
    header["n_features_in"] = int(backend.n_features_in_)
    header["steps"] = {}
    for name, step in backend.steps_.items():
        header["steps"][name] = plain(step)
        for attribute in LEARNT_BY_STEP[type(step)]:
            value = getattr(step, attribute)
            if attribute == "channels_":  # names are in the header, as the format holds only arrays of numbers
                header["steps"][name][attribute] = value.tolist()
            else:
                arrays[f"{name}.{attribute}"] = value


def plain(estimator: BaseEstimator) -> dict[str, Any]:
    """The parameters of an estimator for JSON; a callback, or a seed that is not a number, cannot be stored."""
    parameters = {k: _json(v) for k, v in estimator.get_params(deep=False).items() if k != "callback"}
    if "random_state" in parameters and not isinstance(parameters["random_state"], Integral):
        parameters["random_state"] = None
    return parameters


def _json(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_json(v) for v in value] if isinstance(value, (tuple, list)) else value


def versions() -> dict[str, str]:
    """The versions of the software that is running, which a model file keeps."""
    packages = {name: version(name) for name in ("duoplda", "numpy", "scipy", "scikit-learn")}
    return {**packages, "python": platform.python_version()}


def fingerprint(backend: Backend) -> str:
    """A hash of all that decides which statistics recordings get: the steps, and the parameters for ratios.

    Sides that were enrolled by models of different fingerprints cannot be compared.

    >>> from duoplda import Backend, PLDA
    >>> a, b = (Backend.from_plda(PLDA.from_parameters([mean], [[1.0]], None, [[1.0]])) for mean in (0.0, 1.0))
    >>> fingerprint(a) == fingerprint(b)
    False
    """
    digest = hashlib.sha256(fingerprint_of_model(backend.ratio_model_).encode())
    for name, step in backend.steps_.items():
        learnt = [to_numpy(getattr(step, attribute)) for attribute in LEARNT_BY_STEP[type(step)]]
        digest.update(json.dumps([name, plain(step), [array.shape for array in learnt]]).encode())
        for array in learnt:
            numeric = array.dtype.kind in "biuf"
            digest.update(array.astype("<f8").tobytes() if numeric else json.dumps(array.tolist()).encode())
    return digest.hexdigest()


# -- reading


@contextmanager
def reading(path: Path) -> Iterator[SavedModel]:
    """Give the block what a model file holds; errors of parts that do not fit together say that the file is damaged."""
    arrays, header = read_container(path, ["duoplda-backend"])
    try:
        yield _saved(arrays, header)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise DuopldaError(printable(f"{path} is damaged: {' '.join(str(error).split())}")) from None


def _saved(arrays: Arrays, header: dict[str, Any]) -> SavedModel:
    mean, V, U, W, priors = (arrays[f"plda.{name}"] for name in PLDA_ARRAYS)
    channels = np.array(header["channels"])
    if channels.ndim != 1 or channels.dtype == object:
        raise DuopldaError("the kinds of channels are not all words, or all numbers")
    model = checked(mean, V, U, W.reshape(len(channels), *W.shape[-2:]), channels)
    if priors.shape != channels.shape or not (priors > 0).all() or abs(priors.sum() - 1) > 1e-6:
        raise DuopldaError(f"the priors of {len(channels)} channels are {priors.tolist()}")
    parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in header["plda"].items()}
    plda = _plda_attributes(arrays, header) | {"channel_priors_": priors}
    backend: dict[str, Any] = {"steps_": {}, "n_features_in_": model.d, "counts_": plda["counts_"]}
    chain: dict[str, Any] = {"whiten": False, "length_norm": False}  # of a file of a PLDA alone
    if "chain" in header:
        chain = {name: header["chain"][name] for name in CHAIN_PARAMETERS}
        backend["steps_"], d = _steps(arrays, header)
        if d != model.d:
            raise DuopldaError(f"the PLDA has {model.d} dimensions, the steps before it give {d}")
        backend["n_features_in_"] = int(header["n_features_in"])
    return SavedModel(model, parameters, plda, chain, {**backend, "provenance_": plda["provenance_"]})


def _plda_attributes(arrays: Arrays, header: dict[str, Any]) -> dict[str, Any]:
    """The fitted attributes of the PLDA besides the parameters of the model."""
    attributes: dict[str, Any] = {
        "provenance_": dict(header["provenance"]),
        "scales_": Scales(*map(float, header["scales"])),
        "cost_": None if header["cost"] is None else float(header["cost"]),
        "model_costs_": {str(name): float(cost) for name, cost in header["model_costs"].items()},
        "channel_costs_": {int(K): float(cost) for K, cost in header["channel_costs"]},
        "counts_": {str(name): int(n) for name, n in header.get("counts", {}).items()},
        "calibration_": None,
    }
    if min(attributes["counts_"].values(), default=0) < 0:
        raise DuopldaError(f"negative counts: {attributes['counts_']}")
    if "occasion_correlation" in header:
        kappa = header["occasion_correlation"]
        if not (isinstance(kappa, float) and 0 <= kappa <= 1):
            raise DuopldaError(f"the correlation of occasions is {kappa!r}, not a number from 0 to 1")
        attributes["occasion_correlation_"] = kappa
    if not all(1 / LARGEST <= scale <= LARGEST for scale in attributes["scales_"]):
        raise DuopldaError(f"scales {tuple(attributes['scales_'])} must be from {1 / LARGEST:g} to {LARGEST:g}")
    if "calibration" in header:
        state = {k.removeprefix("calibration."): a for k, a in arrays.items() if k.startswith("calibration.")}
        attributes["calibration_"] = cal.restore(header["calibration"], state)
    if "adapted" in header:
        attributes["adapted_"] = _adaptation(header["adapted"])
    if "shrinkage" in header:
        attributes["shrinkage_"] = Shrinkage(*map(float, header["shrinkage"]))
    if "plda.log_likelihoods_" in arrays:
        trace = arrays["plda.log_likelihoods_"]
        if trace.ndim != 1:
            raise DuopldaError(f"log_likelihoods has shape {trace.shape}")
        attributes |= {"log_likelihoods_": trace, "n_iter_": len(trace) - 1}
        converged, n_evaluations = (header["fit"][name] for name in ("converged", "n_evaluations"))
        attributes |= {"converged_": bool(converged), "n_evaluations_": int(n_evaluations)}
    return attributes


def _adaptation(story: Any) -> dict[str, Any]:
    """Check what a file says of an adaptation and of earlier ones, as `duoplda info` prints it."""
    told: Any = story
    while told is not None:
        partitions = told.get("partitions", [])
        calibration = told["calibration"]
        texts = [told["method"], calibration["reason"], *told["notes"], *(tried["by"] for tried in partitions)]
        texts += told["reasons"].values()
        groups = told["target"], told["shares"], told.get("chosen", {})
        values = [told["distance"], told["centre"], *(value for group in groups for value in group.values())]
        values += [tried[name] for tried in partitions for name in ("trust", "clusters", "cost")]
        values += [calibration.get(name, 0) for name in ("scale", "offset", "cost")]
        real = all(type(value) in (int, float) and abs(value) < 1e100 for value in values)
        if not real or not all(isinstance(text, str) for text in texts):
            raise DuopldaError("its record of an adaptation is not valid")
        told = told.get("before")
    return dict(story)


def _steps(arrays: Arrays, header: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The fitted steps, and the number of dimensions after them."""
    steps: dict[str, Any] = {}
    d = int(header["n_features_in"])
    for name, saved in header["steps"].items():
        step: Any = STEPS[name](**{k: v for k, v in saved.items() if not k.endswith("_")})
        step.n_features_in_ = d
        for attribute in LEARNT_BY_STEP[STEPS[name]]:
            value = np.array(saved[attribute]) if attribute in saved else arrays[f"{name}.{attribute}"]
            if attribute != "channels_" and not (np.abs(value) <= LARGEST).all():
                raise DuopldaError(f"{name}.{attribute} has numbers that are not finite, or above {LARGEST:g}")
            setattr(step, attribute, value)
        if isinstance(step, Center):
            shapes = step.mean_.shape, step.channel_means_.shape
            if shapes != ((d,), (len(step.channels_), d)):
                raise DuopldaError(f"means have shapes {shapes[0]} and {shapes[1]}")
        elif isinstance(step, (LDA, Whiten)):
            if step.matrix_.ndim != 2 or step.matrix_.shape[0] != d:
                raise DuopldaError(f"the matrix of {name} has shape {step.matrix_.shape}, and {d} dimensions come in")
            d = step.matrix_.shape[1]
        steps[name] = step
    return steps, d
