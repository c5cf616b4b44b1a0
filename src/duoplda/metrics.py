"""How good scores and partitions are: names of `duoplda.evaluation` under the name that users type."""

from duoplda.evaluation import metrics as _metrics
from duoplda.evaluation import partitions as _partitions
from duoplda.evaluation.metrics import *  # noqa: F403
from duoplda.evaluation.partitions import *  # noqa: F403

__all__ = [*_metrics.__all__, *_partitions.__all__]
