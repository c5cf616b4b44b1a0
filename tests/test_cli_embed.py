"""`duoplda embed`: from files of audio to embeddings, labels, quality, speech and windows."""

import json

import numpy as np
import pytest

from audio_cases import RATE, voice, write_extractor
from cli_cases import done, duoplda, lines
from duoplda import PLDA, Backend
from duoplda.audio import Channels, Extractor, embed_audio, list_audio, read_audio
from duoplda.diarization import read_rttm, read_segments
from duoplda.io import read_embeddings, read_extractor, read_labels, read_quality

soundfile = pytest.importorskip("soundfile", reason="needs the extra audio")
pytest.importorskip("soxr", reason="needs the extra audio")
pytest.importorskip("sherpa_onnx", reason="needs the extra audio")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three recordings each of two speakers, in folders of their own."""
    at = tmp_path_factory.mktemp("audio")
    for i in range(6):
        (at / "audio" / f"s{i % 2}").mkdir(exist_ok=True, parents=True)
        soundfile.write(at / "audio" / f"s{i % 2}" / f"r{i}.wav", voice(i), RATE)
    write_extractor(at / "tiny.onnx")
    return at


def embedding(folder, out, *more):
    return ["embed", "--extractor", folder / "tiny.onnx", "--audio", folder / "audio", "--out", out, *more]


@pytest.mark.parametrize("name", ["x.ark", "x.scp", "x.npz", "x.h5", "x.parquet"])
def test_embeddings_are_those_of_the_library(folder, tmp_path, name):
    said = done(*embedding(folder, tmp_path / name)).stderr
    ids, X = read_embeddings(tmp_path / name).load()
    expected = [*embed_audio(Extractor(folder / "tiny.onnx"), list_audio(folder / "audio"))]
    assert ids.tolist() == [one.file.id for one in expected] == ["s0/r0", "s0/r2", "s0/r4", "s1/r1", "s1/r3", "s1/r5"]
    assert np.array_equal(X, np.concatenate([one.X for one in expected]))
    assert "6 embeddings of 6 files" in said


def test_copies_with_their_labels_and_quality(folder, tmp_path):
    given = ["--speakers", "folders", "--copies", "clean,telephone,noise", "--seed", 3]
    outputs = ["--labels-out", tmp_path / "labels.csv", "--quality-out", tmp_path / "quality.tsv"]
    done(*embedding(folder, tmp_path / "x.npz"), *given, *outputs)
    ids, X = read_embeddings(tmp_path / "x.npz").load()
    labels = read_labels(tmp_path / "labels.csv")
    assert labels.ids.tolist() == ids.tolist()
    assert labels.ids[:3].tolist() == ["s0/r0", "s0/r0-telephone", "s0/r0-noise"]
    assert labels.speaker.tolist() == ["s0"] * 9 + ["s1"] * 9
    assert labels.session.tolist() == [i.partition("-")[0] for i in ids.tolist()]
    assert labels.channel.tolist() == ["clean", "telephone", "noise"] * 6
    samples, _ = read_audio(folder / "audio" / "s0" / "r0.wav", RATE)
    copy = Channels(seed=3).copy("s0/r0", samples, RATE, "telephone")
    assert np.array_equal(X[1], Extractor(folder / "tiny.onnx").embed(copy))
    quality = read_quality(tmp_path / "quality.tsv")
    assert quality.ids.tolist() == ids.tolist()
    assert quality.numbers("bandwidth")[1] <= 4250 < quality.numbers("bandwidth")[0]
    done("train", "--embeddings", tmp_path / "x.npz", "--labels", tmp_path / "labels.csv",
         "--lda", "1", "--shrinkage", "0.5", "--out", tmp_path / "model")  # fmt: skip


def test_labels_from_lists(folder, tmp_path):
    utts = [f"s{i % 2}/r{i}" for i in range(6)]
    (tmp_path / "utt2spk").write_text("".join(f"{u} ann\n" for u in utts))
    (tmp_path / "utt2sess").write_text("".join(f"{u} day{i // 3}\n" for i, u in enumerate(utts)))
    lists = ["--speakers", tmp_path / "utt2spk", "--sessions", tmp_path / "utt2sess"]
    done(*embedding(folder, tmp_path / "x.npz"), *lists, "--labels-out", tmp_path / "labels.csv")
    labels = read_labels(tmp_path / "labels.csv")
    assert dict(zip(labels.ids, labels.session, strict=True)) == {u: f"day{i // 3}" for i, u in enumerate(utts)}
    (tmp_path / "utt2spk").write_text("s0/r0 ann\n")
    failed = duoplda(*embedding(folder, tmp_path / "y.npz"), *lists)
    assert failed.exit_code == 3
    assert "5 recordings have no speaker in" in failed.stderr
    assert not (tmp_path / "y.npz").exists()


def test_windows_go_on_to_diarize(folder, tmp_path):
    sound = np.concatenate([np.zeros(RATE), voice(0), np.zeros(RATE), voice(1)]).astype(np.float32)
    soundfile.write(tmp_path / "meeting.flac", sound, RATE)
    outputs = ["--segments-out", tmp_path / "segments", "--speech-out", tmp_path / "speech.rttm"]
    given = ["embed", "--extractor", folder / "tiny.onnx", "--audio", tmp_path / "meeting.flac", "--windows", 1.5]
    shown = json.loads(done(*given, "--out", tmp_path / "x.ark", *outputs, "--json").stdout)
    segments = read_segments(tmp_path / "segments")
    ids, X = read_embeddings(tmp_path / "x.ark").load()
    assert segments.ids.tolist() == ids.tolist()
    assert shown["embeddings"] == len(ids)
    assert set(segments.file.values) == {"meeting"}
    speech = read_rttm(tmp_path / "speech.rttm")
    assert np.abs(speech.start - [1, 5]).max() < 0.15
    assert shown["seconds_of_speech"] == pytest.approx(speech.duration.sum(), abs=1e-3)
    done(*given, "--out", tmp_path / "y.ark", "--hop", 0.5, "--speech-out", tmp_path / "speech.lab")
    assert [line[0] for line in lines(tmp_path / "speech.lab")] == ["meeting", "meeting"]
    assert len(read_embeddings(tmp_path / "y.ark").ids()) < len(ids)
    done(*given[:-2], "--segments", tmp_path / "segments", "--out", tmp_path / "z.ark")  # the same, as a list
    again, Z = read_embeddings(tmp_path / "z.ark").load()
    assert np.array_equal(again, ids)
    assert np.array_equal(X, Z)


def test_files_that_cannot_be_read_are_named_and_the_rest_is_written(folder, tmp_path):
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    (tmp_path / "cut.wav").write_bytes((folder / "audio" / "s0" / "r0.wav").read_bytes()[:-5])
    more = ["--audio", tmp_path / "silent.wav", "--audio", tmp_path / "cut.wav", "--audio", tmp_path / "absent.wav"]
    failed = duoplda(*embedding(folder, tmp_path / "x.npz"), *more)
    assert failed.exit_code == 1
    assert "2 of 9 files gave no embedding (all others are in" in failed.stderr
    assert "cut.wav: holds" in failed.stderr
    assert "absent.wav: no such file" in failed.stderr
    assert "silent.wav has no speech in its 1.0 s" in failed.stderr
    assert len(read_embeddings(tmp_path / "x.npz").ids()) == 6
    for audio, message in (("silent.wav", "none of the 1 files has speech"), ("cut.wav", "1 of 1 files gave no emb")):
        given = ["--audio", tmp_path / audio, "--out", tmp_path / "y.npz", "--labels-out", tmp_path / "y.csv"]
        failed = duoplda("embed", "--extractor", folder / "tiny.onnx", *given)
        assert failed.exit_code == 1
        assert message in failed.stderr
    assert not [*tmp_path.glob("y.*")]
    assert not [*tmp_path.glob(".*")]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--windows", 1.5, "--segments", "segments"], 2, "leave out either of the two"),
        (["--hop", 1], 2, "--hop is for --windows"),
        (["--segments-out", "s"], 2, "--segments-out is for --windows"),
        (["--noises", "noises"], 2, "--noises is for --copies"),
        (["--copies", "clean,mud"], 2, "--copies are clean, noise"),
        (["--copies", "noise,noise"], 2, "names a kind twice"),
        (["--labels-out", "same.csv", "--quality-out", "same.csv"], 2, "two outputs have one name"),
        (["--windows", 0.1], 1, "too short"),
        (["--channel", 2], 1, "no channel 2"),
        (["--extractor", "audio/s0/r0.wav"], 1, "no ONNX file"),
        (["--silero", "tiny.onnx"], 1, "tiny.onnx: has the inputs x and the outputs e"),
        (["--quality-out", "quality.txt"], 2, "quality.txt is to be a table"),
    ],
)
def test_wrong_options(folder, tmp_path, monkeypatch, options, code, message):
    monkeypatch.chdir(folder)
    (folder / "segments").write_text("a s0/r0 0 1\n")
    failed = duoplda(*embedding(folder, tmp_path / "x.npz"), *options)
    assert failed.exit_code == code, failed.output
    assert message in " ".join(failed.stderr.split())
    assert "Traceback" not in failed.output
    assert not [*tmp_path.iterdir()]


# -- who speaks when, from audio


def test_one_command_from_a_meeting_to_its_turns(folder, tmp_path):
    """It is what the two commands give one after the other."""
    parts = [np.zeros(RATE), voice(0), np.zeros(RATE), voice(1), np.zeros(RATE), voice(0)]
    soundfile.write(tmp_path / "meeting.wav", np.concatenate(parts), RATE)
    V, U = np.linalg.qr(np.random.default_rng(0).normal(size=(24, 24)))[0].reshape(24, 2, 12).swapaxes(0, 1)
    Backend.from_plda(PLDA.from_parameters(np.zeros(24), V, U, np.eye(24))).save(tmp_path / "model")
    audio = ["--extractor", folder / "tiny.onnx", "--audio", tmp_path / "meeting.wav"]
    model = ["diarize", "--model", tmp_path / "model", "--speakers", 2]
    done(*model, *audio, "--out", tmp_path / "one.rttm")
    steps = ["--out", tmp_path / "x.npz", "--segments-out", tmp_path / "segments"]
    done("embed", *audio, "--windows", 1.5, *steps)
    two = ["--embeddings", tmp_path / "x.npz", "--segments", tmp_path / "segments"]
    done(*model, *two, "--out", tmp_path / "two.rttm")
    assert (tmp_path / "one.rttm").read_bytes() == (tmp_path / "two.rttm").read_bytes()
    assert len(read_rttm(tmp_path / "one.rttm")) >= 3
    for wrong in ([], audio[:2], [*audio, *two], [*audio, *two[2:]], [*audio, "--ids", "rows"]):
        failed = duoplda(*model, *wrong, "--out", tmp_path / "three.rttm")
        assert failed.exit_code == 2, failed.output
    assert not (tmp_path / "three.rttm").exists()


# -- what embeddings say of their extractor


@pytest.mark.parametrize("name", ["x.npz", "x.h5", "x.parquet", "x.ark"])
def test_a_model_knows_the_extractor_of_its_embeddings(folder, tmp_path, name):
    """Embeddings of another one give a warning that names both, in formats that have room for a name."""
    write_extractor(tmp_path / "other.onnx", seed=1)
    labels = ["--speakers", "folders", "--copies", "clean,telephone,noise"]
    done(*embedding(folder, tmp_path / name, *labels, "--labels-out", tmp_path / "labels.csv"))
    other = tmp_path / f"other-{name}"
    given = ["--extractor", tmp_path / "other.onnx", "--audio", folder / "audio", "--out", other]
    done("embed", *given)
    train = ["--labels", tmp_path / "labels.csv", "--lda", "1", "--shrinkage", "0.5", "--out", tmp_path / "model"]
    done("train", "--embeddings", tmp_path / name, *train)
    made_by = read_extractor(tmp_path / name)
    knows = name != "x.ark"
    assert (made_by is not None) == knows
    assert ("extractor: sha256" in done("info", tmp_path / "model").stdout) == knows
    (tmp_path / "enroll").write_text("ann s0/r0\nbob s1/r1\n")
    enrol = ["--model", tmp_path / "model", "--enroll", tmp_path / "enroll"]
    for command, more in (("score", ["--top", 1, "--out", tmp_path / "s"]), ("enroll", ["--out", tmp_path / "v"])):
        said = done(command, *enrol, *more, "--embeddings", tmp_path / name).stderr
        assert "was made by" not in said
        said = done(command, *enrol, *more, "--force", "--embeddings", other).stderr
        assert ("other.onnx (sha256" in said) == knows
        assert ("trained on embeddings of tiny.onnx" in said) == knows


@pytest.mark.parametrize("array", [np.array("words"), np.array(["a", "b"]), np.arange(2), np.array('{"sha256": 3}')])
def test_what_others_call_extractor_is_nothing_to_us(tmp_path, array):
    np.savez(tmp_path / "x.npz", embeddings=np.eye(2), ids=np.array(["a", "b"]), extractor=array)
    assert read_extractor(tmp_path / "x.npz") is None
    assert len(read_embeddings(tmp_path / "x.npz").ids()) == 2
