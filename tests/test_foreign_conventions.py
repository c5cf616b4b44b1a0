"""One data set in the layouts of other people: the tutorial's path gives the same results from each of them.

The path is advise, train, score, evaluate. Below it: what is said where files do not fit.
"""

import json
import shlex
import wave
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from cli_cases import QUICK, done, duoplda
from duoplda.datasets import make_recordings
from duoplda.io import Coded, LabelColumns, Trials, read_scores, write_embeddings, write_labels, write_map, write_trials


@dataclass
class Data:
    """Recordings of 24 speakers, and trials of them: models and tests by number."""

    X: np.ndarray
    speaker: list[int]
    session: list[tuple[int, int]]
    enroll: list[tuple[int, int]]  # the number of a speaker, and of a recording
    trials: list[tuple[int, int, bool]]

    @staticmethod
    def drawn():
        shape = {"n_dimensions": 6, "n_speaker_factors": 4, "n_session_factors": 3}
        X, who, which, _ = make_recordings(24, (2, 3), (2, 3), **shape, seed=0)
        speaker = [int(name.removeprefix("spk")) for name in who]
        session = [tuple(map(int, name.removeprefix("spk").split("-"))) for name in which]
        members = [(s, i) for i, (s, number) in enumerate(session) if number == 0 and s < 8]
        tests = [i for i, (s, number) in enumerate(session) if number > 0 and s < 8]
        trials = [(model, test, speaker[test] == model) for model in range(8) for test in tests]
        return Data(X.astype(np.float32), speaker, session, members, trials)


@dataclass
class Layout:
    """Files of somebody: the options by which commands read them, and the names of speakers and recordings in them."""

    embeddings: Path
    labels: list[object]
    enroll: Path
    trials: Path
    people: list[str]
    ids: list[str]
    sessions: list[object] = field(default_factory=list)  # of enrolment and tests
    speakers: Path | None = None
    columns: str = ""


def names(data, speaker, recording):
    """Names of the speakers, and of the recordings by speaker, session and number."""
    people = [speaker.format(s) for s in range(24)]
    ids = [recording.format(people[s], session, i) for i, (s, session) in enumerate(data.session)]
    return people, ids


def text(path, rows, mark):
    path.write_text("".join(mark.join(map(str, row)) + "\n" for row in rows))
    return path


def ours(data, at):
    people, ids = names(data, "spk{:02}", "utt{2:03}")
    session = [f"{people[s]}-{number}" for s, number in data.session]
    write_embeddings(at / "x.npz", ids, data.X)
    write_labels(at / "labels.csv", LabelColumns(*map(np.array, (ids, [people[s] for s in data.speaker], session))))
    write_map(at / "enroll", *zip(*((people[s], ids[i]) for s, i in data.enroll), strict=True))
    left, right, target = zip(*data.trials, strict=True)
    sides = Coded.of([people[s] for s in left]), Coded.of([ids[i] for i in right])
    write_trials(at / "trials", Trials(*sides, np.array(target)))
    table = at / "labels.csv"
    return Layout(at / "x.npz", ["--labels", table], at / "enroll", at / "trials", people, ids,
                  ["--sessions", table], table)  # fmt: skip


def semicolons(data, at):
    """A spreadsheet of a German office: other words in the header, and semicolons."""
    people, ids = names(data, "Person {:02}", "Datei {2:03}, {0}")
    write_embeddings(at / "x.npz", ids, data.X)
    rows = [[f'"{ids[i]}"', people[s], f"{people[s]}/{n}", "w"] for i, (s, n) in enumerate(data.session)]
    table = text(at / "meta.csv", [["Datei", "Wer", "Anruf", "Geschlecht"], *rows], ";")
    enroll = text(at / "enroll.csv", [["Stimme", "Probe"], *((people[s], ids[i]) for s, i in data.enroll)], ";")
    rows = [(people[s], ids[i], int(target)) for s, i, target in data.trials]
    trials = text(at / "trials.csv", [["Stimme", "Probe", "gleich"], *rows], ";")
    columns = "id=Datei,speaker=Wer,session=Anruf,model=Stimme,recording=Probe,enroll=Stimme,test=Probe,target=gleich"
    return Layout(at / "x.npz", ["--labels", table], enroll, trials, people, ids, ["--sessions", table], table, columns)


def tabs(data, at):
    """Lists between tabs, with blanks in the names of files and people."""
    people, ids = names(data, "Ann Lee {:02}", "{0} take {1} no {2:03}.wav")
    write_embeddings(at / "x.npz", ids, data.X)
    utt2spk = text(at / "utt2spk", [(ids[i], people[s]) for i, s in enumerate(data.speaker)], "\t")
    rows = [(ids[i], f"{people[s]} take {n}") for i, (s, n) in enumerate(data.session)]
    utt2sess = text(at / "utt2sess", rows, "\t")
    enroll = text(at / "enroll", [(people[s], ids[i]) for s, i in data.enroll], "\t")
    rows = [(people[s], ids[i], "target" if target else "nontarget") for s, i, target in data.trials]
    labels = ["--speakers", utt2spk, "--sessions", utt2sess]
    trials = text(at / "trials", rows, "\t")
    return Layout(at / "x.npz", labels, enroll, trials, people, ids, ["--sessions", utt2sess], utt2spk)


def without_headers(data, at):
    """Tables without a header, and an enrolment that is written as utt2spk is."""
    people, ids = names(data, "p{:02}", "r{2:03}")
    write_embeddings(at / "x.npz", ids, data.X)
    rows = [(ids[i], people[s], f"{people[s]}.{n}") for i, (s, n) in enumerate(data.session)]
    table = text(at / "labels.csv", rows, ",")
    enroll = text(at / "utt2spk_enroll", [(ids[i], people[s]) for s, i in data.enroll], " ")
    trials = text(at / "trials.csv", [(people[s], ids[i], int(target)) for s, i, target in data.trials], ",")
    columns = "id=1,speaker=2,session=3,recording=1,model=2,enroll=1,test=2,target=3"
    return Layout(at / "x.npz", ["--labels", table], enroll, trials, people, ids, ["--sessions", table], table, columns)


def voxceleb(data, at):
    """VoxCeleb's names, from which `advise` takes the sessions, and its list of trials."""
    people, ids = names(data, "id100{:02}", "{0}/video{1:06}/{2:05}.wav")
    write_embeddings(at / "x.npz", ids, data.X)
    write_map(at / "utt2spk", ids, [people[s] for s in data.speaker])
    write_map(at / "enroll", *zip(*((people[s], ids[i]) for s, i in data.enroll), strict=True))
    rows = [(int(target), people[s], ids[i]) for s, i, target in data.trials]
    commands = json.loads(done("advise", "--speakers", at / "utt2spk", "--json", "-q").stdout)["commands"]
    typed = shlex.split(commands[0])[1:]
    done(*typed[:-1], at / "utt2sess", "-q")
    labels = ["--speakers", at / "utt2spk", "--sessions", at / "utt2sess"]
    return Layout(at / "x.npz", labels, at / "enroll", text(at / "veri_test.txt", rows, " "), people, ids,
                  labels[2:], at / "utt2spk")  # fmt: skip


def parquet(data, at):
    """One table of a data lake: vectors and labels side by side, in columns of its own names."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    people, ids = names(data, "c{:02}", "clip-{2:03}")
    vectors = pa.array(data.X.tolist(), pa.list_(pa.float32()))
    calls = [f"{people[s]}:{n}" for s, n in data.session]
    labels = {"clip": ids, "client_id": [people[s] for s in data.speaker], "call": calls, "lang": ["en"] * len(ids)}
    path = at / "lake.parquet"
    pq.write_table(pa.table({**labels, "xv": vectors}), path)
    table = {"voice": [people[s] for s, _ in data.enroll], "clip": [ids[i] for _, i in data.enroll]}
    pq.write_table(pa.table(table), at / "enroll.parquet")
    left, right, target = zip(*data.trials, strict=True)
    rows = {"voice": [people[s] for s in left], "clip": [ids[i] for i in right], "is_target": [int(t) for t in target]}
    pq.write_table(pa.table(rows), at / "trials.parquet")
    columns = "vector=xv,id=clip,model=voice,recording=clip,enroll=voice,test=clip"
    return Layout(path, ["--labels", path], at / "enroll.parquet", at / "trials.parquet", people, ids,
                  ["--sessions", path], path, columns)  # fmt: skip


def results(layout, at):
    """What the path gives: the advice, scores by the numbers of models and tests, and metrics."""
    columns = ["--columns", layout.columns] if layout.columns else []
    out = ["-q", "--force", *columns]
    advice = json.loads(done("advise", *layout.labels, "--json", "-q", *columns).stdout)
    model = at / "model.safetensors"
    done("train", "--embeddings", layout.embeddings, *layout.labels, *QUICK, "--out", model, *out)
    lists = ["--enroll", layout.enroll, *layout.sessions, "--trials", layout.trials]
    scores = at / "scores.tsv"
    done("score", "--model", model, "--embeddings", layout.embeddings, *lists, "--out", scores, *out)
    given = ["--scores", scores, "--trials", layout.trials, "--enroll", layout.enroll, "--speakers", layout.speakers]
    measured = json.loads(done("evaluate", *given, "--bootstrap", 5, "--json", "-q", *columns).stdout)
    listed = read_scores(scores)
    models = [layout.people.index(name) for name in listed.enroll.values.tolist()]
    tests = [layout.ids.index(name) for name in listed.test.values.tolist()]
    return advice, np.column_stack([models, tests, listed.score]), measured["systems"]["scores"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    at = tmp_path_factory.mktemp("ours")
    data = Data.drawn()
    layout = ours(data, at)
    return data, layout, *results(layout, at)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "write", [semicolons, tabs, without_headers, voxceleb, parquet], ids=lambda write: write.__name__
)
def test_the_path_of_the_tutorial(reference, write, tmp_path):
    data, _, advice, scores, measured = reference
    found, other_scores, other_measured = results(write(data, tmp_path), tmp_path)
    assert found["counts"] == advice["counts"]
    assert found["counts"]["sessions"] < found["counts"]["recordings"]  # none was dropped
    np.testing.assert_array_equal(other_scores[:, :2], scores[:, :2])
    np.testing.assert_allclose(other_scores[:, 2], scores[:, 2], rtol=1e-6, atol=1e-6)
    assert other_measured["eer"] == pytest.approx(measured["eer"])
    assert other_measured["cllr"] == pytest.approx(measured["cllr"], rel=1e-6)
    assert [*other_measured["intervals"]] == [*measured["intervals"]]


# -- what does not fit


def test_lists_the_wrong_way_round(reference, tmp_path):
    data, layout, *_ = reference
    utt2spk = text(tmp_path / "utt2spk", [(layout.ids[i], layout.people[s]) for i, s in enumerate(data.speaker)], " ")
    model = layout.embeddings.parent / "model.safetensors"
    score = ["score", "--model", model, "--embeddings", layout.embeddings, "--out", tmp_path / "s"]
    enroll = ["enroll", "--model", model, "--embeddings", layout.embeddings, "--out", tmp_path / "v"]
    for typed, swapped in (
        ([*score, "--enroll", utt2spk, "--trials", layout.trials], "model=2,recording=1"),
        ([*score, "--enroll", utt2spk, "--matrix"], "model=2,recording=1"),
        ([*enroll, "--enroll", utt2spk], "model=2,recording=1"),
        ([*score, "--enroll", layout.enroll, "--trials", utt2spk], "enroll=2,test=1"),
        ([*score, "--trials", utt2spk], "enroll=2,test=1"),
    ):
        result = duoplda(*typed)
        assert result.exit_code == 3
        assert f"{utt2spk}: lines look like `recording speaker`, and `model recording` is expected" in result.stderr
        assert f"--columns {swapped}" in result.stderr
    done(*enroll, "--enroll", utt2spk, "--columns", "model=2,recording=1")


def test_missing_ids_are_shown_from_both_sides(reference, tmp_path):
    data, layout, *_ = reference
    at = layout.embeddings.parent
    np.savez(tmp_path / "bare.npz", X=data.X)  # whose ids are row numbers
    train = ["train", *QUICK, "--out", tmp_path / "m", "--embeddings"]
    result = duoplda(*train, tmp_path / "bare.npz", *layout.labels)
    assert result.exit_code == 3
    assert "the labels have 'utt000', 'utt001', 'utt002', the embeddings '0', '1', '2'" in result.stderr
    lines = (at / "labels.csv").read_text() + "ghost,spk00,spk00-9\n"
    (tmp_path / "more.csv").write_text(lines)
    result = duoplda(*train, layout.embeddings, "--labels", tmp_path / "more.csv")
    assert result.exit_code == 3
    assert "no embedding: ghost; the embeddings have utt000, utt001, utt002, ..." in result.stderr
    (tmp_path / "enroll").write_text("spk00 utt000.wav\nspk00 utt001.wav\n")
    words = ["enroll", "--model", at / "model.safetensors", "--embeddings", layout.embeddings]
    result = duoplda(*words, "--enroll", tmp_path / "enroll", "--out", tmp_path / "v")
    assert result.exit_code == 3
    assert "utt000.wav, utt001.wav; the embeddings have utt000, utt001, utt002, ..." in result.stderr


@pytest.mark.parametrize("line", ["u1 {}/a.wav", "u1 sph2pipe -f wav /data/a.sph |", "u1 /nowhere/a.flac", ""])
def test_audio_is_not_taken_for_embeddings(reference, line, tmp_path):
    _, layout, *_ = reference
    with wave.open(str(tmp_path / "a.wav"), "wb") as audio:
        audio.setparams((1, 2, 8000, 0, "NONE", ""))
        audio.writeframes(bytes(800))
    (tmp_path / "wav.scp").write_text(line.format(tmp_path) + "\n")
    path = tmp_path / "wav.scp" if line else tmp_path / "a.wav"
    result = duoplda("train", "--embeddings", path, *layout.labels, "--out", tmp_path / "m")
    assert result.exit_code == 1
    assert "is audio, and embeddings are read here; make them first: duoplda embed" in result.stderr


def test_audio_is_not_taken_for_speakers(reference, tmp_path):
    """Otherwise each recording has a speaker of its own, and the error is one of labels that teach nothing."""
    _, layout, *_ = reference
    scp = text(tmp_path / "wav.scp", [(i, f"/data/{i}.WAV") for i in layout.ids], " ")
    result = duoplda("train", "--embeddings", layout.embeddings, "--speakers", scp, "--out", tmp_path / "m")
    assert result.exit_code == 1
    assert f"{scp}: lines look like `recording audio`, not `recording speaker`" in result.stderr
