"""Partitions in files: the cluster, or the session, of each recording."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from duoplda.io.common import TABLE_SUFFIXES, PathLike, bad, content
from duoplda.io.ids import Coded, check_ids
from duoplda.io.labels import LABEL_COLUMNS, read_labels, read_map, write_map, write_table
from duoplda.io.text import column_names


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
    names = {n.strip().lower() for n in column_names(path)}
    known = {"cluster": {"cluster"}, "speaker": set(LABEL_COLUMNS["speaker"])}
    present = [meaning for meaning in (column, *known) if names & known.get(meaning, set())]
    value = present[0] if present else column
    header = bool(present and names & set(LABEL_COLUMNS["id"]))
    if header or Path(path).suffix.lower() == ".csv" or content(path) == "parquet":
        return read_map(path, value) or {}
    labels = read_labels(path, form="utt2spk" if Path(path).suffix.lower() == ".tsv" else "auto")
    assert labels.speaker is not None  # a list of speakers has them
    return dict(zip(labels.ids.tolist(), labels.speaker.tolist(), strict=True))


def read_sessions(path: PathLike) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    """Read the session and the kind of channel of each recording from a table (TSV, CSV or Parquet).

    None stands for the column that is not there; one of the two must be. A column `speaker` is not needed.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "table.csv").write_text("id,session\\na,monday\\nb,tuesday\\n")
    ...     read_sessions(folder + "/table.csv")
    ({'a': 'monday', 'b': 'tuesday'}, None)
    """
    present = label_columns(path)
    if not present & {"session", "channel"}:
        raise bad(path, "header", "has neither a session nor a channel column", "name one of the columns `session`")
    session, channel = (read_map(path, m) if m in present else None for m in ("session", "channel"))
    return session, channel


def label_columns(path: PathLike) -> set[str]:
    """Say which of the columns id, speaker, session and channel a table (TSV, CSV or Parquet) has.

    A list without a header has none of them.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "table.csv").write_text("utt,sess\\na,monday\\n")
    ...     sorted(label_columns(folder + "/table.csv"))
    ['id', 'session']
    """
    names = {n.strip().lower() for n in column_names(path)}
    return {meaning for meaning, known in LABEL_COLUMNS.items() if names & set(known)}


def write_partition(
    path: PathLike,
    recording: Iterable[str],
    cluster: Iterable[str],
    *,
    force: bool = False,
    **more: Iterable[str] | np.ndarray,
) -> None:
    """Write the cluster of each recording, as `read_partition` reads it.

    `.tsv`, `.csv` and `.parquet` are tables with the columns `recording`, `cluster` and those of `more`, by their
    names: texts, or floats. Anything else is Kaldi's `utt2spk`, without them.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_partition(folder + "/utt2spk.tsv", ["a", "b"], ["spk1", "spk2"], margin=np.array([1.5, 0.25]))
    ...     print(Path(folder, "utt2spk.tsv").read_text().expandtabs(12), end="")
    recording   cluster     margin
    a           spk1        1.5
    b           spk2        0.25
    """
    texts = {"recording": np.array(list(recording), str), "cluster": np.array(list(cluster), str)}
    if len(np.unique(texts["recording"])) < len(texts["recording"]):
        raise bad(path, "", "a recording occurs twice", "each recording is in one cluster")
    if Path(path).suffix.lower() not in TABLE_SUFFIXES:
        write_map(path, texts["recording"], texts["cluster"], force=force)
        return
    columns: dict[str, Coded | np.ndarray] = {}
    for name, values in (texts | more).items():
        if isinstance(values, np.ndarray) and values.dtype.kind == "f":
            columns[name] = values
        else:
            columns[name] = Coded.of(check_ids(path, np.array(list(values), str)))
        if len(columns[name]) != len(texts["recording"]):
            cause = f"{len(columns[name])} values of {name} for {len(texts['recording'])} recordings"
            raise bad(path, "", cause, "give one for each recording")
    write_table(path, columns, force=force)
