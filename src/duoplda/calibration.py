"""From scores to log-likelihood ratios: `duoplda.evaluation.calibration` under the name that users type."""

from duoplda.evaluation.calibration import *  # noqa: F403
from duoplda.evaluation.calibration import __all__ as __all__
