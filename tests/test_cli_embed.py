"""`duoplda embed`: from files of audio to embeddings, labels, quality, speech and windows."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from audio_cases import METADATA, RATE, voice, write_extractor
from cli_cases import done, duoplda, lines
from duoplda import PLDA, Backend
from duoplda.audio import Channels, Extractor, embed_audio, list_audio, read_audio
from duoplda.diarization import read_rttm, read_segments
from duoplda.io import read_embeddings, read_extractor, read_labels, read_quality, read_trials

soundfile = pytest.importorskip("soundfile", reason="needs the extra audio")
soxr = pytest.importorskip("soxr", reason="needs the extra audio")
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
        (["--metadata", "framework"], 2, "must be names and texts"),
        (["--metadata", "framework=nemo"], 1, "its framework is 'wespeaker', not 'nemo'"),
        (["--hop", 1], 2, "--hop is for --windows"),
        (["--segments-out", "s"], 2, "--segments-out is for --windows"),
        (["--noises", "noises"], 2, "--noises is for --copies"),
        (["--copies", "clean,mud"], 2, "--copies are clean, noise"),
        (["--copies", "noise,noise"], 2, "names a kind twice"),
        (["--labels-out", "same.csv", "--quality-out", "same.csv"], 2, "two outputs have the same name"),
        (["--windows", 0.1], 1, "too short"),
        (["--channel", 2], 1, "no channel 2"),
        (["--extractor", "audio/s0/r0.wav"], 1, "is not an ONNX file"),
        (["--silero", "tiny.onnx"], 1, "tiny.onnx: has the inputs x and the outputs e"),
        (["--quality-out", "quality.txt"], 2, "quality.txt must be a table"),
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


# -- interrupted runs


@pytest.fixture
def one_thread():
    """No second thread has files under way when the first is interrupted."""
    with threadpool_limits(1):
        yield


@pytest.mark.usefixtures("one_thread")
def test_an_interrupted_run_goes_on_where_it_was(folder, tmp_path, monkeypatch):
    """What is done is not done again, and the result is that of one run, to the last bit."""
    given = ["--copies", "clean,noise", "--speakers", "folders"]
    tables = ["--labels-out", "labels.csv", "--quality-out", "quality.tsv", "--speech-out", "speech.lab"]
    once, twice = tmp_path / "once", tmp_path / "twice"
    for at in (once, twice):
        at.mkdir()
    monkeypatch.chdir(once)
    done(*embedding(folder, "x.npz"), *given, *tables)
    monkeypatch.chdir(twice)
    embed, calls = Extractor.embed, []

    def interrupted(extractor, samples):
        calls.append(len(samples))
        if len(calls) == 6:  # in the third file
            raise KeyboardInterrupt
        return embed(extractor, samples)

    monkeypatch.setattr(Extractor, "embed", interrupted)
    failed = duoplda(*embedding(folder, "x.npz"), *given, *tables)
    assert failed.exit_code == 130
    assert "the same command with --resume" in failed.stderr
    assert [path.name for path in twice.iterdir()] == ["x.npz.resume"]
    with open("x.npz.resume", "ab") as file:
        file.write(b'{"file": ["s0/r4", ')  # a line that was being written
    for more, message in (
        ([*given[2:], "--resume"], "is of a run with other options"),
        (given, "holds what an interrupted run has embedded: go on with --resume, or begin again with --force"),
    ):
        refused = duoplda(*embedding(folder, "x.npz"), *more, *tables)
        assert refused.exit_code == 1
        assert message in refused.stderr
    said = done(*embedding(folder, "x.npz"), *given, *tables, "--resume").stderr
    assert "going on after 2 files" in said
    assert len(calls) == 6 + 8
    names = sorted(path.name for path in once.iterdir())
    assert sorted(path.name for path in twice.iterdir()) == names
    assert [(once / name).read_bytes() for name in names[:-1]] == [(twice / name).read_bytes() for name in names[:-1]]
    (ids, X), (again, Z) = (read_embeddings(at / "x.npz").load() for at in (once, twice))
    assert ids.tolist() == again.tolist()
    assert np.array_equal(X, Z)


def test_files_that_were_mended_are_embedded_alone(folder, tmp_path, monkeypatch):
    whole = (folder / "audio" / "s0" / "r0.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[:-5])
    given = [*embedding(folder, tmp_path / "x.npz"), "--audio", tmp_path / "cut.wav"]
    failed = duoplda(*given)
    assert failed.exit_code == 1
    assert "with --resume and --force" in failed.stderr
    assert len(read_embeddings(tmp_path / "x.npz").ids()) == 6
    (tmp_path / "cut.wav").write_bytes(whole)
    seen = []
    embed = Extractor.embed
    monkeypatch.setattr(Extractor, "embed", lambda *given: seen.append(1) or embed(*given))
    done(*given, "--resume", "--force")
    assert len(seen) == 1
    assert len(read_embeddings(tmp_path / "x.npz").ids()) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.wav", "x.npz"]


# -- extractors without metadata, regions


def test_metadata_that_a_file_lacks_can_be_said(folder, tmp_path):
    bare = write_extractor(tmp_path / "bare.onnx", {})
    given = ["embed", "--extractor", bare, "--audio", folder / "audio", "--out", tmp_path / "x.npz"]
    failed = duoplda(*given)
    assert failed.exit_code == 1
    assert "duoplda embed --metadata" in failed.stderr
    assert "k2-fsa/sherpa-onnx" in failed.stderr
    done(*given, "--metadata", ",".join(f"{name}={text}" for name, text in METADATA.items()))
    done(*embedding(folder, tmp_path / "y.npz"))
    (ids, X), (_, Y) = (read_embeddings(tmp_path / name).load() for name in ("x.npz", "y.npz"))
    assert np.array_equal(X, Y)
    assert len(ids) == 6
    written, whole = (read_extractor(tmp_path / name) for name in ("x.npz", "y.npz"))
    assert written.sha256 == whole.sha256  # the tiny file ends in its metadata: the bytes are the same
    assert written.name == "bare.onnx"


def test_regions_are_segments_and_windows_are_inside_them(folder, tmp_path):
    """RTTM and .lab: the parts that they name, once where two people speak at once."""
    line = "SPEAKER s0/r0 1 {} {} <NA> <NA> {} <NA> <NA>\n"
    turns = [(0.25, 1.0, "a"), (0.25, 1.0, "b"), (1.0, 1.75, "a")]
    (tmp_path / "x.rttm").write_text("".join(line.format(*turn) for turn in turns))
    done(*embedding(folder, tmp_path / "x.ark"), "--segments", tmp_path / "x.rttm")
    ids, X = read_embeddings(tmp_path / "x.ark").load()
    assert ids.tolist() == ["s0/r0-0000025-0000125", "s0/r0-0000100-0000275"]
    samples, _ = read_audio(folder / "audio" / "s0" / "r0.wav", RATE)
    network = Extractor(folder / "tiny.onnx")
    assert np.array_equal(X, [network.embed(samples[4000:20000]), network.embed(samples[16000:44000])])
    outputs = ["--segments-out", tmp_path / "segments", "--labels-out", tmp_path / "labels.csv"]
    windows = ["--windows", 1.5, "--hop", 0.5, *outputs]
    done(*embedding(folder, tmp_path / "y.ark"), "--segments", tmp_path / "x.rttm", *windows)
    segments = read_segments(tmp_path / "segments")
    assert segments.start.tolist() == [0.25, 0.75, 1.25]  # the turns overlap: they are one region
    assert segments.end.tolist() == [1.75, 2.25, 2.75]
    assert [line.split(",")[1] for line in (tmp_path / "labels.csv").read_text().split()[1:]] == ["s0/r0"] * 3


def test_speakers_are_taken_from_the_names_of_files(tmp_path):
    for i, name in enumerate(("ann-1", "ann-call_2", "bob_1")):
        soundfile.write(tmp_path / f"{name}.wav", voice(i, 1.0), RATE)
    outputs = ["--out", tmp_path / "x.npz", "--labels-out", tmp_path / "labels.csv"]
    given = ["embed", "--extractor", write_extractor(tmp_path / "tiny.onnx"), "--audio", tmp_path, *outputs]
    done(*given, "--speakers", "names")
    assert read_labels(tmp_path / "labels.csv").speaker.tolist() == ["ann", "ann", "bob"]
    soundfile.write(tmp_path / "cem.wav", voice(4, 1.0), RATE)
    failed = duoplda(*given, "--speakers", "names", "--force")
    assert failed.exit_code == 3
    assert "1 recordings have no speaker in names: cem" in failed.stderr


# -- the demonstration on audio


def test_demo_of_a_folder_of_wav_files(folder, tmp_path, monkeypatch):
    """One command from wav files to a report, and two models that differ in what they take copies for."""
    monkeypatch.chdir(tmp_path)
    for i in range(8):
        at = tmp_path / "audio" / f"s{i}"
        at.mkdir(parents=True)
        for k in range(2):
            soundfile.write(at / f"{k}.wav", voice(i, 1.0) + 0.02 * voice(100 + 2 * i + k, 1.0), RATE)
    printed = done("demo", "--audio", "audio", "--extractor", folder / "tiny.onnx", "--out", "demo").stdout.splitlines()
    assert printed[-1] == "demo/report.html"
    commands = [line.split()[1] for line in printed if line.startswith("duoplda ")]
    assert commands == ["embed", "split", "train", "train", "score", "score", "score", "report"]
    labels = read_labels(tmp_path / "demo" / "labels.csv")
    assert len(labels.ids) == 80
    assert sorted({*labels.session.tolist()}) == [f"s{i}/{k}" for i in range(8) for k in range(2)]
    names = ("duoplda", "simplified")
    ours, simplified = (Backend.load(tmp_path / "demo" / f"{name}.safetensors").plda_ for name in names)
    assert ours.model_.U.shape[1] > 0 == simplified.model_.U.shape[1]
    assert len(read_trials(tmp_path / "demo" / "eval_trials")) == 4 * 20
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000


def test_the_page_goes_from_wav_files_to_names(folder, tmp_path, monkeypatch):
    """The commands of docs/audio.md, one after another; its first one, the demonstration, has a test of its own."""
    page = (Path(__file__).parents[1] / "docs" / "audio.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in re.findall("^duoplda .*$", page, re.MULTILINE)]
    assert commands.pop(0)[0] == "demo"
    assert [words[0] for words in commands] == [
        "embed", "embed", "embed", "train", "score", "voices", "identify", "diarize", "embed", "diarize"
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    shutil.copy(folder / "tiny.onnx", "campplus.onnx")
    write_extractor(tmp_path / "bare.onnx", {})
    for i in range(10):
        at = tmp_path / "recordings" / f"s{i}"
        at.mkdir(parents=True)
        for k in range(2):
            soundfile.write(at / f"r{k}.wav", voice(i, 1.0) + 0.02 * voice(100 + 2 * i + k, 1.0), RATE)
    shutil.copy("recordings/s3/r1.wav", "call.wav")
    soundfile.write("meeting.wav", np.concatenate([voice(0), np.zeros(RATE), voice(1)]), RATE)
    (tmp_path / "trials").write_text("s0/r0 s0/r1\ns0/r0 s1/r1\n")
    (tmp_path / "enroll").write_text("".join(f"speaker-{i} s{i}/r0\n" for i in range(10)))
    for words in commands:
        force = [] if words[0] in ("voices", "identify") else ["--force"]
        said = done(*[word.replace("=192", "=24") for word in words], *force).output
        if words[0] == "identify":
            assert "speaker-3" in said
    scores = [float(score) for *_, score in lines(tmp_path / "scores.txt")]
    assert scores[0] > scores[1]
    assert len(read_rttm(tmp_path / "meeting.rttm")) > 0


def test_options_of_the_demonstration(folder, tmp_path):
    for wrong, message in (
        (["--audio", folder / "audio"], "--audio and --extractor go together"),
        (["--extractor", folder / "tiny.onnx"], "--audio and --extractor go together"),
        (["--speakers", "names"], "--speakers is for --audio"),
    ):
        failed = duoplda("demo", "--out", tmp_path / "demo", *wrong)
        assert failed.exit_code == 2
        assert message in failed.stderr
    assert not [*tmp_path.iterdir()]


# -- audio in place of embeddings


@pytest.fixture(scope="module")
def known(folder, tmp_path_factory):
    """A model, embeddings of the audio, and lists."""
    at = tmp_path_factory.mktemp("known")
    V, U = np.linalg.qr(np.random.default_rng(0).normal(size=(24, 24)))[0].reshape(24, 2, 12).swapaxes(0, 1)
    Backend.from_plda(PLDA.from_parameters(np.zeros(24), V, U, np.eye(24))).save(at / "model")
    done(*embedding(folder, at / "x.npz"))
    (at / "enroll").write_text("ann s0/r0\nbob s1/r1\n")
    (at / "trials").write_text("ann s0/r2\nbob s0/r2\nann s1/r3\n")
    (at / "pairs").write_text("s0/r0 s0/r2\ns1/r1 s0/r4\n")
    return at


@pytest.mark.parametrize(
    "command",
    [
        "enroll --model model --enroll enroll --out OUT",
        "score --model model --enroll enroll --trials trials --out OUT",
        "score --model model --trials pairs --out OUT",
        "score --model model --enroll enroll --top 1 --out OUT",
        "identify --model model --registry voices.db --json",
        "voices add ann --model model --registry OUT --json",
        "voices add --enroll enroll --model model --registry OUT --json",
    ],
)
def test_audio_in_place_of_embeddings(folder, known, tmp_path, monkeypatch, command):
    """The result is that of embeddings which were made before."""
    monkeypatch.chdir(known)
    if "voices.db" in command and not (known / "voices.db").exists():
        done("voices", "add", "--enroll", "enroll", "--model", "model", "--registry", "voices.db",
             "--embeddings", "x.npz")  # fmt: skip
    results = []
    for name, given in (
        ("before", ["--embeddings", "x.npz"]),
        ("audio", ["--audio", folder / "audio", "--extractor", folder / "tiny.onnx"]),
    ):
        words = [str(tmp_path / name) if word == "OUT" else word for word in command.split()]
        shown = done(*words, *given).stdout.replace(str(tmp_path / name), "OUT")
        content = (tmp_path / name).read_bytes() if "OUT" in command and "voices" not in command else b""
        results.append((re.sub(r'"\d{4}-\d\d-\d\d.*?"', "a date", shown), content))
    assert results[0] == results[1]


@pytest.mark.parametrize("command", ["enroll --enroll enroll --out OUT", "score --trials trials --out OUT",
                                     "identify --registry no.db", "voices add ann --registry no.db",
                                     "diarize --out OUT"])  # fmt: skip
def test_options_of_audio_that_do_not_go_together(folder, known, tmp_path, monkeypatch, command):
    monkeypatch.chdir(known)
    words = [str(tmp_path / "out") if word == "OUT" else word for word in command.split()]
    audio = ["--audio", folder / "audio"]
    extractor = ["--extractor", folder / "tiny.onnx"]
    for wrong in (
        [],
        audio,
        extractor,
        [*audio, *extractor, "--embeddings", "x.npz"],
        [*audio, *extractor, "--ids", "rows"],
    ):
        failed = duoplda(*words, "--model", "model", *wrong)
        assert failed.exit_code == 2, (wrong, failed.output)
        assert "Traceback" not in failed.output
    assert not [*tmp_path.iterdir()]


def test_broken_and_silent_audio_of_other_commands(folder, known, tmp_path, monkeypatch):
    """A file that cannot be read ends a command, unless it is to go on; a silent one is nobody's voice."""
    monkeypatch.chdir(known)
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    (tmp_path / "cut.wav").write_bytes(b"RIFF")
    audio = ["--audio", folder / "audio", "--extractor", folder / "tiny.onnx"]
    base = ["score", "--model", "model", "--enroll", "enroll", "--trials", "trials", "--out", tmp_path / "s.txt"]
    failed = duoplda(*base, *audio, "--audio", tmp_path / "cut.wav")
    assert failed.exit_code == 1
    assert "1 of 7 files gave no embedding: " in failed.stderr
    said = done(*base, *audio, "--audio", tmp_path / "cut.wav", "--allow-missing").stderr
    assert "left out: " in said
    (tmp_path / "trials").write_text("ann silent\n")
    base[base.index("trials")] = tmp_path / "trials"
    failed = duoplda(*base, *audio, "--audio", tmp_path / "silent.wav", "--force")
    assert failed.exit_code == 3
    assert "silent.wav has no speech in its 1.0 s, and no embedding" in failed.stderr
    failed = duoplda("identify", "--model", "model", "--registry", "no.db", "--audio", tmp_path / "silent.wav",
                     "--extractor", folder / "tiny.onnx")  # fmt: skip
    assert failed.exit_code == 1
    assert "none of the 1 files has speech" in failed.stderr


def test_a_model_knows_what_its_training_recordings_were_like(folder, tmp_path, monkeypatch):
    """Audio of another quality gives a warning that says by which measures; audio like that of the training none."""
    monkeypatch.chdir(tmp_path)
    tables = ["--labels-out", "labels.csv", "--quality-out", "q.tsv"]
    done(*embedding(folder, "x.npz", "--copies", "clean,noise", "--speakers", "folders", *tables))
    train = ["train", "--embeddings", "x.npz", "--labels", "labels.csv", "--lda", "1", "--shrinkage", "0.5"]
    done(*train, "--quality", "q.tsv", "--out", "model")
    done(*train, "--out", "without")
    (tmp_path / "narrow").mkdir()
    for i in range(3):
        telephone = soxr.resample(soxr.resample(voice(i), RATE, 6000), 6000, RATE)
        soundfile.write(tmp_path / "narrow" / f"r{i}.wav", telephone, RATE)
    (tmp_path / "narrow.txt").write_text("r0 r1\n")
    (tmp_path / "same.txt").write_text("s0/r0 s1/r1\n")
    score = ["score", "--out", "s.txt", "--force", "--extractor", folder / "tiny.onnx"]
    narrow = [*score, "--trials", "narrow.txt", "--audio", tmp_path / "narrow"]
    said = done(*narrow, "--model", "model").stderr
    assert re.search(r"by their quality \(.*bandwidth: median 3\d{3}, 3 of 3 outside of \d{4} to 8000", said)
    for quiet in (
        [*narrow, "--model", "model", "--no-domain-check"],
        [*narrow, "--model", "without"],
        [*score, "--model", "model", "--trials", "same.txt", "--audio", folder / "audio"],
    ):
        assert "by their quality" not in done(*quiet).stderr
    shown = done("info", "model", "--quality", "q.tsv").stdout
    assert re.search(r"^quality: bandwidth: median \d{4}, 0 of 12 outside of \d{4} to 8000$", shown, re.MULTILINE)
    failed = duoplda("info", "without", "--quality", "q.tsv")
    assert failed.exit_code == 1
    assert "was trained without --quality" in failed.stderr
    (tmp_path / "other.tsv").write_text("id\tsnr\nnobody\t3\n")
    failed = duoplda(*train, "--quality", "other.tsv", "--out", "third")
    assert failed.exit_code == 1
    assert "has no row for any recording of the training" in failed.stderr
    assert not (tmp_path / "third").exists()


def test_quality_is_what_calibration_takes(folder, tmp_path):
    """The table of `embed --quality-out` goes into `calibrate --quality` as it is."""
    (tmp_path / "audio").mkdir()
    ids = [f"s{i // 2}-r{i % 2}" for i in range(12)]
    for i, name in enumerate(ids):
        noise = np.random.default_rng(i).normal(scale=0.003 * i, size=RATE)
        soundfile.write(tmp_path / "audio" / f"{name}.wav", voice(i, 1.0) + noise, RATE)
    given = ["--extractor", folder / "tiny.onnx", "--audio", tmp_path / "audio", "--out", tmp_path / "x.npz"]
    done("embed", *given, "--quality-out", tmp_path / "quality.tsv")
    pairs = [(a, b, a[:2] == b[:2]) for a in ids for b in ids if a < b]
    kinds = {True: "target", False: "nontarget"}
    (tmp_path / "trials").write_text("".join(f"{a} {b} {kinds[t]}\n" for a, b, t in pairs))
    rng = np.random.default_rng(0)
    (tmp_path / "scores").write_text("".join(f"{a} {b} {2 * t + rng.normal():.6f}\n" for a, b, t in pairs))
    given = ["--scores", tmp_path / "scores", "--trials", tmp_path / "trials", "--quality", tmp_path / "quality.tsv"]
    said = done("calibrate", *given, "--out", tmp_path / "calibration.safetensors").output
    assert all(name in said for name in ("snr", "bandwidth", "speech"))
