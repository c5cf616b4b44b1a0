"""Who speaks in which session: Kaldi maps (`utt2spk`, `spk2utt`, `utt2sess`) and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duoplda.errors import DuopldaError, MissingIds
from duoplda.io._atomic import atomic_path
from duoplda.io._coded import Coded
from duoplda.io._common import PathLike, as_ids, bad, check_ids, guarded, listed, need, open_binary, shown
from duoplda.io._text import (
    arrow,
    first_line,
    has_columns,
    is_parquet,
    line_of,
    read_list,
    read_table,
    words,
    write_columns,
)

COLUMNS = {
    "id": ("id", "ids", "utt", "utt_id", "uttid", "utterance", "segmentid", "segment", "recording", "filename"),
    "speaker": ("speaker", "spk", "speaker_id", "speakerid", "spk_id", "subjectid", "subject"),
    "session": ("session", "session_id", "sessionid", "sess", "sess_id"),
    "channel": ("channel", "channel_id", "chan"),
}
FORMS = ("auto", "utt2spk", "spk2utt", "table")


@dataclass(frozen=True, eq=False)
class Labels:
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
) -> Labels:
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
    ids = _unique(speakers, table["id"])
    found: dict[str, np.ndarray | None] = {k: table[k].values if k in table else None for k in ("session", "channel")}
    for meaning, path in (("session", sessions), ("channel", channels)):
        if path is not None:
            other = _columns(path, meaning, columns, "auto")
            found[meaning] = _aligned(path, ids, _unique(path, other["id"]), other[meaning])
    return Labels(ids, table["speaker"].values, found["session"], found["channel"])


def _columns(path: PathLike, value: str, columns: Mapping[str, str] | None, form: str) -> dict[str, Coded]:
    """The columns `id` and `value` of a file of any form, and session and channel where a table has them."""
    if form not in FORMS:
        raise DuopldaError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if form == "auto":
        form = _form(path, value, columns)
    if form == "table":
        wanted = {m: COLUMNS[m] for m in ("id", value, *(m for m in ("session", "channel") if m != value))}
        mine = {m: name for m, name in (columns or {}).items() if m in wanted}
        unknown = set(columns or {}) - set(COLUMNS)
        if unknown:
            raise DuopldaError(f"columns= knows {', '.join(COLUMNS)}, not {', '.join(sorted(unknown))}")
        return read_table(path, wanted, mine, optional=("session", "channel"))
    if form == "spk2utt":
        owner, members = read_groups(path)
        return {"id": members, value: owner}
    first, second = read_list(path, fields=(2,))
    return {"id": first, value: second}


def _form(path: PathLike, value: str, columns: Mapping[str, str] | None) -> str:
    suffix, name = Path(path).suffix.lower(), Path(path).name.lower()
    if is_parquet(path) or suffix in (".csv", ".tsv") or columns or has_columns(path, COLUMNS, ("id", value)):
        return "table"
    if "2utt" in name:
        return "spk2utt"
    if name.startswith("utt2"):
        return "utt2spk"
    with open_binary(path) as raw, open(raw.fileno(), "rb", closefd=False) as f:
        return "spk2utt" if any(len(line.split()) > 2 for line in f) else "utt2spk"


def read_groups(path: PathLike) -> tuple[Coded, Coded]:
    """Lines `owner member member ...` as two columns, a row per member; one Python step per line."""
    first_line(path)
    owners: list[str] = []
    counts: list[int] = []
    members: list[str] = []
    with open_binary(path) as raw, open(raw.fileno(), "rb", closefd=False) as f:
        for number, line in enumerate(f, 1):
            try:
                fields = words(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as e:
                raise bad(path, f"line {number}", "is not UTF-8", "write the list in UTF-8") from e
            if len(fields) == 1:
                raise bad(path, f"line {number}", f"{shown(fields[0])} has no members", "lines are `owner member ...`")
            if fields:
                owners.append(fields[0])
                counts.append(len(fields) - 1)
                members += fields[1:]
    names = as_ids(path, np.array(owners, object))
    coded = Coded.of(names)
    if len(coded.names) != len(owners):
        twice = names[np.flatnonzero(np.bincount(coded.codes) > 1)[0] == coded.codes][0]
        raise bad(path, "", f"{shown(str(twice))} starts two lines", "put its members on one line")
    checked = as_ids(path, np.array(members, object))
    return Coded(coded.names, np.repeat(coded.codes, counts)), Coded.of(checked)


def _unique(path: PathLike, ids: Coded) -> np.ndarray:
    """Ids as an array, each of which occurs once."""
    if len(ids.names) != len(ids):
        code = int(np.flatnonzero(np.bincount(ids.codes) > 1)[0])
        row = int(np.flatnonzero(ids.codes == code)[1])
        name = shown(str(ids.names[code]))
        raise bad(path, line_of(path, row), f"id {name} is there already", "each recording has one line")
    return ids.values


def _aligned(path: PathLike, ids: np.ndarray, theirs: np.ndarray, values: Coded) -> np.ndarray:
    """The values of `theirs` in the order of `ids`."""
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
        write_columns(temporary, [[Coded.of(first), Coded.of(second)]], delimiter=" ")


def write_labels(path: PathLike, labels: Labels, *, force: bool = False) -> None:
    """Write labels as one table: `.csv`, `.tsv` or `.parquet` with columns id, speaker, ..."""
    parts = {"id": labels.ids, "speaker": labels.speaker, "session": labels.session, "channel": labels.channel}
    columns = {k: Coded.of(as_ids(path, v)) for k, v in parts.items() if v is not None}
    write_table(path, columns, force=force)


def write_table(path: PathLike, columns: Mapping[str, Coded | np.ndarray], *, force: bool = False) -> None:
    """Write columns as a table with a header: `.csv`, `.tsv` or `.parquet`."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".tsv", ".parquet", ".pq"):
        raise bad(path, "", f"suffix {suffix!r} names no table", "use .csv, .tsv or .parquet")
    with atomic_path(path, force=force) as temporary:
        if suffix in (".csv", ".tsv"):
            delimiter = "," if suffix == ".csv" else "\t"
            write_columns(temporary, [list(columns.values())], delimiter=delimiter, header=list(columns))
        else:
            with guarded(path, "Parquet"):
                table = need("pyarrow").table({k: arrow(c) for k, c in columns.items()})
                need("pyarrow.parquet").write_table(table, temporary, compression="zstd")
