"""Pictures of scores and models: `duoplda.report.plots` under the name that users type."""

from duoplda.report.plots import *  # noqa: F403
from duoplda.report.plots import __all__ as __all__
