"""Reading and writing files: embeddings, labels, trials, enrolment maps, scores and models, one module per format.

Nothing here computes anything, and nothing that a file holds is executed: no pickle, no shell. A file that cannot be
read raises a `DuopldaError` of one line, which names the file, the place, the cause and the remedy. h5py and pyarrow
are imported when a format needs them (`pip install duoplda[files]`).
"""

from duoplda.io._atomic import atomic_path, atomic_paths, check_output
from duoplda.io.container import is_container, read_container, write_container
from duoplda.io.embeddings import Embeddings, Shard, embedding_shards, read_embeddings, write_embeddings
from duoplda.io.extractors import ExtractorName, read_extractor
from duoplda.io.hyperion import write_hyperion
from duoplda.io.ids import Coded
from duoplda.io.kaldi_plda import DiagonalModel, write_kaldi_plda
from duoplda.io.labels import (
    LabelColumns,
    label_columns,
    read_labels,
    read_map,
    read_partition,
    read_sessions,
    write_labels,
    write_map,
    write_partition,
)
from duoplda.io.models import ForeignModel, read_model
from duoplda.io.quality import QualityTable, read_quality
from duoplda.io.recordings import FileRecordings, read_recordings, source_files
from duoplda.io.scores import ScoreMatrix, Scores, read_score_matrix, read_scores, scores_frame, write_scores
from duoplda.io.trials import Enrollment, Trials, read_enrollment, read_trials, write_trials
from duoplda.io.vbx import Transform, read_transform, write_pair, write_vbx

__all__ = [
    "Coded",
    "DiagonalModel",
    "Embeddings",
    "Enrollment",
    "ExtractorName",
    "FileRecordings",
    "ForeignModel",
    "LabelColumns",
    "QualityTable",
    "ScoreMatrix",
    "Scores",
    "Shard",
    "Transform",
    "Trials",
    "atomic_path",
    "atomic_paths",
    "check_output",
    "embedding_shards",
    "is_container",
    "label_columns",
    "read_container",
    "read_embeddings",
    "read_enrollment",
    "read_extractor",
    "read_labels",
    "read_map",
    "read_model",
    "read_partition",
    "read_quality",
    "read_recordings",
    "read_score_matrix",
    "read_scores",
    "read_sessions",
    "read_transform",
    "read_trials",
    "scores_frame",
    "source_files",
    "write_container",
    "write_embeddings",
    "write_hyperion",
    "write_kaldi_plda",
    "write_labels",
    "write_map",
    "write_pair",
    "write_partition",
    "write_scores",
    "write_trials",
    "write_vbx",
]
