"""Calibration of scores: `duoplda.evaluation.calibration` under the name that users import."""

from duoplda.evaluation.calibration import *  # noqa: F403
from duoplda.evaluation.calibration import __all__ as __all__
