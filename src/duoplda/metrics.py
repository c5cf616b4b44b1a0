"""Metrics of scores, partitions and models, collected from the rooms below under the name that users import."""

from duoplda.estimators import scorers as _scorers
from duoplda.estimators.scorers import *  # noqa: F403
from duoplda.evaluation import metrics as _metrics
from duoplda.evaluation import partitions as _partitions
from duoplda.evaluation import resampling as _resampling
from duoplda.evaluation import support as _support
from duoplda.evaluation.metrics import *  # noqa: F403
from duoplda.evaluation.partitions import *  # noqa: F403
from duoplda.evaluation.resampling import *  # noqa: F403
from duoplda.evaluation.support import *  # noqa: F403

__all__ = [*_metrics.__all__, *_resampling.__all__, *_partitions.__all__, *_support.__all__, *_scorers.__all__]
