"""Scores: every format round trip to the last bit, and as other tools read and write them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duoplda.errors import DuopldaError
from duoplda.io import Coded, ScoreMatrix, Scores, read_score_matrix, read_scores, scores_frame, write_scores

SUFFIXES = ["", ".txt", ".tsv", ".csv", ".parquet", ".h5", ".npz"]
HARD = [0.1 + 0.2, 1e-300, -1.7976931348623157e308, 5e-324, -0.0, 123456789.12345679, np.inf, -np.inf]


def some(score: list[float] | np.ndarray) -> Scores:
    """As many scores, of models m0, m1, ... against recordings a, b, ü."""
    n = len(score)
    enroll, test = [f"m{i // 3}" for i in range(n)], ["a", "b", "ü"] * n
    return Scores(Coded.of(enroll), Coded.of(test[:n]), np.asarray(score, float))


def rows(s: Scores) -> list[tuple[str, str, str]]:
    return sorted(zip(s.enroll.values.tolist(), s.test.values.tolist(), map(float.hex, s.score.tolist()), strict=True))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_to_the_last_bit(tmp_path: Path, suffix: str) -> None:
    s = some(HARD)
    write_scores(tmp_path / f"s{suffix}", s)
    got = read_scores(tmp_path / f"s{suffix}")
    assert got.score.dtype == np.float64
    assert rows(got) == rows(s)
    if suffix not in (".h5", ".npz"):
        assert got.score.tolist() == s.score.tolist()  # lists keep their order


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_scores_are_data_frames_on_the_way_in_and_out(tmp_path: Path, suffix: str) -> None:
    s = some(np.arange(9) / 7)
    frame = scores_frame(s)
    assert frame.columns.tolist() == ["modelid", "segmentid", "LLR"]
    assert frame.LLR.tolist() == s.score.tolist()
    parts = (Scores(s.enroll[k], s.test[k], s.score[k]) for k in (slice(0, 4), slice(4, 9)))
    pd.testing.assert_frame_equal(scores_frame(parts), frame)
    matrix = ScoreMatrix(np.array([5, 6]), np.array(["a", "b"]), np.array([[1.0, np.nan], [2.0, 3.0]]))
    assert scores_frame(matrix).values.tolist() == [["5", "a", 1.0], ["6", "a", 2.0], ["6", "b", 3.0]]
    write_scores(tmp_path / f"s{suffix}", frame)
    assert rows(read_scores(tmp_path / f"s{suffix}")) == rows(s)
    other = frame.rename(columns={"modelid": "enroll", "segmentid": "Test", "LLR": "score"}).assign(further=1)
    write_scores(tmp_path / f"other{suffix}", other[["further", "score", "Test", "enroll"]])
    assert rows(read_scores(tmp_path / f"other{suffix}")) == rows(s)


def test_a_data_frame_without_the_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DuopldaError, match="the data frame has no column segmentid; it has: modelid, llr"):
        write_scores(tmp_path / "s", pd.DataFrame({"modelid": ["m"], "llr": [1.0]}))
    with pytest.raises(DuopldaError, match=r"scores of the data frame are no numbers: .*high"):
        write_scores(tmp_path / "s", pd.DataFrame({"modelid": ["m"], "segmentid": ["a"], "llr": ["high"]}))
    with pytest.raises(DuopldaError, match="there are no scores"):
        scores_frame([])
    assert not list(tmp_path.iterdir())


@settings(deadline=None, max_examples=50)
@given(values=st.lists(st.floats(allow_nan=False), min_size=1, max_size=40))
def test_text_keeps_every_float(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    folder = tmp_path_factory.mktemp("s")
    for suffix in (".txt", ".tsv", ".csv"):
        write_scores(folder / f"s{suffix}", some(values))
        assert read_scores(folder / f"s{suffix}").score.tobytes() == np.array(values).tobytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_parts_and_matrices_are_written_like_a_list(tmp_path: Path, suffix: str) -> None:
    s = some(np.arange(9) / 7)
    parts = (Scores(s.enroll[k], s.test[k], s.score[k]) for k in (slice(0, 4), slice(4, 8), slice(8, 9)))
    write_scores(tmp_path / f"p{suffix}", parts)
    m = ScoreMatrix(np.array(["m0", "m1", "m2"]), np.array(["a", "b", "ü"]), s.score.reshape(3, 3))
    write_scores(tmp_path / f"m{suffix}", m)
    assert rows(read_scores(tmp_path / f"p{suffix}")) == rows(read_scores(tmp_path / f"m{suffix}")) == rows(s)
    got = read_score_matrix(tmp_path / f"m{suffix}")
    assert got.enroll_ids.tolist() == m.enroll_ids.tolist()
    assert got.test_ids.tolist() == m.test_ids.tolist()
    np.testing.assert_array_equal(got.score, m.score)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pairs_that_were_not_scored_stay_out(tmp_path: Path, suffix: str) -> None:
    m = ScoreMatrix(np.array(["m", "n"]), np.array(["a", "b"]), np.array([[1.0, np.nan], [np.nan, 2.0]]))
    write_scores(tmp_path / f"s{suffix}", m)
    got = read_scores(tmp_path / f"s{suffix}")
    assert list(zip(got.enroll.values, got.test.values, got.score, strict=True)) == [("m", "a", 1.0), ("n", "b", 2.0)]
    np.testing.assert_array_equal(read_score_matrix(tmp_path / f"s{suffix}").score, m.score)


def test_a_large_list_is_written_in_batches(tmp_path: Path) -> None:
    n = (1 << 20) + 7
    rng = np.random.default_rng(0)
    names = np.array([f"id{i}" for i in range(1000)])
    codes = rng.integers(0, 1000, (2, n)).astype(np.int32)
    s = Scores(Coded(names, codes[0]), Coded(names, codes[1]), rng.standard_normal(n))
    write_scores(tmp_path / "s.txt", s)
    got = read_scores(tmp_path / "s.txt")
    assert got.score.tobytes() == s.score.tobytes()
    np.testing.assert_array_equal(got.test.names[got.test.codes[-100:]], names[codes[1, -100:]])


def test_the_text_of_each_format(tmp_path: Path) -> None:
    s = Scores(Coded.of(["m", "m"]), Coded.of(["a", "b"]), np.array([1.5, -0.1]))
    for suffix, text in (
        ("", "m a 1.5\nm b -0.1\n"),
        (".tsv", "modelid\tsegmentid\tLLR\nm\ta\t1.5\nm\tb\t-0.1\n"),
        (".csv", "modelid,segmentid,LLR\nm,a,1.5\nm,b,-0.1\n"),
    ):
        write_scores(tmp_path / f"s{suffix}", s)
        assert (tmp_path / f"s{suffix}").read_text() == text


def test_csv_quotes_what_needs_it(tmp_path: Path) -> None:
    s = Scores(Coded.of(['a,"b"']), Coded.of(["c d"]), np.array([2.0]))
    write_scores(tmp_path / "s.csv", s)
    assert rows(read_scores(tmp_path / "s.csv")) == rows(s)
    assert pd.read_csv(tmp_path / "s.csv").iloc[0].tolist() == ['a,"b"', "c d", 2.0]
    with pytest.raises(DuopldaError, match="'c d' has a space"):
        write_scores(tmp_path / "s.txt", s)


def test_other_tools_read_and_write_the_same(tmp_path: Path) -> None:
    s = some(np.arange(6) / 7)
    write_scores(tmp_path / "s.parquet", s)
    df = pd.read_parquet(tmp_path / "s.parquet")
    assert df.columns.tolist() == ["modelid", "segmentid", "LLR"]
    np.testing.assert_array_equal(df["LLR"], s.score)
    df = df.assign(side="a", modelid=df["modelid"].astype(str))[["side", "LLR", "segmentid", "modelid"]]
    df.to_csv(tmp_path / "n.tsv", sep="\t", index=False)  # NIST has a column more
    assert rows(read_scores(tmp_path / "n.tsv")) == rows(s)
    df.rename(columns={"LLR": "mine"}).to_csv(tmp_path / "c.csv", index=False)
    assert rows(read_scores(tmp_path / "c.csv", columns={"score": "mine"})) == rows(s)
    write_scores(tmp_path / "s.h5", s)
    with h5py.File(tmp_path / "s.h5") as f:  # the lines of hyperion's TrialScores.load_h5
        assert [t.decode("utf-8") for t in f["ID/row_ids"]] == ["m0", "m1"]
        assert np.asarray(f["score_mask"], dtype="bool").all()
        np.testing.assert_array_equal(f["scores"], s.score.reshape(2, 3))
    write_scores(tmp_path / "s.npz", s)
    with np.load(tmp_path / "s.npz") as z:
        np.testing.assert_array_equal(z["scores"], s.score.reshape(2, 3))
        assert z["test_ids"].tolist() == ["a", "b", "ü"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s", "", "s: is empty"),
        ("s", "m a\n", "line 1: has 2 fields; lines have 3"),
        ("s", "m a 1\nm b x\n", "line 2: 'x' is not a number"),
        ("s", "m a 1\nm b\n", "line 2: has 2 fields, the first line 3"),
        ("s", b"m a 1\nm \xff 2\n", "line 2: is not UTF-8"),
        ("s.tsv", "modelid\tsegmentid\tLLR\nm\ta\t\n", "line 2: '' is not a number"),
        ("s.tsv", "modelid\tsegmentid\tLLR\nm\ta\n", "line 2: has 2 fields, the header 3"),
        ("s.npz", b"PK\x03\x04 and nothing", r"cannot be read as a NumPy \.npz file"),
        ("s.h5", b"\x89HDF\r\n\x1a\n", "cannot be read as HDF5"),
        ("s.parquet", b"PAR1", "cannot be read as Parquet"),
    ],
)
def test_wrong_scores(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(DuopldaError, match=message) as e:
        read_scores(tmp_path / name)
    assert str(e.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": None}, "has no scores; save them as one of scores"),
        ({"test_ids": None}, "has no test ids"),
        ({"scores": np.ones((3, 2))}, r"shape \(3, 2\) for 2 x 3 ids"),
        ({"enroll_ids": np.array(["m", "m"])}, "an id occurs twice"),
        ({"enroll_ids": np.array(["m", None])}, "enroll_ids: holds pickled objects, which are never loaded"),
        ({"enroll_ids": np.array([1.5, 2.5])}, "ids are float64"),
    ],
)
def test_wrong_matrices(tmp_path: Path, change: dict, message: str) -> None:
    data = {"scores": np.ones((2, 3)), "enroll_ids": np.array(["m", "n"]), "test_ids": np.array(["a", "b", "c"])}
    np.savez(tmp_path / "s.npz", **{k: v for k, v in (data | change).items() if v is not None})
    with pytest.raises(DuopldaError, match=message):
        read_scores(tmp_path / "s.npz")


def test_lengths_and_shapes_that_disagree_are_not_written(tmp_path: Path) -> None:
    short = Scores(Coded.of(["m"]), Coded.of(["a", "b"]), np.ones(2))
    with pytest.raises(DuopldaError, match="1 models, 2 recordings and 2 scores"):
        write_scores(tmp_path / "s.txt", short)
    with pytest.raises(DuopldaError, match=r"shape \(2, 2\) for 1 x 2 ids"):
        write_scores(tmp_path / "s.npz", ScoreMatrix(np.array(["m"]), np.array(["a", "b"]), np.ones((2, 2))))
    with pytest.raises(DuopldaError, match="the pair 'm a' occurs twice"):
        write_scores(tmp_path / "s.h5", Scores(Coded.of(["m", "m"]), Coded.of(["a", "a"]), np.ones(2)))
    assert list(tmp_path.iterdir()) == []
