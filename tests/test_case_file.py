"""The case file: what it may say, and a clear error for each mistake in it."""

from __future__ import annotations

import tomllib

import pytest

from case_cases import changed
from duoplda import DuopldaError
from duoplda.case import CaseFile, read_case, template, write_example
from duoplda.case.file import KEYS


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_example(tmp_path_factory.mktemp("case"))


def message(path, *changes):
    """The error on a case file with some texts replaced, without the name of the file."""
    with pytest.raises(DuopldaError) as error:
        read_case(changed(path, *changes))
    said = str(error.value)
    start, _, rest = said.partition("changed.toml: ")
    assert start == str(path.parent) + "/"
    assert "\n" not in said
    return rest


# -- the template


def test_the_template_is_a_case_file_to_be_filled_in(tmp_path):
    values = tomllib.loads(template())
    assert values["version"] == 1
    assert set(values) - set(KEYS) <= set(KEYS[""])
    for name in ("propositions", "known", "questioned", "population"):
        assert set(values[name]) <= set(KEYS[name])
    file = tmp_path / "case.toml"
    file.write_text(template())
    with pytest.raises(DuopldaError, match=r"propositions.same: is empty; fill it in"):
        read_case(file)


def test_every_key_is_explained_in_the_template():
    for table, keys in KEYS.items():
        for key in keys:
            assert f"{key} =" in template(), (table, key)


def test_what_is_commented_out_in_the_template_may_be_used():
    """Lines such as `# prior = 0.01` are keys that a reader takes the mark away from."""
    lines = [line.removeprefix("# ") for line in template().splitlines() if line.startswith("# adapt")]
    lines += [line.removeprefix("# ") for line in template().splitlines() if line.startswith(("# prior", "# scale"))]
    lines += [line.removeprefix("# ") for line in template().splitlines() if line.startswith("# resamples")]
    values = tomllib.loads("\n".join(lines))
    assert values == {"adapt": True, "prior": 0.01, "scale": "ENFSI", "resamples": 1000}


# -- what is read


def test_a_case_file_is_read(path):
    case = read_case(path)
    assert isinstance(case, CaseFile)
    assert (case.title, case.speaker, case.seed, case.resamples) == ("The call", "Mr A", 3, 40)
    assert (case.prior, case.scale, case.adapt, case.quality) == (None, "none", False, None)
    assert [len(side.recordings) for side in (case.known, case.questioned)] == [4, 2]
    assert case.known.recordings[0].session == "talk-1"
    assert case.model == path.parent / "model.safetensors"


@pytest.mark.parametrize("text", [lambda t: "\ufeff" + t, lambda t: t.replace("\n", "\r\n")], ids=["bom", "windows"])
def test_files_of_windows(path, text):
    other = path.with_name("windows.toml")
    other.write_bytes(text(path.read_text()).encode())
    case, same = read_case(other), read_case(path)
    assert (case.same, case.known, case.lines) == (same.same, same.known, same.lines)


def test_texts_of_several_lines_are_one_line(path):
    quotes = '"""The man\n  in the call is Mr A."""'
    assert read_case(changed(path, ('"The man in the call is Mr A."', quotes))).same == "The man in the call is Mr A."


def test_recordings_may_be_ids_alone(path):
    first = path.read_text().split("recordings = [\n")[1].split("]")[0]
    case = read_case(changed(path, (first, '"a", "b",\n  "c"\n')))
    assert [recording.id for recording in case.known.recordings] == ["a", "b", "c"]
    line = path.read_text().splitlines().index("recordings = [") + 1
    places = [case.lines["known", "recordings", number] for number in range(3)]
    assert places == [line + 1, line + 1, line + 2]


# -- mistakes: (what to replace, by what, what must be said)

FIRST = '{ id = "k1", session = "talk-1" }'
MISTAKES = {
    "syntax": ("seed = 3", "seed 3", "is no TOML: Expected '=' after a key"),
    "open quote": ('title = "The call"', 'title = "The call', "is no TOML: Illegal character"),
    "table twice": ("[population]", "[known]", "is no TOML: Cannot declare"),
    "deep": ("seed = 3", "seed = " + "[" * 3000 + "]" * 3000, "nests lists a thousand deep"),
    "long number": ("seed = 3", "seed = " + "9" * 5000, "has a number with thousands of digits"),
    "other version": ("version = 1", "version = 2", "line 1: version: is 2, and this program reads 1"),
    "version as text": (
        "version = 1",
        'version = "1"',
        "line 1: version: is '1', a text, and a whole number is expected",
    ),
    "true as number": ("version = 1", "version = true", "and a whole number is expected; write version = 1"),
    "no version": ("version = 1\n", "", "version: is missing; write version = ...: a whole number"),
    "date": ('"The call"', "2020-01-01", "line 2: title: is datetime.date(2020, 1, 1), a date, and a text is expected"),
    "misspelt": ("seed =", "sead =", "line 4: sead: is not a key of a case file; did you mean seed?"),
    "misspelt in table": ("why =", "wy =", "population.wy: is not a key of [population]; did you mean why?"),
    "misspelt in recording": ("session =", "sesion =", "sesion: is not a key of [known]; did you mean session?"),
    "unknown table": (
        "[propositions]",
        "[proposals]",
        "proposals: is not a key of a case file; did you mean propositions?",
    ),
    "no propositions": ("seed = 3", "seed = -1", "line 4: seed: is -1; give a whole number from 0 to 4,294,967,295"),
    "empty proposition": ('"The man in the call is Mr A."', '" "', "line 8: propositions.same: is empty; fill it in"),
    "one proposition": ("same =", "# same =", "propositions.same: is missing; write same = ...: a text"),
    "same propositions": (
        "is another man of his town",
        "is mr a",
        "different: is the same text as `same`; write who else",
    ),
    "proposition is a list": ('"The man in the call is Mr A."', "[]", "same: is [], a list, and a text is expected"),
    "few resamples": ("resamples = 40", "resamples = 1", "resamples: is 1; give a whole number from 20 to 100,000"),
    "prior 0": ("seed = 3", "prior = 0", "line 4: prior: is 0, and must lie between 0 and 1; leave it out"),
    "prior NaN": ("seed = 3", "prior = nan", "line 4: prior: is nan, and must lie between 0 and 1"),
    "prior text": ("seed = 3", 'prior = "1/10"', "line 4: prior: is '1/10', a text, and a number is expected"),
    "scale": ("seed = 3", 'scale = "words"', "line 4: scale: is 'words'; it may be none or ENFSI"),
    "adapt text": ("seed = 3", 'adapt = "yes"', "adapt: is 'yes', a text, and true or false is expected"),
    "no model": (
        "model.safetensors",
        "other.safetensors",
        "line 3: model: there is no file other.safetensors; paths are relative",
    ),
    "long name": ("model.safetensors", "m" * 5000, "file name too long; check the name"),
    "name with zero": ("model.safetensors", "m\\u0000", "line 3: model: there is no file"),
    "no why": ('why = "They live in this town."\n', "", "population.why: is missing"),
    "no labels": (
        'labels = "labels.csv"\n',
        "",
        "is missing: who speaks in the recordings of the population?; give `labels`",
    ),
    "labels twice": ("labels =", 'speakers = "labels.csv"\nlabels =', "is one table of all labels; leave out speakers"),
    "no embeddings": ('embeddings = "case.npz"\n', "", "known.embeddings: is missing; write embeddings"),
    "embeddings of numbers": (
        '"case.npz"',
        "[1]",
        "known.embeddings: is a list with something other than names of files",
    ),
    "known is a list": ("[known]", "[[known]]", "known: is [{"),
    "speaker in question": ("[questioned]", '[questioned]\nspeaker = "Mr A"', "are the two sides swapped?"),
    "no recordings": (
        f"recordings = [\n  {FIRST}",
        f"recordings = []\nx = [\n  {FIRST}",
        "known.x: is not a key of [known]",
    ),
    "empty recordings": (None, None, "known.recordings: is empty; list the recordings of this side"),
    "number as recording": (
        FIRST,
        "3",
        "line 15: known.recordings[1]: is 3, a whole number, and a recording is expected",
    ),
    "list as recording": (FIRST, '["k1"]', "known.recordings[1]: is ['k1'], a list, and a recording is expected"),
    "number as id": ('"k1"', "204", "line 15: known.recordings[1].id: is 204, a whole number, and a text is expected"),
    "empty id": ('"k1"', '""', "line 15: known.recordings[1].id: is empty"),
    "listed twice": ('"k2"', '"k1"', "known.recordings[2]: recording 'k1' is already in the list, as number 1"),
    "columns": (
        "labels =",
        "columns = 3\nlabels =",
        "population.columns: is 3, a whole number, and a table is expected",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(path, name):
    old, new, said = MISTAKES[name]
    if old is None:
        old, new = path.read_text().split("recordings = [\n")[1].split("]")[0], ""
    assert said in message(path, (old, new))


@pytest.mark.parametrize("table", ["propositions", "known", "questioned", "population"])
def test_a_table_that_is_not_there(path, table):
    text = path.read_text()
    start = text.index(f"[{table}]")
    end = text.find("\n\n", start)
    part = text[start : end if end > 0 else len(text)]
    assert f"[{table}] is missing" in message(path, (part, ""))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "version: is missing"),
        (bytes(range(256)), "is not text"),
        ("title = 'é'".encode("latin-1"), "is not UTF-8"),
        (b"# text\n" * 200_000, "holds more than 1 MB"),
    ],
    ids=["empty", "binary", "latin-1", "huge"],
)
def test_files_that_are_something_else(tmp_path, content, said):
    (tmp_path / "case.toml").write_bytes(content)
    with pytest.raises(DuopldaError, match=said):
        read_case(tmp_path / "case.toml")


def test_places_that_are_no_file(tmp_path):
    with pytest.raises(DuopldaError, match="no such file; `new` writes a template"):
        read_case(tmp_path / "case.toml")
    with pytest.raises(DuopldaError, match="is a folder"):
        read_case(tmp_path)
    with pytest.raises(DuopldaError, match="is not a regular file"):
        read_case("/dev/null")
