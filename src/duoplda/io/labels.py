"""Labels of recordings in Kaldi maps (`utt2spk`, `spk2utt`, `utt2sess`) and tables, and partitions into clusters.

They are read as texts; `duoplda.data.labels` turns them into integers.
"""

import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError, MissingIds
from duoplda.io._atomic import atomic_path
from duoplda.io._source import FilePart, check_count, label
from duoplda.io.common import AUDIO_SUFFIXES, TABLE_SUFFIXES, PathLike, bad, content, held, listed, plain_name, shown
from duoplda.io.ids import ID_NAMES, Coded, as_ids, check_ids
from duoplda.io.text import (
    Header,
    has_groups,
    is_table,
    line_of,
    read_groups,
    read_header,
    read_list,
    read_table,
    write_columns,
)

# Names that a column of labels may have, the likeliest first. The first name is the one we write. The names of
# recordings are among those of sessions: where ids are those of utterances or segments, a recording is a session.
LABEL_COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ID_NAMES,
    "speaker": ("speaker", "spk", "speaker_id", "speakerid", "spk_id", "spkid", "subjectid", "subject", "subject_id"),
    "session": ("session", "session_id", "sessionid", "sess", "sess_id", "call", "call_id", "callid", "conversation"),
    "channel": ("channel", "channel_id", "chan"),
}
LABEL_COLUMNS["speaker"] += ("person", "person_id", "client_id", "identity", "speaker_name", "spk_name")
LABEL_COLUMNS["session"] += ("conversation_id", "conv", "conv_id", "video", "video_id", "youtube_id", "meeting")
LABEL_COLUMNS["session"] += ("meeting_id", "recording", "recording_id", "rec_id")
LABEL_COLUMNS["occasion"] = ("occasion", "occasion_id", "occasionid", "sitting", "sitting_id", "visit", "day")


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """Labels of n recordings, as arrays (n,) of str.

    A level that nobody labelled is None. Names of sessions are as in the file, where two speakers may have the same
    ones.

    >>> labels = LabelColumns(np.array(["a", "a-noise"]), np.array(["ann", "ann"]), np.array(["1", "1"]))
    >>> len(labels), labels.channel is None
    (2, True)
    """

    ids: np.ndarray
    speaker: np.ndarray | None
    session: np.ndarray | None = None
    channel: np.ndarray | None = None
    read_as: str = ""  # a sentence on how a table was read, if its columns do not have the usual names
    occasion: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | np.ndarray) -> "LabelColumns":
        """Return the labels of some of the recordings."""
        return LabelColumns.of({name: column[rows] for name, column in self.by_name.items()})

    @staticmethod
    def of(columns: Mapping[str, np.ndarray], read_as: str = "") -> "LabelColumns":
        """Return labels of the columns that `by_name` returns; a column that is not there is not known."""
        known: Any = {name: columns.get(name) for name in LABEL_COLUMNS if name != "id"}
        return LabelColumns(columns["id"], **known, read_as=read_as)

    @property
    def by_name(self) -> dict[str, np.ndarray]:
        """Those of the columns id, speaker, session, channel and occasion that are known."""
        columns = {"id": self.ids, **{name: getattr(self, name) for name in LABEL_COLUMNS if name != "id"}}
        return {name: column for name, column in columns.items() if column is not None}


def read_labels(
    speakers: PathLike,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    *,
    occasions: PathLike | None = None,
    columns: Mapping[str, str] | None = None,
    form: str = "auto",
) -> LabelColumns:
    """Read labels from Kaldi maps, or from one table.

    Parameters
    ----------
    speakers : `utt2spk` (lines `utterance speaker`), `spk2utt` (`speaker utterance utterance ...`), or a
        CSV, TSV or Parquet table with columns id, speaker and, where known, session, channel and occasion
    sessions, channels, occasions : maps of the same form as utt2spk, or tables; they must know every id of
        `speakers`, and take precedence over its columns
    columns : names of columns where they are not among the usual ones, e.g. {"speaker": "who", "session": "take"};
        of a table without header their numbers, e.g. {"id": "1", "speaker": "2"}. A table whose sessions are not
        found, and which has columns that are not used, gives a warning.
    form : what `speakers` is: "utt2spk", "spk2utt" or "table"; "auto" tells by content, then by file name

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "utt2spk").write_text("a alice\\nb bob\\n")
    ...     read_labels(folder + "/utt2spk").speaker.tolist()
    ['alice', 'bob']
    """
    lists = {"session": sessions, "channel": channels, "occasion": occasions}
    levels = [meaning for meaning, path in lists.items() if path is None]
    table, header = _read_columns(speakers, ("speaker", *levels), columns, form)
    if header is not None and "session" in levels:
        warn_of_sessions(header)
    labels = {meaning: column.values for meaning, column in table.items()}
    ids = labels["id"]
    for meaning, path in lists.items():
        if path is None:
            continue
        values = read_map(path, meaning, columns) or {}
        missing = [name for name in ids.tolist() if name not in values]
        if missing:
            cause = f"lacks {len(missing)} of {len(ids)} ids"
            raise MissingIds(str(bad(path, "", cause, f"the first: {listed(missing)}; it has {listed([*values][:3])}")))
        labels[meaning] = np.array([values[name] for name in ids.tolist()], dtype=str)
    return LabelColumns.of(labels, "" if header is None else header.read_as())


def read_own_labels(
    path: PathLike, kind: str, columns: Mapping[str, str] | None = None, part: FilePart | None = None
) -> LabelColumns:
    """Read the labels that are columns of a file of embeddings; its vectors are not read."""
    if kind != "parquet":
        remedy = "give a list of labels beside it, or write Parquet with labels= of write_embeddings"
        raise bad(path, "", f"is {kind}, which has no room for labels", remedy)
    header = read_header(path, LABEL_COLUMNS, columns, ("session", "channel", "occasion"))
    warn_of_sessions(header)
    table = read_table(header, part=part)
    check_count(label(path, part), None if part is None else part.n, len(table["id"]))
    return LabelColumns.of({meaning: table.pop(meaning).values for meaning in [*table]}, header.read_as())


def warn_of_sessions(header: Header) -> None:
    """Warn if a table has no column of sessions but columns that are not used: one of them may have the sessions."""
    if "session" not in header.name_of and header.unused:
        usual = ", ".join(LABEL_COLUMNS["session"][:10])
        cause = f"no column is called {usual}, ..., and {listed(header.unused)} are not used"
        remedy = "if one of these says which conversation a recording is of, name it: `columns` session=NAME"
        warnings.warn(str(bad(header.path, "", f"no sessions are read: {cause}", remedy)), UserWarning, stacklevel=3)


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
    table, _ = _read_columns(path, (column,), columns)
    return dict(zip(table["id"].values.tolist(), table[column].values.tolist(), strict=True))


def _read_columns(
    path: PathLike, values: Sequence[str], columns: Mapping[str, str] | None, form: str = "auto"
) -> tuple[dict[str, Coded], Header | None]:
    """Read the column `id`, in which no id may occur twice, and the first of `values`; from a table the others, too.

    The header is None for a list.
    """
    forms = ("auto", "utt2spk", "spk2utt", "table")
    if form not in forms:
        raise DuopldaError(f"form must be one of {', '.join(forms)}, got {form!r}")
    wanted = {m: LABEL_COLUMNS.get(m, (m.lower(),)) for m in ("id", *values)}
    value = values[0]
    path = held(path)
    if form == "auto":
        name = plain_name(path)
        if name.endswith(".tsv") or is_table(path, wanted, ("id", value), columns):
            form = "table"
        elif "2utt" in name or name.startswith("utt2"):
            form = "spk2utt" if "2utt" in name else "utt2spk"
        else:
            form = "spk2utt" if has_groups(path) else "utt2spk"
    header = None
    if form == "table":
        header = read_header(path, wanted, columns, values[1:])
        table = read_table(header)
    elif form == "spk2utt":
        table = dict(zip((value, "id"), read_groups(path), strict=True))
    else:
        table = dict(zip(("id", value), read_list(path, fields=(2,)), strict=True))
    if value == "speaker" and any(name.lower().endswith(AUDIO_SUFFIXES) for name in table[value].names[:1].tolist()):
        raise bad(path, "", "lines look like `recording audio`, not `recording speaker`", "give a list of speakers")
    _warn_of_names(path, table)
    if repeated := table["id"].repeated():
        name, row = repeated
        remedy = "each recording has one line"
        if form == "utt2spk" and len(table[value].names) == len(table["id"]):
            remedy = f"lines look like `{value} recording`, not `recording {value}`: say `columns` id=2,{value}=1"
        elif form == "spk2utt":
            remedy += f"; if lines are `recording {value} session`, say `columns` id=1,{value}=2,session=3"
        place = f"member {row + 1}" if form == "spk2utt" else line_of(path, row, header=header is not None)
        raise bad(path, place, f"id {shown(name)} is there already", remedy)
    return table, header


def _warn_of_names(path: PathLike, table: Mapping[str, Coded]) -> None:
    """Warn of names that seem to be gaps, which would join strangers, and of one name that is coded in two ways."""
    for meaning in ("speaker", "session"):
        if meaning not in table:
            continue
        column = table[meaning]
        names = column.names.tolist()
        for code, name in enumerate(names):
            if name.lower() in ("nan", "<na>", "none", "null"):
                n = int(np.count_nonzero(column.codes == code))
                cause = f"{n} recordings have the {meaning} {shown(name)}, which is taken for a name"
                warnings.warn(str(bad(path, "", cause, "if it is a gap, fill it or leave them out")), stacklevel=4)
        # An accent may be a character of its own, as in names of files on macOS. Then one person would count as two.
        accented = [name for name in names if not name.isascii()]
        if len({unicodedata.normalize("NFC", name) for name in accented}) < len(accented):
            cause = f"some names of the column {meaning} look alike and differ in how their accents are coded"
            remedy = "if they are one, write all in one form of Unicode, such as NFC"
            warnings.warn(str(bad(path, "", cause, remedy)), stacklevel=4)


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
    write_table(path, label_table(path, labels), force=force)


def label_table(path: PathLike, labels: LabelColumns) -> dict[str, Coded]:
    """Return the columns of a table of labels, by name."""
    return {name: Coded.of(as_ids(path, values)) for name, values in labels.by_name.items()}


def write_table(path: PathLike, columns: Mapping[str, Coded | np.ndarray], *, force: bool = False) -> None:
    """Write columns as a table with a header: `.csv`, `.tsv` or `.parquet`."""
    suffix = Path(path).suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise bad(path, "", f"suffix {suffix!r} names no table", "use .csv, .tsv or .parquet")
    with atomic_path(path, force=force) as temporary:
        write_columns(temporary, suffix, [list(columns.values())], list(columns))


# -- partitions: the cluster, or the session, of each recording


def read_partition(path: PathLike, column: str = "cluster", columns: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read the cluster of each recording: a table with the columns `recording` and `cluster`, or Kaldi's `utt2spk`.

    A table (TSV, CSV or Parquet) may have further columns. If it has both a `cluster` and a `speaker`, `column` says
    which of them is read; if it has only one of them, that one is read. Lists without a header are those of
    `read_labels`: `recording cluster`, or `cluster recording recording ...`. `columns` names columns as for
    `read_labels`, and may also name "cluster".

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

    One of the two columns may be missing, for which None is returned. A column `speaker` is not needed. `columns` names
    columns as for `read_labels`.

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
    levels = [level for level in ("session", "channel") if level in header.name_of]
    if not levels:
        remedy = f"name one: `columns` session=NAME; it has {listed(header.names)}"
        raise bad(path, "header", "has neither a session nor a channel column", remedy)
    warn_of_sessions(header)
    table, _ = _read_columns(path, levels, columns)
    ids = table["id"].values.tolist()
    by_id = {level: dict(zip(ids, table[level].values.tolist(), strict=True)) for level in levels}
    return by_id.get("session"), by_id.get("channel")


def label_columns(path: PathLike, columns: Mapping[str, str] | None = None) -> set[str]:
    """Say which of the columns id, speaker, session, channel and occasion a table (TSV, CSV or Parquet) has.

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
