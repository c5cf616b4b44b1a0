"""Labels, trials and enrolment maps: every form, round trips, and what is wrong is said with its line."""

from __future__ import annotations

import warnings
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duoplda.errors import DuopldaError
from duoplda.io import (
    Coded,
    LabelColumns,
    Trials,
    read_enrollment,
    read_labels,
    read_map,
    read_trials,
    write_labels,
    write_map,
    write_trials,
)


def put(folder: Path, name: str, text: str | bytes) -> Path:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


# --- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["a s1\nb s1\nc s2\n", "a\ts1\nb\ts1\r\nc s2", "\ufeffa  s1 \n\n b s1\nc\t s2\n\n", "a s1\nb s1\n  \nc s2 \n"],
)
def test_utt2spk_with_any_white_space(tmp_path: Path, text: str) -> None:
    labels = read_labels(put(tmp_path, "utt2spk", text))
    assert labels.ids.tolist() == ["a", "b", "c"]
    assert labels.speaker.tolist() == ["s1", "s1", "s2"]
    assert labels.session is None
    assert labels.channel is None
    assert len(labels) == 3


def test_spk2utt_by_content_by_name_and_by_form(tmp_path: Path) -> None:
    for name in ("spk2utt", "groups"):
        labels = read_labels(put(tmp_path, name, "s1 a b\ns2 c\n"))
        assert (labels.ids.tolist(), labels.speaker.tolist()) == (["a", "b", "c"], ["s1", "s1", "s2"])
    path = put(tmp_path, "spk2utt", "s1 a\ns2 b\n")  # every speaker has one: only the name tells
    assert read_labels(path).ids.tolist() == ["a", "b"]
    assert read_labels(path, form="utt2spk").ids.tolist() == ["s1", "s2"]
    assert read_labels(put(tmp_path, "x", "s1 a\ns2 b\n"), form="spk2utt").ids.tolist() == ["a", "b"]


def test_sessions_and_channels_from_maps_follow_the_ids(tmp_path: Path) -> None:
    spk = put(tmp_path, "utt2spk", "a s1\nb s1\nc s2\n")
    sess = put(tmp_path, "utt2sess", "c z\nb y\na x\nextra w\n")
    chan = put(tmp_path, "utt2channel", "a tel\nb mic\nc tel\n")
    labels = read_labels(spk, sess, chan)
    assert labels.session is not None
    assert labels.session.tolist() == ["x", "y", "z"]
    assert labels.channel is not None
    assert labels.channel.tolist() == ["tel", "mic", "tel"]
    with pytest.raises(DuopldaError, match=r"utt2sess: lacks 2 of 3 ids; the first: b, c"):
        read_labels(spk, put(tmp_path, "utt2sess", "a x\n"))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("full", [True, False])
def test_label_tables_round_trip(tmp_path: Path, suffix: str, full: bool) -> None:
    ids = np.array(["a 1", 'b"2', "c,3", "ü"])  # tables may hold what lists may not
    speaker, more = np.array(["s", "s", "t", "t"]), np.array(["1", "2", "1", "1"])
    labels = LabelColumns(ids, speaker, more if full else None, more[::-1].copy() if full else None)
    write_labels(tmp_path / f"x{suffix}", labels)
    got = read_labels(tmp_path / f"x{suffix}")
    assert got.ids.tolist() == ids.tolist()
    assert got.speaker.tolist() == speaker.tolist()
    assert (got.session is not None) == (got.channel is not None) == full
    if got.session is not None and got.channel is not None:
        assert got.session.tolist() == more.tolist()
        assert got.channel.tolist() == more[::-1].tolist()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".txt"])
def test_tables_of_pandas_with_other_names(tmp_path: Path, suffix: str) -> None:
    df = pd.DataFrame({"segmentid": ["a", "b"], "x": [1.5, None], "who": [7, 8], "Session": ["p", "q"]})
    path = tmp_path / f"x{suffix}"
    if suffix == ".parquet":
        df.to_parquet(path)
    else:
        df.to_csv(path, sep="," if suffix == ".csv" else "\t", index=False)
    labels = read_labels(path, columns={"speaker": "who"})
    assert labels.speaker.tolist() == ["7", "8"]
    assert labels.session is not None
    assert labels.session.tolist() == ["p", "q"]
    with pytest.raises(DuopldaError, match=r"has no column 'nobody'; it has segmentid, x, who, Session"):
        read_labels(path, columns={"speaker": "nobody"})
    with pytest.raises(DuopldaError, match=r"`columns` knows id, speaker, session, channel, .*, not spaeker"):
        read_labels(path, columns={"spaeker": "who"})


@pytest.mark.parametrize(("other", "alike"), [("Jose\u0301", True), ("Jos\xea", False)])
def test_two_codes_of_one_accent_are_told(tmp_path: Path, other: str, alike: bool) -> None:
    path = put(tmp_path, "utt2spk", f"a Jos\xe9\nb {other}\nc Ann\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(set(read_labels(path).speaker.tolist())) == 3
    assert [str(w.message).startswith(f"{path}: some names of the column speaker look alike") for w in caught] == (
        [True] if alike else []
    )


def test_maps_are_written_as_kaldi_reads_them(tmp_path: Path) -> None:
    write_map(tmp_path / "utt2spk", ["a", "b"], ["s", "t"])
    assert (tmp_path / "utt2spk").read_text() == "a s\nb t\n"
    with pytest.raises(DuopldaError, match="'a b' has a space"):
        write_map(tmp_path / "x", ["a b"], ["s"])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("utt2spk", "", "utt2spk: is empty"),
        ("utt2spk", " \n\n", "utt2spk: is empty"),
        ("utt2spk", "a s\nb\n", "line 2: has 1 fields, the first line 2"),
        ("utt2spk", "a s\n\nb s t\n", "line 3: has 3 fields, the first line 2"),
        ("utt2spk", "a s\nb s\n\na t\n", "line 4: id 'a' is there already"),
        ("utt2spk", b"a s\nb \xff\xfe\n", "line 2: is not UTF-8"),
        ("utt2spk", b"\xff s\n", "line 1: is not UTF-8"),
        ("utt2spk", b"a\0b s\n", "line 1: holds binary data"),
        ("utt2spk", b"a s\nb\x01 s\n", "line 2: an id is empty or has control characters"),
        ("utt2spk", b"\x1f\x8b\x08\0\0", "cannot be read as gzip"),
        ("utt2spk", b"a " + b"s" * 600, "is too long"),
        ("spk2utt", "s a\nt\n", "line 2: 't' has no members"),
        ("spk2utt", "s a\ns b\n", "'s' starts two lines"),
        ("spk2utt", "s a\nt a\n", "id 'a' is there already"),
        ("spk2utt", b"s a\nt \xff\n", "line 2: is not UTF-8"),
        ("x.csv", "id,speaker\n", "has a header and no rows"),
        ("x.csv", "id,speaker\na,s\nb\n", "line 3: has 1 fields, the header 2"),
        ("x.csv", "id,speaker\na,s\n,t\n", "line 3: an id is empty"),
        ("x.csv", "id,id\na,s\n", "two columns have the same name"),
        ("x.csv", "id,name\na,s\n", r"has no speaker column \(speaker or spk"),
        ("x.csv", b"id,speaker\na,\xff\n", "line 2: is not UTF-8"),
        ("x.parquet", b"PAR1 nothing else", "cannot be read as Parquet"),
    ],
)
def test_wrong_labels(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    path = put(tmp_path, name, text)
    with pytest.raises(DuopldaError, match=message) as e:
        read_labels(path)
    assert str(e.value).startswith(str(path))
    assert "\n" not in str(e.value)


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"\xff"], pa.binary())
    table = pa.table({"id": pa.StringArray.from_buffers(2, *raw.buffers()[1:]), "speaker": ["s", "t"]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DuopldaError, match=r"cannot be read as Parquet .*UTF8"):
        read_labels(tmp_path / "x.parquet")


def test_an_endless_line_is_not_read_into_memory(tmp_path: Path) -> None:
    path = put(tmp_path, "utt2spk", b"a s\n" + b"x" * (33 << 20))
    with pytest.raises(DuopldaError, match="line 2: is longer than 8 MB"):
        read_labels(path)


# --- trials ---------------------------------------------------------------------------------------

TRIALS = Trials(
    Coded.of(["m1", "m1", "m2", "m2", "m3"]),
    Coded.of(["a", "b", "a", "c", "c"]),
    np.array([True, False, False, True, True]),
)


def same(a: Trials, b: Trials) -> None:
    """The same trials in whatever order."""

    def rows(t: Trials) -> list[tuple]:
        label = [None] * len(t) if t.target is None else t.target.tolist()
        return sorted(zip(t.enroll.values.tolist(), t.test.values.tolist(), label, strict=True))

    assert rows(a) == rows(b)


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("name", ["trials", "x.tsv", "x.csv", "x.parquet", "x.h5"])
def test_trials_round_trip(tmp_path: Path, name: str, labels: bool) -> None:
    trials = Trials(TRIALS.enroll, TRIALS.test, TRIALS.target if labels else None)
    write_trials(tmp_path / name, trials)
    got = read_trials(tmp_path / name)
    same(got, trials)
    assert (got.target is not None) == labels
    assert got.target is None or got.target.dtype == bool


def test_voxceleb_round_trip_and_text(tmp_path: Path) -> None:
    write_trials(tmp_path / "veri.txt", TRIALS, form="voxceleb")
    assert (tmp_path / "veri.txt").read_text().startswith("1 m1 a\n0 m1 b\n")
    same(read_trials(tmp_path / "veri.txt"), TRIALS)
    write_trials(tmp_path / "trials", TRIALS)
    assert (tmp_path / "trials").read_text().startswith("m1 a target\nm1 b nontarget\n")


def test_where_the_label_stands_is_told_by_the_whole_list(tmp_path: Path) -> None:
    path = put(tmp_path, "t", "1 0 1\n0 7 0\n1 5 9\n")  # ids that are numbers
    assert read_trials(path).test.values.tolist() == ["1", "0", "9"]
    path = put(tmp_path, "t", "1 0 1\n0 7 0\n9 5 1\n")
    assert read_trials(path).enroll.values.tolist() == ["1", "0", "9"]
    path = put(tmp_path, "t", "1 0 1\n0 7 0\n")
    with pytest.raises(DuopldaError, match="the label may be the first or the last field; say form='kaldi'"):
        read_trials(path)
    assert read_trials(path, form="kaldi").test.values.tolist() == ["0", "7"]
    assert read_trials(path, form="voxceleb").test.values.tolist() == ["1", "0"]


def test_nist_columns_by_name_and_conditions(tmp_path: Path) -> None:
    text = "side\tsegmentid\tmodelid\ttargettype\tgender\na\tx.sph\t10\ttarget\tf\nb\ty.sph\t11\tnontarget\t\n"
    got = read_trials(put(tmp_path, "key.tsv", text))
    assert got.enroll.values.tolist() == ["10", "11"]
    assert got.test.values.tolist() == ["x.sph", "y.sph"]
    assert got.target is not None
    assert got.target.tolist() == [True, False]
    assert {k: c.values.tolist() for k, c in got.conditions.items()} == {"side": ["a", "b"], "gender": ["f", ""]}
    write_trials(tmp_path / "again.tsv", got)
    again = read_trials(tmp_path / "again.tsv")
    same(got, again)
    assert again.conditions["gender"].values.tolist() == ["f", ""]


def test_hyperion_csv_and_names_of_columns(tmp_path: Path) -> None:
    got = read_trials(put(tmp_path, "key.csv", "modelid,segmentid,targettype\nm1,a,target\nm1,b,nontarget\n"))
    assert got.target is not None
    assert got.target.tolist() == [True, False]
    path = put(tmp_path, "t.csv", "who,file,same\nm,a,1\n")
    got = read_trials(path, columns={"enroll": "who", "test": "file", "target": "same"})
    assert got.target is not None
    assert got.target.tolist() == [True]
    with pytest.raises(DuopldaError, match=r"has no enroll column \(modelid or model"):
        read_trials(path)


@pytest.mark.parametrize("strings", ["S", "O"])
def test_bosaris_as_other_toolkits_store_it(tmp_path: Path, strings: str) -> None:
    ids = {"S": lambda v: np.array(v, dtype="S"), "O": lambda v: np.array(v, dtype=object)}[strings]
    with h5py.File(tmp_path / "key.h5", "w") as f:  # hyperion, SIDEKIT
        f["ID/row_ids"], f["ID/column_ids"] = ids(["m1", "m2"]), ids(["a", "b", "c"])
        f["trial_mask"] = np.array([[1, -1, 0], [0, 0, 1]], "int8")
    same(read_trials(tmp_path / "key.h5"), _three(True))
    with h5py.File(tmp_path / "ndx.h5", "w") as f:
        f["ID/row_ids"], f["ID/column_ids"] = ids(["m1", "m2"]), ids(["a", "b", "c"])
        f["trial_mask"] = np.array([[1, 1, 0], [0, 0, 1]], "uint8")
    same(read_trials(tmp_path / "ndx.h5"), _three(False))
    with h5py.File(tmp_path / "old.h5", "w") as f:  # BOSARIS 1.0, lists as MATLAB's columns
        f["ID/row_ids"], f["ID/column_ids"] = ids([["m1"], ["m2"]]), ids([["a", "b", "c"]])
        f["target_mask"] = np.array([[1, 0, 0], [0, 0, 1]], "uint8")
        f["nontarget_mask"] = np.array([[0, 1, 0], [0, 0, 0]], "uint8")
    same(read_trials(tmp_path / "old.h5"), _three(True))


def _three(labels: bool) -> Trials:
    target = np.array([True, False, True]) if labels else None
    return Trials(Coded.of(["m1", "m1", "m2"]), Coded.of(["a", "b", "c"]), target)


def test_bosaris_is_written_as_hyperion_reads_it(tmp_path: Path) -> None:
    write_trials(tmp_path / "key.h5", _three(True))
    with h5py.File(tmp_path / "key.h5") as f:  # the lines of hyperion's TrialKey.load_h5
        assert [t.decode("utf-8") for t in f["ID/row_ids"]] == ["m1", "m2"]
        assert [t.decode("utf-8") for t in f["ID/column_ids"]] == ["a", "b", "c"]
        mask = np.asarray(f["trial_mask"], dtype="int8")
    assert mask.tolist() == [[1, -1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t", "a b target\na c maybe\n", "line 2: label 'maybe' is neither target nor nontarget"),
        ("t", "1 b c\n2 b d\n", "line 2: label '2' is neither"),
        ("t", "a b c d\n", "line 1: has 4 fields; lines have 2 or 3"),
        ("t", "a b target\na b\n", "line 2: has 2 fields, the first line 3"),
        ("t", "a b target\n\n\na b c target\n", "line 4: has 4 fields, the first line 3"),
        ("t", "a b target\na  target\n", "line 2: has 2 fields, the first line 3"),
        ("t", b"a b target\na \xc3\x28 target\n", "line 2: is not UTF-8"),
        ("t", "", "t: is empty"),
        ("t.tsv", "modelid\tsegmentid\ttargettype\nm\ta\tperhaps\n", "line 2: label 'perhaps'"),
        ("t.tsv", "modelid\tsegmentid\nm\ta\tb\n", "line 2: has 3 fields, the header 2"),
        ("t.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * 100, "cannot be read as HDF5"),
    ],
)
def test_wrong_trials(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    path = put(tmp_path, name, text)
    with pytest.raises(DuopldaError, match=message) as e:
        read_trials(path)
    assert str(e.value).startswith(str(path))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ID/row_ids": None}, "has no dataset ID/row_ids"),
        ({"trial_mask": None}, "has no dataset trial_mask"),
        ({"trial_mask": np.ones((3, 2), "i1")}, r"trial_mask: has shape \(3, 2\), the ids ask for \(2, 3\)"),
        ({"trial_mask": np.zeros((2, 3), "i1")}, "has no trials"),
        ({"trial_mask": np.array([[b"a"] * 3] * 2)}, "trial_mask: holds |S1, not numbers"),
        ({"ID/row_ids": np.array([b"m", b"m"])}, "ID/row_ids: id 'm' occurs twice"),
        ({"ID/row_ids": np.array([b"m", b"\xff"])}, "row 1: id .* is not UTF-8"),
        ({"ID/row_ids": np.array([b"m", b""])}, "row 1: the id is empty"),
        ({"ID/row_ids": np.array([1.5, 2.5])}, "holds float64, not ids"),
        ({"ID/row_ids": np.array([[b"a", b"b"], [b"c", b"d"]])}, r"has shape \(2, 2\); give a list of ids"),
    ],
)
def test_wrong_bosaris(tmp_path: Path, change: dict, message: str) -> None:
    data = {
        "ID/row_ids": np.array([b"m1", b"m2"]),
        "ID/column_ids": np.array([b"a", b"b", b"c"]),
        "trial_mask": np.array([[1, -1, 0], [0, 0, 1]], "i1"),
    }
    with h5py.File(tmp_path / "k.h5", "w") as f:
        for name, value in (data | change).items():
            if value is not None:
                f[name] = value
    with pytest.raises(DuopldaError, match=message):
        read_trials(tmp_path / "k.h5")


def test_a_matrix_has_one_cell_per_pair_and_a_bound(tmp_path: Path) -> None:
    twice = Trials(Coded.of(["m", "m"]), Coded.of(["a", "a"]))
    with pytest.raises(DuopldaError, match="the pair 'm a' occurs twice"):
        write_trials(tmp_path / "x.h5", twice)
    names = np.array([str(i) for i in range(10000)])
    sparse = Trials(Coded(names, np.arange(10000, dtype=np.int32)), Coded(names, np.arange(10000, dtype=np.int32)))
    with pytest.raises(DuopldaError, match="10000 x 10000 for 10000 pairs is too large"):
        write_trials(tmp_path / "x.h5", sparse)
    assert list(tmp_path.iterdir()) == []


word = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.tuples(word, word, st.booleans()), min_size=1, max_size=30))
def test_any_ids_survive_lists_and_tables(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    folder = tmp_path_factory.mktemp("t")
    enroll, test, target = zip(*rows, strict=True)
    trials = Trials(Coded.of(enroll), Coded.of(test), np.array(target))
    for name, options in (("t", {"form": "kaldi"}), ("t.tsv", {}), ("t.csv", {}), ("t.parquet", {})):
        write_trials(folder / name, trials)
        got = read_trials(folder / name, **options)
        assert got.enroll.values.tolist() == list(enroll)
        assert got.test.values.tolist() == list(test)
        assert got.target is not None
        assert got.target.tolist() == list(target)


# --- enrolment ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pairs", "m1 a\nm1 b\nm2 c\n"),
        ("spk2utt", "m1 a b\nm2 c\n"),
        ("late", "m1 a\nm2 c d\n"),
        ("nist.tsv", "segmentid\tmodelid\tside\na\tm1\tx\nb\tm1\tx\nc\tm2\tx\n"),
        ("hyperion.csv", "modelid,segmentid\nm1,a\nm1,b\nm2,c\n"),
    ],
)
def test_enrollment_forms(tmp_path: Path, name: str, text: str) -> None:
    got = read_enrollment(put(tmp_path, name, text))
    pairs = list(zip(got.model.values.tolist(), got.recording.values.tolist(), strict=True))
    assert pairs == (
        [("m1", "a"), ("m2", "c"), ("m2", "d")] if name == "late" else [("m1", "a"), ("m1", "b"), ("m2", "c")]
    )
    assert len(got) == 3


def test_enrollment_from_parquet_and_named_columns(tmp_path: Path) -> None:
    pd.DataFrame({"who": ["m", "m"], "file": ["a", "b"]}).to_parquet(tmp_path / "e.parquet")
    got = read_enrollment(tmp_path / "e.parquet", columns={"model": "who", "recording": "file"})
    assert got.recording.values.tolist() == ["a", "b"]


@pytest.mark.parametrize("text", ["m a\nm b\nm a\n", "m a b a\n"])
def test_a_recording_enrolled_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DuopldaError, match="pair 3: 'm a' is there already"):
        read_enrollment(put(tmp_path, "e", text))


def test_coded_columns() -> None:
    c = Coded.of(["b", "a", "b"])
    assert c.names.tolist() == ["b", "a"]
    assert np.asarray(c).tolist() == c.values.tolist() == ["b", "a", "b"]
    assert c[1:].values.tolist() == ["a", "b"]
    assert len(c) == 3


# -- tables and lists in conventions of others


def test_columns_that_may_be_sessions_are_not_dropped_in_silence(tmp_path: Path) -> None:
    path = put(tmp_path, "meta.csv", "utt_id,spk_id,take,device\na,s,1,x\nb,s,1,y\n")
    with pytest.warns(UserWarning, match=r"meta.csv: no sessions are read.*take, device are not used.*session=NAME"):
        labels = read_labels(path)
    assert labels.session is None
    named = read_labels(path, columns={"session": "take"})
    assert named.session is not None
    assert named.session.tolist() == ["1", "1"]
    said = "id is utt_id; speaker is spk_id; session is take; not used: device (the channel would be called channel, "
    assert said in named.read_as
    assert not read_labels(put(tmp_path, "ours.csv", "id,speaker,session\na,s,1\n")).read_as


@pytest.mark.parametrize("name", ["call", "call_id", "Video", "conversation_id", "recording_id"])
def test_usual_names_of_sessions(tmp_path: Path, name: str) -> None:
    labels = read_labels(put(tmp_path, "t.csv", f"utt_id,spk_id,{name}\na,s,1\nb,s,1\n"))
    assert labels.session is not None
    assert labels.session.tolist() == ["1", "1"]


def test_a_recording_is_an_id_where_no_utterance_is(tmp_path: Path) -> None:
    labels = read_labels(put(tmp_path, "t.csv", "recording_id,speaker\na,s\nb,s\n"))
    assert labels.ids.tolist() == ["a", "b"]
    assert labels.session is None


@pytest.mark.parametrize(("mark", "words"), [(";", "semicolons"), (" ", "blanks")])
def test_other_marks_between_fields(tmp_path: Path, mark: str, words: str) -> None:
    rows = [["utt", "spk", "sess"], ["a", "s", "1"], ["b", "t", "2"]]
    labels = read_labels(put(tmp_path, "table", "\n".join(mark.join(row) for row in rows)))
    assert (labels.ids.tolist(), labels.speaker.tolist()) == (["a", "b"], ["s", "t"])
    assert f"fields are between {words}" in labels.read_as
    if mark == ";":
        quoted = read_labels(put(tmp_path, "t.csv", 'utt;spk\n"a;1";s\nb,2;t\n'))
        assert quoted.ids.tolist() == ["a;1", "b,2"]


@pytest.mark.parametrize("mark", [",", ";", "\t", " "])
def test_a_table_without_header_is_said_to_have_none(tmp_path: Path, mark: str) -> None:
    text = "".join(mark.join(row) + "\n" for row in (["a", "s", "1"], ["b", "s", "1"], ["c", "t", "2"]))
    path = put(tmp_path, "bare.txt" if mark == " " else "bare.csv", text)
    if mark != " ":
        with pytest.raises(DuopldaError, match=r"line 1: \(a, s, 1\) is no header, as 's' stands .*id=1,speaker=2,ses"):
            read_labels(path)
    else:
        with pytest.raises(DuopldaError, match=r"'s' is there already.*id=1,speaker=2,session=3"):
            read_labels(path)
    labels = read_labels(path, columns={"id": "1", "speaker": "2", "session": "3"})
    assert labels.session is not None
    assert list(zip(labels.ids, labels.speaker, labels.session, strict=True)) == [
        ("a", "s", "1"),
        ("b", "s", "1"),
        ("c", "t", "2"),
    ]
    assert "it has no header" in labels.read_as


def test_swapped_columns_of_labels(tmp_path: Path) -> None:
    path = put(tmp_path, "list", "s a\ns b\nt c\n")
    with pytest.raises(DuopldaError, match=r"lines look like `speaker recording`.*`columns` id=2,speaker=1"):
        read_labels(path)
    labels = read_labels(path, columns={"id": "2", "speaker": "1"})
    assert (labels.ids.tolist(), labels.speaker.tolist()) == (["a", "b", "c"], ["s", "s", "t"])


def test_columns_name_those_of_several_tables(tmp_path: Path) -> None:
    columns = {"id": "clip", "session": "take", "speaker": "who", "model": "m", "enroll": "left"}
    spk = put(tmp_path, "utt2spk", "a s\nb s\n")  # a list has no columns
    sess = put(tmp_path, "s.csv", "clip,take\na,1\nb,1\n")
    chan = put(tmp_path, "c.csv", "id,channel\na,x\nb,y\n")  # whose ids have a usual name
    labels = read_labels(spk, sess, chan, columns=columns)
    assert labels.session is not None
    assert labels.channel is not None
    assert (labels.session.tolist(), labels.channel.tolist()) == (["1", "1"], ["x", "y"])


def test_lists_between_tabs_keep_their_blanks(tmp_path: Path) -> None:
    labels = read_labels(put(tmp_path, "utt2spk", "my file 1\tAnn Lee\nmy file 2\tAnn Lee\nb \tBo\n"))
    assert labels.ids.tolist() == ["my file 1", "my file 2", "b"]
    assert labels.speaker.tolist() == ["Ann Lee", "Ann Lee", "Bo"]
    trials = read_trials(put(tmp_path, "trials", "Ann Lee\tmy file 1\ttarget\nBo\tmy file 2\tnontarget\n"))
    assert (trials.enroll.names.tolist(), trials.test.names.tolist()) == (["Ann Lee", "Bo"], ["my file 1", "my file 2"])
    enrollment = read_enrollment(put(tmp_path, "enroll", "Ann Lee\tmy file 1\tmy file 2\nBo\tb\n"))
    assert enrollment.recording.values.tolist() == ["my file 1", "my file 2", "b"]
    assert read_map(put(tmp_path, "spk2utt", "Ann Lee\ta 1\tb 1\n"), "speaker") == {"a 1": "Ann Lee", "b 1": "Ann Lee"}


def test_a_name_that_is_wrong_is_no_guess(tmp_path: Path) -> None:
    path = put(tmp_path, "t.csv", "id,speaker,session\na,s,1\n")
    with pytest.raises(DuopldaError, match="has no column 'cal'; it has id, speaker, session"):
        read_labels(path, columns={"session": "cal"})
