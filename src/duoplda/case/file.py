"""The case file, which describes a case in TOML. Every mistake in it is an error with the line and the remedy."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from glob import has_magic
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, bad, open_binary, shown

VERSION = 1  # of the format; a file of another version is refused
MAX_BYTES = 1 << 20  # of a case file: one with ten thousand recordings is smaller

# The types of TOML, and their names in messages.
Value = str | int | float | bool | list["Value"] | dict[str, "Value"]
WORDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
WORDS |= {list: "a list", dict: "a table"}
Place = tuple[str | int, ...]  # keys from the top of the file, and numbers in lists: ("known", "recordings", 0, "id")
T = TypeVar("T", bound=Value)

SCALES = ("none", "ENFSI")
PROPOSITIONS = ("same", "different")
LISTS = ("sessions", "channels", "occasions")
SIDE = ("embeddings", "ids", "recordings", "labels", *LISTS, "columns")
KEYS: dict[str, tuple[str, ...]] = {
    "": ("version", "title", "model", "seed", "resamples", "adapt", "prior", "scale", "quality"),
    "propositions": PROPOSITIONS,
    "known": ("speaker", *SIDE),
    "questioned": SIDE,
    "population": ("why", "embeddings", "ids", "labels", "speakers", *LISTS, "columns"),
}
RECORDING = ("id", "session", "channel", "occasion")
OPENING = re.compile(r"""^(?:[^"'#]|"[^"\n]*"|'[^'\n]*')*?("{3}|'{3})""")  # the beginning of a text of several lines


@dataclass(frozen=True)
class ListedRecording:
    """A recording of a side, as the case file names it. Where a label is None, a list of labels may have it.

    >>> ListedRecording("call-1", "call", "telephone").channel
    'telephone'
    """

    id: str
    session: str | None = None
    channel: str | None = None
    occasion: str | None = None


@dataclass(frozen=True)
class SourceFiles:
    """The files of the recordings of a side, or of the population, and of their labels."""

    embeddings: tuple[Path, ...]
    ids: str | None = None
    recordings: tuple[ListedRecording, ...] | None = None  # None: all recordings of the files
    labels: Path | None = None
    speakers: Path | None = None
    sessions: Path | None = None
    channels: Path | None = None
    occasions: Path | None = None
    columns: Mapping[str, str] | None = None

    @property
    def lists(self) -> list[Path]:
        """The lists and tables of labels."""
        paths = (self.labels, self.speakers, self.sessions, self.channels, self.occasions)
        return [path for path in paths if path is not None]


@dataclass(frozen=True)
class CaseFile:
    """The contents of a case file. `read_case` reads and checks one."""

    path: Path
    title: str
    model: Path
    same: str  # the proposition that one speaker speaks on both sides, in words
    different: str
    speaker: str  # the name or number of the known speaker
    known: SourceFiles
    questioned: SourceFiles
    population: SourceFiles
    why: str  # the reason why the population is the relevant one
    adapt: bool = False
    prior: float | None = None  # probability of the first proposition, if the court or somebody for it has given one
    scale: str = "none"
    seed: int = 0
    resamples: int = 1000
    quality: Path | None = None  # a table of measures of the recordings
    lines: Mapping[Place, int] = field(default_factory=dict, repr=False)  # the line of each key, for messages

    def error(self, place: Place, cause: str, remedy: str) -> DuopldaError:
        """Return an error about the value of a key, with the line of the key.

        >>> case = CaseFile(Path("c.toml"), "", Path("m"), "a", "b", "Mr A", *[SourceFiles(())] * 3, "")
        >>> print(case.error(("known", "recordings"), "is empty", "list a recording"))
        c.toml: known.recordings: is empty; list a recording
        """
        return _error(self.path, self.lines, place, cause, remedy)


def template() -> str:
    """Return a case file to be filled in, with a comment on each key.

    >>> template().splitlines()[0]
    '# A case for `duoplda case`: one question of a court, and the recordings that it is about.'
    """
    return files("duoplda.case").joinpath("template.toml").read_text(encoding="utf-8")


def read_case(path: PathLike) -> CaseFile:
    """Read a case file; paths in it are relative to its folder.

    These are errors: keys that are unknown or missing, values of the wrong type, empty texts, files that do not exist,
    a recording that is listed twice, and two propositions with the same text. The recordings themselves are read and
    checked by `assess_case`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "case.toml").write_text("version = 1\\nprir = 0.5")
    ...     try:
    ...         read_case(folder + "/case.toml")
    ...     except DuopldaError as error:
    ...         print(str(error).partition(": ")[2])
    line 2: prir: is not a key of a case file; did you mean prior?
    """
    path = Path(path)
    text = _text(path)
    content = _parsed(path, text)
    top = _Table(path, dict(_lines(text)), (), content)
    version = top.value("version", int)
    if version != VERSION:
        raise top.error("version", f"is {version}, and this program reads {VERSION}", "`new` writes a template of it")
    _refuse_unknown(top)
    return _case(top)


def _text(path: Path) -> str:
    """Read the text of a case file; another kind of file is refused before it is read whole."""
    if not path.exists():
        raise bad(path, "", "no such file", "`new` writes a template")
    with open_binary(path) as file:
        start = file.read(MAX_BYTES + 1)
    if len(start) > MAX_BYTES:
        raise bad(path, "", f"holds more than {MAX_BYTES >> 20} MB", "give a case file; `new` writes a template")
    if b"\0" in start:
        raise bad(path, "", "is not text", "give a case file; `new` writes a template")
    try:
        return start.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise bad(path, "", "is not UTF-8", "save it in this encoding") from None


def _parsed(path: Path, text: str) -> dict[str, Value]:
    """Parse the text of a case file."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        remedy = "texts stand between quotes, and each line is `key = value`; `new` writes a template"
        raise bad(path, "", f"is no TOML: {error}", remedy) from None
    except RecursionError:
        raise bad(path, "", "nests lists a thousand deep", "give a case file; `new` writes a template") from None
    except ValueError:  # Python refuses to read such numbers
        raise bad(path, "", "has a number with thousands of digits", "give a shorter number") from None


def _case(top: _Table) -> CaseFile:
    """Check the tables of a case file, and return their contents."""
    propositions = top.table("propositions", "two texts, `same` and `different`, one for each party")
    same, different = (propositions.text(name) for name in PROPOSITIONS)
    if same.casefold() == different.casefold():
        raise propositions.error("different", "is the same text as `same`", "write who else may have spoken")
    known = top.table("known", "the recordings of the known speaker")
    questioned = top.table("questioned", "the recordings whose speaker is in question")
    population = top.table("population", "recordings of people who might have spoken instead")
    prior = top.value("prior", float) if "prior" in top.values else None
    if prior is not None and not 0 < prior < 1:
        raise top.error("prior", f"is {prior:g}, and must lie between 0 and 1", "leave it out if nobody gave one")
    scale = top.text("scale", "none")
    if scale not in SCALES:
        raise top.error("scale", f"is {shown(scale)}", f"it may be {' or '.join(SCALES)}")
    return CaseFile(
        path=top.path,
        title=top.text("title", "Comparison of voices"),
        model=top.file("model"),
        same=same,
        different=different,
        speaker=known.text("speaker"),
        known=_source(known),
        questioned=_source(questioned),
        population=_source(population, of_population=True),
        why=population.text("why"),
        adapt=top.value("adapt", bool, default=False),
        prior=prior,
        scale=scale,
        seed=top.whole("seed", 0, 0, (1 << 32) - 1),
        resamples=top.whole("resamples", 1000, 20, 100_000),
        quality=top.optional_file("quality"),
        lines=top.lines,
    )


def _source(table: _Table, of_population: bool = False) -> SourceFiles:
    """The files of a side, or of the population."""
    labels = table.optional_file("labels")
    lists = {name: table.optional_file(name) for name in LISTS}
    speakers = table.optional_file("speakers") if of_population else None
    beside = [name for name, path in (*lists.items(), ("speakers", speakers)) if path is not None]
    if labels is not None and beside:
        raise table.error("labels", "is one table of all labels", f"leave out {' and '.join(beside)}")
    if of_population and labels is None and speakers is None:
        remedy = "give `labels`, a table with the columns id, speaker and session, or two lists: `speakers`, `sessions`"
        raise table.error("labels", "is missing: who speaks in the recordings of the population?", remedy)
    return SourceFiles(
        embeddings=table.embeddings(),
        ids=table.ids(),
        recordings=None if of_population else _recordings(table),
        labels=labels,
        speakers=speakers,
        columns=_columns(table),
        **lists,
    )


def _columns(table: _Table) -> dict[str, str] | None:
    """The names of the columns of tables, where the file gives any."""
    if "columns" not in table.values:
        return None
    columns = table.table("columns", "")
    return {name: columns.text(name) for name in columns.values}


def _recordings(table: _Table) -> tuple[ListedRecording, ...] | None:
    """The recordings that a side lists, as ids or as tables with id, session and channel; None if it lists none."""
    if "recordings" not in table.values:
        return None
    entries = table.value("recordings", list)
    if not entries:
        raise table.error("recordings", "is empty", "list the recordings of this side, or leave the key out for all")
    out = []
    first: dict[str, int] = {}
    for number, entry in enumerate(entries):
        inner = _Table(table.path, table.lines, (*table.place, "recordings", number), entry)
        if isinstance(entry, str):
            recording = ListedRecording(entry)
        elif isinstance(entry, dict):
            inner.refuse_unknown(RECORDING)
            labels = (inner.optional_text(name) for name in RECORDING[1:])
            recording = ListedRecording(inner.text("id"), *labels)
        else:
            remedy = 'write its id, "call-1", or {id = "call-1", session = "call", channel = "telephone"}'
            raise inner.error_here(f"is {_word(entry)}, and a recording is expected", remedy)
        if recording.id in first:
            cause = f"recording {shown(recording.id)} is already in the list, as number {first[recording.id] + 1}"
            raise inner.error_here(cause, "give two recordings two ids, and list each recording once")
        first[recording.id] = number
        out.append(recording)
    return tuple(out)


class _Table:
    """A table of the file and its place in it. A value that is missing, or has the wrong type, is an error."""

    def __init__(self, path: Path, lines: Mapping[Place, int], place: Place, values: Value):
        self.path = path
        self.lines = lines
        self.place = place
        self.values: dict[str, Value] = values if isinstance(values, dict) else {}

    def error(self, key: str, cause: str, remedy: str) -> DuopldaError:
        return _error(self.path, self.lines, (*self.place, key), cause, remedy)

    def error_here(self, cause: str, remedy: str) -> DuopldaError:
        return _error(self.path, self.lines, self.place, cause, remedy)

    def refuse_unknown(self, known: tuple[str, ...]) -> None:
        """Refuse the first key that is not known, with a guess of the key that was meant."""
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                where = f"[{self.place[0]}]" if self.place else "a case file"
                remedy = f"did you mean {near[0]}?" if near else f"its keys are: {', '.join(known)}"
                raise self.error(key, f"is not a key of {where}", remedy)

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of a key, which must have this type."""
        if key not in self.values:
            if default is None:
                raise self.error(key, "is missing", f"write {key} = ...: {WORDS[kind]}")
            return default
        value = self.values[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.error(key, f"is {_word(value)}, and {WORDS[kind]} is expected", _example(key, kind))
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that is not empty, with its runs of spaces made single."""
        value = self.value(key, str) if default is None else self.value(key, str, default)
        text = " ".join(value.split())
        if not text:
            raise self.error(key, "is empty", "fill it in, between the quotes, or leave out a key that is not needed")
        return text

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if key in self.values else None

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        number = self.value(key, int, default)
        if not least <= number <= most:
            raise self.error(key, f"is {number}", f"give a whole number from {least:,} to {most:,}")
        return number

    def table(self, key: str, what: str) -> _Table:
        """Return a table inside this one."""
        if key not in self.values:
            raise self.error_here(f"[{key}] is missing: {what}", "`new` writes a template that has it")
        return _Table(self.path, self.lines, (*self.place, key), self.value(key, dict))

    def _existing(self, key: str, name: str) -> Path:
        path = self.path.parent / name
        try:
            exists = path.exists() or (
                key == "embeddings" and has_magic(name)
            )  # whether a pattern matches, reading tells
        except OSError as error:  # a name of thousands of characters
            cause = f"{shown(name)}: {(error.strerror or str(error)).lower()}"
            raise self.error(key, cause, "check the name") from None
        if not exists:
            raise self.error(key, f"there is no file {shown(name)[1:-1]}", f"paths are relative to {self.path.parent}")
        return path

    def file(self, key: str) -> Path:
        """Return the path of a file that exists."""
        return self._existing(key, self.text(key))

    def optional_file(self, key: str) -> Path | None:
        return self.file(key) if key in self.values else None

    def embeddings(self) -> tuple[Path, ...]:
        """Return the files of embeddings, from one text or from a list of texts."""
        value = self.values.get("embeddings")
        if not isinstance(value, list):
            return (self.file("embeddings"),)
        if not value or not all(isinstance(name, str) and name for name in value):
            raise self.error("embeddings", "is a list with something other than names of files", 'write ["a.npz"]')
        return tuple(self._existing("embeddings", str(name)) for name in value)

    def ids(self) -> str | None:
        """Return the list of ids for a matrix that has none, or "rows"."""
        name = self.optional_text("ids")
        return name if name is None or name == "rows" else os.fspath(self._existing("ids", name))


def _error(path: Path, lines: Mapping[Place, int], place: Place, cause: str, remedy: str) -> DuopldaError:
    """An error about a place in the file, with its keys and the line of the innermost key that the file has."""
    line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)
    name = ""
    for part in place:
        name += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if name else part
    where = ": ".join([*([f"line {line}"] if line is not None else []), *([name] if name else [])])
    return bad(path, where, cause, remedy)


def _word(value: Value) -> str:
    return f"{shown(value)}, {WORDS.get(type(value), 'a ' + type(value).__name__)}"


def _example(key: str, kind: type) -> str:
    examples = {str: f'write {key} = "..."', int: f"write {key} = 1", float: f"write {key} = 0.5"}
    examples |= {bool: f"write {key} = true", list: f"write {key} = [...]", dict: f"write a line [{key}]"}
    return examples[kind]


def _refuse_unknown(top: _Table) -> None:
    """Refuse unknown keys in all tables: a misspelt key would otherwise be ignored in silence."""
    tables = [name for name in KEYS if name]
    top.refuse_unknown((*KEYS[""], *tables))
    for name in tables:
        if isinstance(top.values.get(name), dict):
            table = top.table(name, "")
            if name == "questioned" and "speaker" in table.values:
                cause = "is in [questioned], but who speaks there is the question of the case"
                raise table.error("speaker", cause, "are the two sides swapped? The known speaker is named in [known]")
            table.refuse_unknown(KEYS[name])


def _lines(text: str) -> Iterator[tuple[Place, int]]:
    """Yield the place of each key and table with its line, for messages: Python's parser does not give lines.

    Keys inside tables of one line ({...}) have the line of the entry of their list.
    """
    place: Place = ()
    counts: dict[Place, int] = {}
    inside = ""  # the quotes that end a text of several lines
    listing: tuple[Place, int] | None = None  # a list of several lines, and the number of its entries so far
    for number, line in enumerate(text.split("\n"), 1):
        if inside:
            inside = "" if inside in line else inside
            continue
        stripped = line.strip()
        if listing is not None:
            key, done = listing
            listing = (key, done + _entries(stripped))
            yield from (((*key, entry), number) for entry in range(done, listing[1]))
        elif match := re.match(r"\[\[\s*([\w.\-]+)\s*\]\]", stripped):
            name = tuple(match[1].split("."))
            place = (*name, counts.get(name, 0))
            counts[name] = counts.get(name, 0) + 1
            yield name, number
            yield place, number
        elif match := re.match(r"\[\s*([\w.\-]+)\s*\]", stripped):
            place = tuple(match[1].split("."))
            yield place, number
        elif match := re.match(r"([\w.\-]+)\s*=\s*(\[?)", stripped):
            key = (*place, *match[1].split("."))
            yield key, number
            n = _entries(stripped[match.end() :]) if match[2] else 0
            yield from (((*key, entry), number) for entry in range(n))
            listing = (key, n) if match[2] else None
        if stripped.partition("#")[0].rstrip().endswith("]"):
            listing = None
        if (match := OPENING.match(line)) and match[1] not in line[match.end() :]:
            inside = match[1]


def _entries(text: str) -> int:
    """The number of entries of a list on a line: tables of one line, texts, or other values between commas."""
    pieces: list[str] = re.findall(r"""\{[^}]*\}|"[^"]*"|'[^']*'|#.*|[^\s,\[\]{}#"']+""", text)
    return sum(not piece.startswith("#") for piece in pieces)
