"""Who belongs together: the cluster of each recording."""

from pathlib import Path

from duoplda.io._arrow import schema_of
from duoplda.io._common import PathLike, content
from duoplda.io._text import header_fields
from duoplda.io.labels import COLUMNS, read_labels, read_map

VALUES = {"cluster": ("cluster",), "speaker": COLUMNS["speaker"]}


def read_partition(path: PathLike, column: str = "cluster") -> dict[str, str]:
    """Read the cluster of each recording: a table with the columns `recording` and `cluster`, or Kaldi's `utt2spk`.

    A table (TSV, CSV or Parquet) may have further columns. If it has both a `cluster` and a `speaker`, `column` says
    which is read; if it has one of them, that one is. Lists without a header are those of `read_labels`:
    `recording cluster`, or `cluster recording recording ...`.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "utt2spk.tsv").write_text("recording\\tcluster\\tscore\\na\\t1\\t.9\\nb\\t1\\t.8\\n")
    ...     read_partition(folder + "/utt2spk.tsv")
    {'a': '1', 'b': '1'}
    """
    parquet = content(path) == "parquet"
    names = {n.strip().lower() for n in (schema_of(path) if parquet else header_fields(path))[0]}
    there = {meaning: names & {*known} for meaning, known in VALUES.items()}
    value = next((m for m in (column, *VALUES) if there.get(m)), column)
    header = bool(names & {*COLUMNS["id"]}) and any(there.values())
    if parquet or header or Path(path).suffix.lower() == ".csv":
        return read_map(path, value) or {}
    labels = read_labels(path, form="utt2spk" if Path(path).suffix.lower() == ".tsv" else "auto")
    return dict(zip(labels.ids.tolist(), labels.speaker.tolist(), strict=True))
