"""Who speaks in which session: Kaldi maps (`utt2spk`, `spk2utt`, `utt2sess`) and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duoplda.errors import DuopldaError, MissingIds
from duoplda.io._arrow import PARQUET
from duoplda.io._atomic import atomic_path
from duoplda.io._coded import Coded
from duoplda.io._common import PathLike, as_ids, bad, check_ids, listed, shown
from duoplda.io._text import (
    first_fields,
    is_table,
    line_of,
    longest_line,
    numbered_lines,
    read_list,
    read_table,
    write_columns,
)

COLUMNS = {
    "id": ("id", "ids", "utt", "utt_id", "uttid", "utterance", "segmentid", "segment", "recording", "filename"),
    "speaker": ("speaker", "spk", "speaker_id", "speakerid", "spk_id", "subjectid", "subject"),
    "session": ("session", "session_id", "sessionid", "sess", "sess_id"),
    "channel": ("channel", "channel_id", "chan"),
}
TABLES = (".tsv", ".csv", *PARQUET)
FORMS = ("auto", "utt2spk", "spk2utt", "table")


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Labels of n recordings, all (n,) arrays of str.

    `session` is None where no sessions were given: each recording is then a session of its own, which
    the caller should say. Session names are as in the file; two speakers may use the same ones.
    """

    ids: np.ndarray
    speaker: np.ndarray
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
) -> LabelTable:
    """Read labels from Kaldi maps, or from one table.

    Parameters
    ----------
    speakers : `utt2spk` (lines `utterance speaker`), `spk2utt` (`speaker utterance utterance ...`), or a
        CSV, TSV or Parquet table with columns id, speaker and, where known, session and channel
    sessions, channels : maps of the same form as utt2spk, or tables; they must know every id of
        `speakers`, and take precedence over its columns
    columns : names of columns, e.g. {"id": "segmentid", "speaker": "subjectid"}
    form : of `speakers`: "utt2spk", "spk2utt" or "table"; "auto" goes by content, then by file name

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "utt2spk").write_text("a alice\\nb bob\\n")
    ...     read_labels(folder + "/utt2spk").speaker.tolist()
    ['alice', 'bob']
    """
    table = _columns(speakers, "speaker", columns, form)
    ids = table["id"].values
    found: dict[str, np.ndarray | None] = {k: table[k].values if k in table else None for k in ("session", "channel")}
    for meaning, path in (("session", sessions), ("channel", channels)):
        if path is not None:
            other = _columns(path, meaning, columns)
            found[meaning] = _aligned(path, ids, other["id"].values, other[meaning])
    return LabelTable(ids, table["speaker"].values, found["session"], found["channel"])


def read_map(path: PathLike | None, column: str) -> dict[str, str] | None:
    """Read what a list says of each recording: lines `id value`, or a table with the columns id and `column`.

    Returns id -> value, or None where no list is given.

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
    found = _columns(path, column)
    return dict(zip(found["id"].values.tolist(), found[column].values.tolist(), strict=True))


def _columns(
    path: PathLike, value: str, columns: Mapping[str, str] | None = None, form: str = "auto"
) -> dict[str, Coded]:
    """Read the columns `id`, where each occurs once, and `value`; of a table session and channel, too."""
    if form not in FORMS:
        raise DuopldaError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    form = _form(path, value, columns) if form == "auto" else form
    if form == "table":
        wanted = {m: COLUMNS.get(m, (m.lower(),)) for m in dict.fromkeys(["id", value, "session", "channel"])}
        mine = {m: name for m, name in (columns or {}).items() if m in wanted}
        unknown = set(columns or {}) - set(COLUMNS)
        if unknown:
            raise DuopldaError(f"columns= knows {', '.join(COLUMNS)}, not {', '.join(sorted(unknown))}")
        found = read_table(path, wanted, mine, optional=[m for m in ("session", "channel") if m != value])
    elif form == "spk2utt":
        found = dict(zip((value, "id"), read_groups(path), strict=True))
    else:
        found = dict(zip(("id", value), read_list(path, fields=(2,)), strict=True))
    ids = found["id"]
    if len(ids.names) != len(ids):
        code = int(np.flatnonzero(np.bincount(ids.codes) > 1)[0])
        row = int(np.flatnonzero(ids.codes == code)[1])
        place = f"member {row + 1}" if form == "spk2utt" else line_of(path, row, header=form == "table")
        cause = f"id {shown(str(ids.names[code]))} is there already"
        raise bad(path, place, cause, "each recording has one line")
    return found


def _form(path: PathLike, value: str, columns: Mapping[str, str] | None) -> str:
    name = Path(path).name.lower()
    wanted = {"id": COLUMNS["id"], value: COLUMNS.get(value, (value.lower(),))}
    if columns or name.endswith(".tsv") or is_table(path, wanted, ("id", value)):
        return "table"
    if "2utt" in name or name.startswith("utt2"):
        return "spk2utt" if "2utt" in name else "utt2spk"
    return "spk2utt" if longest_line(path) > 2 else "utt2spk"


def read_groups(path: PathLike) -> tuple[Coded, Coded]:
    """Read lines `owner member member ...` as two columns with a row per member."""
    first_fields(path)  # or an error that says why it is no list
    lines = []
    for number, fields in numbered_lines(path):
        if len(fields) == 1:
            cause = f"{shown(fields[0].decode())} has no members"
            raise bad(path, f"line {number}", cause, "lines are `owner member ...`")
        lines.append(fields)
    owners = Coded.of(as_ids(path, np.array([line[0] for line in lines], object)))
    if len(owners.names) != len(owners):
        twice = owners.names[np.flatnonzero(np.bincount(owners.codes) > 1)[0]]
        raise bad(path, "", f"{shown(str(twice))} starts two lines", "put its members on one line")
    members = as_ids(path, np.array([member for line in lines for member in line[1:]], object))
    return Coded(owners.names, np.repeat(owners.codes, [len(line) - 1 for line in lines])), Coded.of(members)


def _aligned(path: PathLike, ids: np.ndarray, theirs: np.ndarray, values: Coded) -> np.ndarray:
    """Put the values of `theirs` in the order of `ids`."""
    where = {name: i for i, name in enumerate(theirs.tolist())}
    rows = np.array([where.get(name, -1) for name in ids.tolist()])
    if (rows < 0).any():
        missing = ids[rows < 0].tolist()
        raise MissingIds(str(bad(path, "", f"lacks {len(missing)} of {len(ids)} ids", f"the first: {listed(missing)}")))
    return values.values[rows]


def write_map(path: PathLike, keys: Iterable[str], values: Iterable[str], *, force: bool = False) -> None:
    """Write lines `key value`: utt2spk, utt2sess, an enrolment map (`model utterance`)."""
    first, second = (as_ids(path, np.asarray(list(c), dtype=str)) for c in (keys, values))
    if len(first) != len(second):
        raise bad(path, "", f"{len(first)} keys for {len(second)} values", "one value per key")
    for column in (first, second):
        check_ids(path, column, token=True)
    with atomic_path(path, force=force) as temporary:
        write_columns(temporary, "", [[Coded.of(first), Coded.of(second)]])


def write_labels(path: PathLike, labels: LabelTable, *, force: bool = False) -> None:
    """Write labels as one table: `.csv`, `.tsv` or `.parquet` with columns id, speaker, ..."""
    parts = {"id": labels.ids, "speaker": labels.speaker, "session": labels.session, "channel": labels.channel}
    columns = {k: Coded.of(as_ids(path, v)) for k, v in parts.items() if v is not None}
    write_table(path, columns, force=force)


def write_table(path: PathLike, columns: Mapping[str, Coded | np.ndarray], *, force: bool = False) -> None:
    """Write columns as a table with a header: `.csv`, `.tsv` or `.parquet`."""
    suffix = Path(path).suffix.lower()
    if suffix not in TABLES:
        raise bad(path, "", f"suffix {suffix!r} names no table", "use .csv, .tsv or .parquet")
    with atomic_path(path, force=force) as temporary:
        write_columns(temporary, suffix, [list(columns.values())], list(columns))
