"""Partitions in files: the cluster, or the session, of each recording."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from duoplda.io.common import TABLE_SUFFIXES, PathLike, bad, content, held, listed, plain_name
from duoplda.io.ids import Coded, check_ids
from duoplda.io.labels import LABEL_COLUMNS, read_labels, read_map, warn_of_sessions, write_map, write_table
from duoplda.io.text import read_header


def read_partition(path: PathLike, column: str = "cluster", columns: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read the cluster of each recording: a table with the columns `recording` and `cluster`, or Kaldi's `utt2spk`.

    A table (TSV, CSV or Parquet) may have further columns. If it has both a `cluster` and a `speaker`, `column` says
    which is read; if it has one of them, that one is. Lists without a header are those of `read_labels`:
    `recording cluster`, or `cluster recording recording ...`. `columns` names columns as for `read_labels`, and
    "cluster".

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "utt2spk.tsv").write_text("recording\\tcluster\\tscore\\na\\t1\\t.9\\nb\\t1\\t.8\\n")
    ...     read_partition(folder + "/utt2spk.tsv")
    {'a': '1', 'b': '1'}
    """
    path = held(path)
    wanted = {"id": LABEL_COLUMNS["id"], "cluster": ("cluster",), "speaker": LABEL_COLUMNS["speaker"]}
    present = read_header(path, wanted, columns, tuple(wanted)).name_of
    value = next((meaning for meaning in (column, "cluster", "speaker") if meaning in present), None)
    if (value and "id" in present) or plain_name(path).endswith(".csv") or content(path) == "parquet":
        return read_map(path, value or column, columns) or {}
    labels = read_labels(path, form="utt2spk" if plain_name(path).endswith(".tsv") else "auto")
    assert labels.speaker is not None  # a list of speakers has them
    return dict(zip(labels.ids.tolist(), labels.speaker.tolist(), strict=True))


def read_sessions(
    path: PathLike, columns: Mapping[str, str] | None = None
) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    """Read the session and the kind of channel of each recording from a table (TSV, CSV or Parquet).

    None stands for the column that is not there; one of the two must be. A column `speaker` is not needed. `columns`
    names columns as for `read_labels`.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "table.csv").write_text("id,session\\na,monday\\nb,tuesday\\n")
    ...     read_sessions(folder + "/table.csv")
    ({'a': 'monday', 'b': 'tuesday'}, None)
    """
    path = held(path)
    header = read_header(path, LABEL_COLUMNS, columns, tuple(LABEL_COLUMNS))
    if not {*header.name_of} & {"session", "channel"}:
        remedy = f"name one: `columns` session=NAME; it has {listed(header.names)}"
        raise bad(path, "header", "has neither a session nor a channel column", remedy)
    warn_of_sessions(header)
    session, channel = (read_map(path, m, columns) if m in header.name_of else None for m in ("session", "channel"))
    return session, channel


def label_columns(path: PathLike, columns: Mapping[str, str] | None = None) -> set[str]:
    """Say which of the columns id, speaker, session and channel a table (TSV, CSV or Parquet) has.

    A list without a header has none of them. `columns` names columns as for `read_labels`.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "table.csv").write_text("utt,sess\\na,monday\\n")
    ...     sorted(label_columns(folder + "/table.csv"))
    ['id', 'session']
    """
    return {*read_header(held(path), LABEL_COLUMNS, columns, tuple(LABEL_COLUMNS)).name_of}


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
