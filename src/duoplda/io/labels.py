"""Who speaks in which session: Kaldi maps (`utt2spk`, `spk2utt`, `utt2sess`) and tables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duoplda.errors import DuopldaError, MissingIds
from duoplda.io._atomic import atomic_path
from duoplda.io.common import TABLE_SUFFIXES, PathLike, bad, listed, shown
from duoplda.io.ids import Coded, as_ids, check_ids
from duoplda.io.text import is_table, line_of, longest_line, read_groups, read_list, read_table, write_columns

# What a column of labels may be called; the first name is what we write.
LABEL_COLUMNS = {
    "id": ("id", "ids", "utt", "utt_id", "uttid", "utterance", "segmentid", "segment", "recording", "filename"),
    "speaker": ("speaker", "spk", "speaker_id", "speakerid", "spk_id", "subjectid", "subject"),
    "session": ("session", "session_id", "sessionid", "sess", "sess_id"),
    "channel": ("channel", "channel_id", "chan"),
}


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """Labels of n recordings, all (n,) arrays of str.

    `speaker` or `session` is None where nobody labelled it. Names of sessions are as in the file: two speakers may use
    the same ones.

    >>> labels = LabelColumns(np.array(["a", "a-noise"]), np.array(["ann", "ann"]), np.array(["1", "1"]))
    >>> len(labels), labels.channel is None
    (2, True)
    """

    ids: np.ndarray
    speaker: np.ndarray | None
    session: np.ndarray | None = None
    channel: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)


def read_labels(
    speakers: PathLike,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    form: str = "auto",
) -> LabelColumns:
    """Read labels from Kaldi maps, or from one table.

    Parameters
    ----------
    speakers : `utt2spk` (lines `utterance speaker`), `spk2utt` (`speaker utterance utterance ...`), or a
        CSV, TSV or Parquet table with columns id, speaker and, where known, session and channel
    sessions, channels : maps of the same form as utt2spk, or tables; they must know every id of
        `speakers`, and take precedence over its columns
    columns : names of columns, e.g. {"id": "segmentid", "speaker": "subjectid"}
    form : what `speakers` is: "utt2spk", "spk2utt" or "table"; "auto" tells by content, then by file name

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "utt2spk").write_text("a alice\\nb bob\\n")
    ...     read_labels(folder + "/utt2spk").speaker.tolist()
    ['alice', 'bob']
    """
    table = _read_columns(speakers, "speaker", columns, form)
    labels = {meaning: column.values for meaning, column in table.items()}
    ids = labels["id"]
    for meaning, path in (("session", sessions), ("channel", channels)):
        values = read_map(path, meaning, columns)
        if path is None or values is None:
            continue
        missing = [name for name in ids.tolist() if name not in values]
        if missing:
            cause = f"lacks {len(missing)} of {len(ids)} ids"
            raise MissingIds(str(bad(path, "", cause, f"the first: {listed(missing)}")))
        labels[meaning] = np.array([values[name] for name in ids.tolist()], dtype=str)
    return LabelColumns(ids, labels["speaker"], labels.get("session"), labels.get("channel"))


def read_map(path: PathLike | None, column: str, columns: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """Read what a list says of each recording: lines `id value`, or a table with the columns id and `column`.

    Parameters
    ----------
    path : the list, or None
    column : what the values are: "speaker", "session", "channel", or the name of a column
    columns : names of columns, as for `read_labels`

    Returns
    -------
    id -> value, or None where no list is given

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "utt2sess").write_text("a monday\\nb tuesday\\n")
    ...     read_map(folder + "/utt2sess", "session")
    {'a': 'monday', 'b': 'tuesday'}
    """
    if path is None:
        return None
    table = _read_columns(path, column, columns)
    return dict(zip(table["id"].values.tolist(), table[column].values.tolist(), strict=True))


def _read_columns(
    path: PathLike, value: str, columns: Mapping[str, str] | None, form: str = "auto"
) -> dict[str, Coded]:
    """Read the columns `id`, in which no id may occur twice, and `value`; of a table also session and channel."""
    forms = ("auto", "utt2spk", "spk2utt", "table")
    if form not in forms:
        raise DuopldaError(f"form must be one of {', '.join(forms)}, got {form!r}")
    wanted = {m: LABEL_COLUMNS.get(m, (m.lower(),)) for m in ("id", value, "session", "channel")}
    if form == "auto":
        name = Path(path).name.lower()
        if columns or name.endswith(".tsv") or is_table(path, wanted, ("id", value)):
            form = "table"
        elif "2utt" in name or name.startswith("utt2"):
            form = "spk2utt" if "2utt" in name else "utt2spk"
        else:
            form = "spk2utt" if longest_line(path) > 2 else "utt2spk"
    if form == "table":
        unknown = set(columns or {}) - set(LABEL_COLUMNS)
        if unknown:
            raise DuopldaError(f"columns= knows {', '.join(LABEL_COLUMNS)}, not {', '.join(sorted(unknown))}")
        used = {m: name for m, name in (columns or {}).items() if m in wanted}
        table = read_table(path, wanted, used, optional=[m for m in ("session", "channel") if m != value])
    elif form == "spk2utt":
        table = dict(zip((value, "id"), read_groups(path), strict=True))
    else:
        table = dict(zip(("id", value), read_list(path, fields=(2,)), strict=True))
    if repeated := table["id"].repeated():
        name, row = repeated
        place = f"member {row + 1}" if form == "spk2utt" else line_of(path, row, header=form == "table")
        raise bad(path, place, f"id {shown(name)} is there already", "each recording has one line")
    return table


def write_map(path: PathLike, keys: Iterable[str], values: Iterable[str], *, force: bool = False) -> None:
    """Write lines `key value`: utt2spk, utt2sess, an enrolment map (`model utterance`).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_map(folder + "/utt2spk", ["a", "b"], ["ann", "bob"])
    ...     read_map(folder + "/utt2spk", "speaker")
    {'a': 'ann', 'b': 'bob'}
    """
    first, second = (check_ids(path, np.array(list(c), dtype=str), token=True) for c in (keys, values))
    if len(first) != len(second):
        raise bad(path, "", f"{len(first)} keys for {len(second)} values", "one value per key")
    with atomic_path(path, force=force) as temporary:
        write_columns(temporary, "", [[Coded.of(first), Coded.of(second)]])


def write_labels(path: PathLike, labels: LabelColumns, *, force: bool = False) -> None:
    """Write labels as one table: `.csv`, `.tsv` or `.parquet` with columns id, speaker, ...

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_labels(folder + "/labels.tsv", LabelColumns(np.array(["a", "b"]), np.array(["ann", "bob"])))
    ...     read_labels(folder + "/labels.tsv").speaker.tolist()
    ['ann', 'bob']
    """
    parts = {"id": labels.ids, "speaker": labels.speaker, "session": labels.session, "channel": labels.channel}
    columns = {k: Coded.of(as_ids(path, v)) for k, v in parts.items() if v is not None}
    write_table(path, columns, force=force)


def write_table(path: PathLike, columns: Mapping[str, Coded | np.ndarray], *, force: bool = False) -> None:
    """Write columns as a table with a header: `.csv`, `.tsv` or `.parquet`."""
    suffix = Path(path).suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise bad(path, "", f"suffix {suffix!r} names no table", "use .csv, .tsv or .parquet")
    with atomic_path(path, force=force) as temporary:
        write_columns(temporary, suffix, [list(columns.values())], list(columns))
