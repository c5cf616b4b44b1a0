"""The file of a model: a PLDA and, where there are any, the steps before it and the calibration after it.

The arrays are named after the attributes that they restore (`center.mean_`, `plda.speaker_loadings_`); the header has
parameters, names and counts. Version 1, in which a PLDA alone had a format of its own, is still read.
"""

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import to_numpy
from duoplda.errors import DuopldaError, printable
from duoplda.estimators.preprocessing import LDA, Center, LengthNorm, Whiten
from duoplda.evaluation import calibration as cal
from duoplda.io import read_container, write_container
from duoplda.model.parameters import Model, checked
from duoplda.model.shrinkage import Scales, Shrinkage

STEPS: dict[str, Any] = {"center": Center, "lda": LDA, "whiten": Whiten, "length_norm": LengthNorm}
STEPS |= {"center_2": Center, "length_norm_2": LengthNorm}
LEARNT = {"center": ("mean_", "channels_", "channel_means_"), "lda": ("matrix_", "ratios_"), "whiten": ("matrix_",)}
LEARNT["center_2"] = LEARNT["center"]
MODEL = ("channel_means_", "speaker_loadings_", "session_loadings_", "noise_precision_", "channel_priors_")
CHAIN = ("lda", "whiten", "length_norm", "center_by_channel")

Path = str | os.PathLike[str]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Saved:
    """What a model file holds."""

    model: Model
    parameters: dict[str, Any]  # of the PLDA
    plda: dict[str, Any]  # what else training left in the PLDA, by attribute
    chain: dict[str, Any]  # parameters of the back-end
    backend: dict[str, Any]  # its attributes


# -- writing


def write(path: Path, model: Any, provenance: Mapping[str, Any] | None, force: bool) -> None:
    """Write a fitted PLDA, or a back-end with its PLDA; neither changes."""
    plda = getattr(model, "plda_", model)
    arrays: Arrays = {f"plda.{name}": to_numpy(getattr(plda, name)) for name in MODEL}
    origin = {"versions": versions(), **getattr(model, "provenance_", {}), **(provenance or {})}
    header: dict[str, Any] = {"plda": plain(plda), "channels": plda.channels_.tolist(), "provenance": origin}
    header["scales"] = list(plda.scales_)
    header["cost"] = plda.cost_
    header["model_costs"] = plda.model_costs_
    header["channel_costs"] = list(plda.channel_costs_.items())
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
    """What a back-end adds to its PLDA."""
    header["chain"] = {name: _json(getattr(backend, name)) for name in CHAIN}
    header["n_features_in"] = int(backend.n_features_in_)
    header["counts"] = dict(backend.counts_)
    header["steps"] = {}
    for name, step in backend.steps_.items():
        learnt = {a: getattr(step, a) for a in LEARNT.get(name, ())}
        header["steps"][name] = {**plain(step), **{a: v.tolist() for a, v in learnt.items() if a == "channels_"}}
        arrays |= {f"{name}.{a}": v for a, v in learnt.items() if a != "channels_"}


def plain(estimator: Any) -> dict[str, Any]:
    """The parameters of an estimator as JSON has them; a callback, or a seed that is no number, cannot be kept."""
    given = {k: _json(v) for k, v in estimator.get_params(deep=False).items() if k != "callback"}
    if "random_state" in given and not isinstance(given["random_state"], Integral):
        given["random_state"] = None
    return given


def numbers(calibration: Any) -> dict[str, float]:
    """The single numbers of a calibration, if there is one."""
    state = {} if calibration is None else calibration.get_state()
    return {name.rstrip("_"): float(value) for name, value in state.items() if np.ndim(value) == 0}


def _json(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_json(v) for v in value] if isinstance(value, (tuple, list)) else value


def versions() -> dict[str, str]:
    """The versions of the software that makes a model."""
    own = {name: version(name) for name in ("duoplda", "numpy", "scipy", "scikit-learn")}
    return {**own, "python": platform.python_version()}


# -- reading


@contextmanager
def reading(path: Path) -> Iterator[Saved]:
    """Read a model file of any version; what does not fit together, here or inside the block, is a damaged file."""
    arrays, header = read_container(path, ("duoplda-backend", "duoplda-plda"))
    try:
        if header["version"] == 1:
            arrays, header = _from_version_1(arrays, header)
        yield _saved(arrays, header)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DuopldaError(printable(f"{path} is damaged: {' '.join(str(error).split())}")) from None


def _from_version_1(arrays: Arrays, header: dict[str, Any]) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and header of version 1 as version 2 has them."""
    given = dict(header["parameters"])
    if header["format"] == "duoplda-plda":
        return {f"plda.{name}_": a for name, a in arrays.items()}, {**header, "plda": given}
    chain = {name: given.pop(name) for name in CHAIN}
    return arrays, {**header, "plda": given, "chain": chain}


def _saved(arrays: Arrays, header: dict[str, Any]) -> Saved:
    mean, V, U, W, priors = (arrays[f"plda.{name}"] for name in MODEL)
    channels = np.array(header["channels"])
    model = checked(mean, V, U, W.reshape(len(channels), *W.shape[-2:]), channels)
    if priors.shape != channels.shape or not (priors > 0).all():
        raise DuopldaError(f"{len(channels)} channels, and priors {priors.tolist()}")
    parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in header["plda"].items() if k != "callback"}
    plda: dict[str, Any] = {"channel_priors_": priors, "provenance_": dict(header.get("provenance", {}))}
    plda["scales_"] = Scales(*map(float, header.get("scales", ())))
    plda["cost_"] = header.get("cost")
    plda["model_costs_"] = {str(name): float(cost) for name, cost in header.get("model_costs", {}).items()}
    plda["channel_costs_"] = {int(K): float(cost) for K, cost in header.get("channel_costs", [])}
    if not all(0 < scale < float("inf") for scale in plda["scales_"]):
        raise DuopldaError(f"scales {tuple(plda['scales_'])} must be positive")
    state = {k.removeprefix("calibration."): a for k, a in arrays.items() if k.startswith("calibration.")}
    plda["calibration_"] = cal.restore(header["calibration"], state) if "calibration" in header else None
    if "adapted" in header:
        plda["adapted_"] = _story(header["adapted"])
    if "shrinkage" in header:
        plda["shrinkage_"] = Shrinkage(*map(float, header["shrinkage"]))
    if "plda.log_likelihoods_" in arrays:
        trace = arrays["plda.log_likelihoods_"]
        if trace.ndim != 1:
            raise DuopldaError(f"log_likelihoods has shape {trace.shape}")
        plda |= {"log_likelihoods_": trace, "n_iter_": len(trace) - 1}
        plda |= {f"{name}_": header["fit"][name] for name in ("converged", "n_evaluations")}
    steps, d = _steps(arrays, header)
    if steps and d != model.d:
        raise DuopldaError(f"the PLDA has {model.d} dimensions, the steps before it give {d}")
    backend = {"steps_": steps, "n_features_in_": int(header.get("n_features_in", model.d))}
    backend["counts_"] = {name: int(n) for name, n in header.get("counts", {}).items()}
    chain = {name: header["chain"][name] for name in CHAIN} if "chain" in header else {}
    return Saved(model, parameters, plda, chain, {**backend, "provenance_": plda["provenance_"]})


def _story(found: Any) -> dict[str, Any]:
    """What a file says of an adaptation, and of those before it."""
    told: Any = found
    while told is not None:
        tried = told.get("partitions", [])
        calibration = told["calibration"]
        texts = [told["method"], calibration["reason"], *told["notes"], *(each["by"] for each in tried)]
        texts += told["reasons"].values()
        groups = told["target"], told["shares"], told.get("chosen", {})
        numbers = [told["distance"], told["centre"], *(value for group in groups for value in group.values())]
        numbers += [each[name] for each in tried for name in ("trust", "clusters")]
        numbers += [each.get(name, 0) for each in (calibration, *tried) for name in ("scale", "offset", "cost")]
        real = all(type(number) in (int, float) and abs(number) < 1e100 for number in numbers)
        if not real or not all(isinstance(text, str) for text in texts):
            raise DuopldaError("what it says of its adaptation makes no sense")
        told = told.get("before")
    return dict(found)


def _steps(arrays: Arrays, header: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The fitted transformers, and the dimensions that they leave."""
    steps: dict[str, Any] = {}
    d = int(header.get("n_features_in", 0))
    for name, given in header.get("steps", {}).items():
        step = STEPS[name](**{k: v for k, v in given.items() if not k.endswith("_")})
        step.n_features_in_ = d
        for attribute in LEARNT.get(name, ()):
            value = np.array(given[attribute]) if attribute in given else arrays[f"{name}.{attribute}"]
            if attribute != "channels_" and not np.isfinite(value).all():
                raise DuopldaError(f"{name}.{attribute} is not finite")
            setattr(step, attribute, value)
        if isinstance(step, Center) and (step.mean_.shape, step.channel_means_.shape) != (
            (d,),
            (len(step.channels_), d),
        ):
            raise DuopldaError(f"means have shapes {step.mean_.shape} and {step.channel_means_.shape}")
        if hasattr(step, "matrix_"):
            if step.matrix_.ndim != 2 or step.matrix_.shape[0] != d:
                raise DuopldaError(f"the matrix of {name} has shape {step.matrix_.shape}, and {d} dimensions come in")
            d = step.matrix_.shape[1]
        steps[name] = step
    return steps, d
