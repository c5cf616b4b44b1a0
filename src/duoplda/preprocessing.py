"""The transformers before PLDA: `duoplda.estimators.preprocessing` under the name that users type."""

from duoplda.estimators.preprocessing import *  # noqa: F403
from duoplda.estimators.preprocessing import __all__ as __all__
