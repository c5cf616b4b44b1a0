"""RTTM, UEM, segments and tables of clusters: round trips, and what is wrong is said with its line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duoplda.diarization import Regions, Segments, Turns, is_rttm, read_rttm, read_segments, read_uem, write_rttm
from duoplda.errors import DuopldaError
from duoplda.io import Coded, read_partition

VBX = Path(__file__).parents[2] / "shared/data/diarization/vbx"
LINE = "SPEAKER f 1 0.50 1.25 <NA> <NA> ann <NA> <NA>\n"


def put(folder: Path, text: str | bytes, name: str = "x") -> Path:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


def rows(turns: Turns) -> list[tuple[Any, ...]]:
    columns = turns.file.values, turns.start, turns.duration, turns.speaker.values
    return list(zip(*(c.tolist() for c in columns), strict=True))


# -- RTTM


@pytest.mark.parametrize(
    "text",
    [
        LINE,
        "\ufeff" + LINE,
        ";; a comment, SPEAKER or not\n\n" + LINE.replace(" ", "\t").replace("\n", "\r\n"),
        "SPKR-INFO f 1 <NA> <NA> <NA> unknown ann <NA> <NA>\nLEXEME f 1 .5 .1 word lex ann 0.9\n" + LINE,
        LINE.replace(" <NA> <NA>\n", " <NA>"),  # nine fields, no line feed
    ],
)
def test_turns_among_what_is_skipped(tmp_path: Path, text: str) -> None:
    path = put(tmp_path, text)
    assert rows(read_rttm(path)) == [("f", 0.5, 1.25, "ann")]
    assert is_rttm(path)


microseconds = st.integers(0, 10**10).map(lambda n: n / 1e6)
names = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=("C", "Z")), min_size=1)
names = names.filter(lambda name: not name.isspace() and name.isprintable() and name != "<NA>")


@given(st.lists(st.tuples(names, microseconds, microseconds, names), max_size=12))
def test_what_is_written_is_read_sorted(tmp_path_factory: Any, drawn: list[tuple[str, float, float, str]]) -> None:
    path = tmp_path_factory.mktemp("rttm") / "out"
    columns = list(zip(*drawn, strict=True)) or [(), (), (), ()]
    write_rttm(path, Turns.of(*columns))
    if not drawn:
        assert path.read_bytes() == b""
        return
    found = rows(read_rttm(path))
    order = sorted(drawn, key=lambda row: (row[0], row[1], row[2], row[3]))
    assert [(f, s, who) for f, s, _, who in found] == [(f, s, who) for f, s, _, who in order]
    assert [d for *_, d, _ in found] == pytest.approx([d for *_, d, _ in order], abs=1.01e-6)
    write_rttm(path, read_rttm(path), force=True)
    assert rows(read_rttm(path)) == found


def test_turns_that_touch_still_do(tmp_path: Path) -> None:
    start = np.arange(1000) / 3
    turns = Turns(Coded.of(["f"] * 999), start[:-1], np.diff(start), Coded.of(["a", "b", "c"] * 333))
    write_rttm(tmp_path / "x", turns)
    found = read_rttm(tmp_path / "x")
    assert np.abs(found.end[:-1] - found.start[1:]).max() < 1e-9
    line = (tmp_path / "x").read_text().splitlines()[1]
    assert line == "SPEAKER f 1 0.333333 0.333334 <NA> <NA> b <NA> <NA>"


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_rttm(path, Turns.of(["f"], [0], [1], ["a"]))
    before = path.read_bytes()
    with pytest.raises(DuopldaError, match="exists already"):
        write_rttm(path, Turns.of(["g"], [0], [1], ["a"]))
    for wrong in (("two words", "a"), ("f", "a b"), ("f", "<NA>"), ("f\x00g", "a")):
        with pytest.raises(DuopldaError):
            write_rttm(path, Turns.of([wrong[0]], [0], [1], [wrong[1]]), force=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LINE + "SPEAKER f 1 0.5 1.0 <NA> <NA> ann\n", "line 2: has 8 fields, not 9 or 10"),
        (LINE + LINE.strip() + " more\n", "line 2: has 11 fields"),
        (LINE + "\n" + LINE.replace("0.50", "-0.5"), "line 3: start '-0.5' is not a time"),
        (LINE.replace("1.25", "-1"), "line 1: duration '-1' is not a time"),
        (LINE.replace("1.25", "nan"), "line 1: duration 'nan'"),
        (LINE.replace("0.50", "inf"), "line 1: start 'inf'"),
        (LINE.replace("0.50", "1_0"), "line 1: start '1_0'"),
        (LINE.replace("0.50", "<NA>"), "line 1: start '<NA>'"),
        (LINE.replace("ann", "<NA>"), "line 1: has no speaker"),
        (";;\nTALKER" + LINE[7:], "line 2: 'TALKER' is not a type of RTTM lines"),
        (LINE + LINE.replace("f 1", "f 2"), "line 2: 'f' has a second channel"),
        (LINE.encode() + LINE.encode().replace(b"ann", b"\xff\xfe"), "line 2: .* is not UTF-8"),
        (LINE + LINE.replace("ann", "a\x1bn"), "line 2: the name .* control characters"),
        (LINE + LINE.replace("ann", "a" * 600), "line 2: the name .* too long"),
        (LINE + "SPEAKER " + "f" * 100_000, "line 2: is longer than 64 kB"),
        ("", "is empty"),
        (gzip.compress(LINE.encode(), mtime=0)[:-9], "cannot be read as gzip"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(DuopldaError, match=rf"x: .*{words}"):
        read_rttm(put(tmp_path, text))


@given(st.binary(max_size=200) | st.text(st.sampled_from("SPEAKER f1.;<>NA-\n\t")).map(lambda t: t.encode()))
def test_any_bytes_are_turns_or_an_error(tmp_path_factory: Any, text: bytes) -> None:
    path = put(tmp_path_factory.mktemp("rttm"), text)
    said = []
    for read in (read_rttm, read_uem, read_segments, read_partition, is_rttm):
        try:
            read(path)
        except DuopldaError as error:
            said.append(str(error))
    assert all(message.startswith(str(path)) for message in said)


def test_a_hundred_thousand_turns(tmp_path: Path) -> None:
    n, rng = 100_000, np.random.default_rng(0)
    file, speaker = (Coded.of([f"{x}{i}" for i in rng.integers(50, size=n)]) for x in "fs")
    write_rttm(tmp_path / "x", Turns(file, rng.random(n) * 3600, rng.random(n), speaker))
    assert len(read_rttm(tmp_path / "x")) == n


def test_rttm_is_told_from_other_lists(tmp_path: Path) -> None:
    assert not is_rttm(put(tmp_path, "SPEAKER ann\n"))  # a recording of this name in utt2spk
    assert not is_rttm(put(tmp_path, "recording\tcluster\na\t1\n"))
    pd.DataFrame({"recording": ["a"], "cluster": ["1"]}).to_parquet(tmp_path / "x.parquet")
    assert not is_rttm(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Turns.of(["f", "f"], [0, -1], [1, 1], ["a", "b"]), "start is negative.*rows 1"),
        (lambda: Turns.of(["f"], [0], [np.nan], ["a"]), "duration is negative, NaN or too large at rows 0"),
        (lambda: Turns.of(["f"], [0, 1], [1], ["a"]), r"start is int64 of shape \(2,\) for 1 files"),
        (lambda: Turns.of(["f"], ["0"], [1], ["a"]), "start is <U1"),
        (lambda: Turns.of(["f"], [0], [1], ["a", "b"]), "2 speakers for 1 turns"),
        (lambda: Regions.of(["f", "f"], [0, 2], [1, 2]), "do not end after they start, at rows 1"),
        (lambda: Segments(np.array(["a", "b"]), Coded.of(["f"]), np.zeros(1), np.ones(1)), "2 ids for 1 segments"),
    ],
)
def test_wrong_arrays_are_named(make: Any, words: str) -> None:
    with pytest.raises(DuopldaError, match=words):
        make()


# -- UEM and segments


def test_uem(tmp_path: Path) -> None:
    found = read_uem(put(tmp_path, ";; two files\nf 1 0.0 10\n\nf 1 20 30.5\ng A 1 2\n"))
    assert found.file.values.tolist() == ["f", "f", "g"]
    assert (found.start.tolist(), found.end.tolist()) == ([0, 20, 1], [10, 30.5, 2])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f 1 0 1\nf 1 2\n", "line 2: has 3 fields, not 4"),
        ("f 1 5 5\n", "line 1: ends at 5 s and starts at 5 s"),
        ("f 1 x 5\n", "line 1: start 'x' is not a time"),
        ("f 1 0 1\nf 2 0 1\n", "line 2: 'f' has a second channel"),
        (";; nothing\n", "has no regions"),
    ],
)
def test_a_wrong_uem_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DuopldaError, match=words):
        read_uem(put(tmp_path, text))


def test_segments(tmp_path: Path) -> None:
    found = read_segments(put(tmp_path, "s1 f 0 1.44\ns2 f 0.24 1.68\n\ns3 g 0.5 2\n"))
    assert found.ids.tolist() == ["s1", "s2", "s3"]
    assert found.file.values.tolist() == ["f", "f", "g"]
    assert found.end.tolist() == [1.44, 1.68, 2.0]
    assert len(found) == 3
    assert found[found.start > 0.3].ids.tolist() == ["s3"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s1 f 0 1\n\ns2 f 2 2\n", "line 3: goes from 2 to 2"),
        ("s1 f 0 -1\n", "line 1: goes from 0 to -1"),
        ("s1 f nan 1\n", "line 1: goes from nan to 1"),
        ("s1 f 0 1\ns1 f 1 2\n", "line 2: segment 's1' has a line already"),
        ("s1 f 0 1\ns2 f 1\n", "line 2: has 3 fields"),
        ("s1 f 0 one\n", "line 1: 'one' is not a number"),
        ("s1 s2\n", "line 1: has 2 fields; lines have 4"),
    ],
)
def test_a_wrong_segment_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DuopldaError, match=words):
        read_segments(put(tmp_path, text))


@pytest.mark.skipif(not VBX.exists(), reason="the shared data are not here")
def test_the_files_of_vbx() -> None:
    segments = read_segments(VBX / "ES2005a.seg")
    assert len(segments) == 1025
    assert set(segments.file.names) == {"ES2005a"}
    lines = (VBX / "ES2005a.reference.rttm").read_text().splitlines()
    turns = read_rttm(VBX / "ES2005a.reference.rttm")
    assert rows(turns)[-1] == (lambda f: (f[1], float(f[3]), float(f[4]), f[7]))(lines[-1].split())
    assert len(turns) == len(lines)


# -- clusters of recordings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("utt2spk.tsv", "recording\tcluster\tposterior\na\t1\t.5\nb\t1\t.7\nc\t2\t1\n"),
        ("utt2spk.tsv", "recording\tspeaker\tcluster\na\tann\t1\nb\tann\t1\nc\tbob\t2\n"),
        ("utt2spk.tsv", "a\t1\nb\t1\nc\t2\n"),
        ("utt2spk.tsv", "id\tspk\na\t1\nb\t1\nc\t2\n"),
        ("clusters.csv", "recording,cluster\na,1\nb,1\nc,2\n"),
        ("utt2spk", "a 1\nb 1\nc 2\n"),
        ("found", "1 a b\n2 c\n"),
        ("found", "recording\tcluster\na\t1\nb\t1\nc\t2\n"),
    ],
)
def test_clusters_of_any_form(tmp_path: Path, name: str, text: str) -> None:
    assert read_partition(put(tmp_path, text, name)) == {"a": "1", "b": "1", "c": "2"}


def test_clusters_or_speakers_of_one_table(tmp_path: Path) -> None:
    table = pd.DataFrame({"recording": ["a", "b"], "cluster": ["1", "2"], "speaker": ["ann", "ann"]})
    table.to_parquet(tmp_path / "x.parquet")
    table.to_csv(tmp_path / "x.csv", index=False)
    for name in ("x.parquet", "x.csv"):
        assert read_partition(tmp_path / name) == {"a": "1", "b": "2"}
        assert read_partition(tmp_path / name, "speaker") == {"a": "ann", "b": "ann"}
    with pytest.raises(DuopldaError, match="line 3: id 'a' is there already"):
        read_partition(put(tmp_path, "recording\tcluster\na\t1\na\t2\n"))
    with pytest.raises(DuopldaError, match="has no cluster column"):
        read_partition(put(tmp_path, "recording,other\na,1\n", "y.csv"))
