"""Files in and out: embeddings, labels, trials, enrolment maps and scores, one module per format.

Nothing here computes anything, and nothing runs what a file says: no pickle, no shell. Whatever is wrong
with a file is a `DuopldaError` of one line that names the file, the place, the cause and the remedy.
h5py and pyarrow are asked for when a format needs them (`pip install duoplda[files]`).
"""

from duoplda.io._atomic import atomic_path
from duoplda.io._coded import Coded
from duoplda.io.embeddings import Embeddings, read_embeddings, write_embeddings
from duoplda.io.labels import Labels, read_labels, write_labels, write_map
from duoplda.io.scores import ScoreMatrix, Scores, read_score_matrix, read_scores, write_scores
from duoplda.io.shards import Shard, embedding_shards
from duoplda.io.trials import Enrollment, Trials, read_enrollment, read_trials, write_trials

__all__ = [
    "Coded",
    "Embeddings",
    "Enrollment",
    "Labels",
    "ScoreMatrix",
    "Scores",
    "Shard",
    "Trials",
    "atomic_path",
    "embedding_shards",
    "read_embeddings",
    "read_enrollment",
    "read_labels",
    "read_score_matrix",
    "read_scores",
    "read_trials",
    "write_embeddings",
    "write_labels",
    "write_map",
    "write_scores",
    "write_trials",
]
