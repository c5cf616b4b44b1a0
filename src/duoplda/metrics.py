"""How good scores are: `duoplda.evaluation.metrics` under the name that users type."""

from duoplda.evaluation.metrics import *  # noqa: F403
from duoplda.evaluation.metrics import __all__ as __all__
