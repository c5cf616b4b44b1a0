"""Audio in: reading any format and rate, extractors, speech, quality, copies, and embeddings of all of these."""

import io
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio_cases import (
    CAMPPLUS,
    METADATA,
    RATE,
    SHARED,
    by_hand,
    field,
    needs_shared,
    voice,
    wav_bytes,
    write_detector,
    write_extractor,
)
from duoplda.audio import (
    KINDS,
    AudioFile,
    Channels,
    EnergyDetector,
    Extractor,
    Pieces,
    SileroDetector,
    audio_blocks,
    audio_spans,
    embed_audio,
    list_audio,
    measure_quality,
    read_audio,
    read_metadata,
)
from duoplda.diarization import Segments
from duoplda.errors import DuopldaError
from duoplda.io import Coded

soundfile = pytest.importorskip("soundfile", reason="needs the extra audio")
soxr = pytest.importorskip("soxr", reason="needs the extra audio")
sherpa_onnx = pytest.importorskip("sherpa_onnx", reason="needs the extra audio")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return Extractor(write_extractor(tmp_path_factory.mktemp("extractor") / "tiny.onnx"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Voices of two speakers."""
    at = tmp_path_factory.mktemp("audio")
    for i in range(4):
        (at / f"s{i % 2}").mkdir(exist_ok=True)
        soundfile.write(at / f"s{i % 2}" / f"r{i}.flac", voice(i), RATE)
    return at


# -- reading

FORMATS = [
    ("x.wav", "PCM_16", 2 / 32_768),
    ("x.wav", "PCM_24", 1e-6),
    ("x.wav", "FLOAT", 1e-7),
    ("x.wav", "ULAW", 0.02),
    ("x.wav", "ALAW", 0.02),
    ("x.flac", "PCM_24", 1e-6),
    ("x.ogg", "VORBIS", 0.2),
    ("x.mp3", "MPEG_LAYER_III", 0.2),
    ("x.aiff", "PCM_16", 2 / 32_768),
    ("x.w64", "PCM_16", 2 / 32_768),
    ("x.sph", "PCM_16", 2 / 32_768),
]


@pytest.mark.parametrize(("name", "coding", "tolerance"), FORMATS)
@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_formats_and_rates(tmp_path, name, coding, tolerance, rate):
    sound = voice(0)
    wide = soxr.resample(sound, RATE, rate)
    kind = {"format": "NIST"} if name.endswith("sph") else {}
    soundfile.write(tmp_path / name, np.stack([wide, -0.5 * wide], axis=1), rate, subtype=coding, **kind)
    samples, found = read_audio(tmp_path / name, RATE, channel=1)
    assert (found, samples.dtype) == (RATE, np.float32)
    assert abs(len(samples) - len(sound)) < 3 + 0.1 * RATE * name.endswith("mp3")  # MP3 has whole frames
    expected = soxr.resample(wide, rate, RATE)
    n = min(len(samples), len(expected))
    assert np.abs(samples[:n] - expected[:n]).max() <= tolerance
    mean, _ = read_audio(tmp_path / name, RATE)
    assert np.abs(mean[:n] - 0.25 * expected[:n]).max() <= tolerance
    second, _ = read_audio(tmp_path / name, RATE, channel=2)
    assert np.abs(second[:n] + 0.5 * expected[:n]).max() <= tolerance
    assert read_audio(tmp_path / name)[1] == rate
    with pytest.raises(DuopldaError, match="has 2 channels, and no channel 3"):
        read_audio(tmp_path / name, channel=3)


def test_blocks_do_not_show(tmp_path):
    """A file of several blocks is what soundfile and soxr make of it at once, to the last bit."""
    sound = np.concatenate([voice(i) for i in range(8)])
    for rate in (8_000, 44_100):
        soundfile.write(tmp_path / "x.wav", np.stack([sound, sound[::-1]], axis=1), rate, subtype="FLOAT")
        blocks = [*audio_blocks(tmp_path / "x.wav", RATE)]
        assert len(blocks) > 1
        whole = soundfile.read(tmp_path / "x.wav", dtype="float32")[0].mean(axis=1, dtype=np.float32)
        assert np.array_equal(np.concatenate(blocks), soxr.resample(whole, rate, RATE))


@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=6),
)
def test_spans_are_slices(sizes, spans):
    sound = np.arange(sum(sizes), dtype=np.float32)
    blocks = np.split(sound, np.cumsum(sizes)[:-1]) if sizes else []
    wanted = sorted((start, start + length) for start, length in spans)
    for (start, stop), part in zip(wanted, audio_spans(blocks, wanted), strict=True):
        assert np.array_equal(part, sound[start:stop])


# -- hostile files


def hostile(at):
    """Files that are no audio, or not what they say, and what the error says."""
    sound = (0.1 * voice(0)[:4000]).astype(np.float32)
    wav = wav_bytes(sound)
    data = wav.index(b"data") + 4
    nan = sound.copy()
    nan[1600] = np.nan
    flac = io.BytesIO()
    soundfile.write(flac, sound, RATE, format="FLAC")
    rate = bytearray(wav)
    rate[24:28] = struct.pack("<I", 3)
    for name, content, message in (
        ("empty.wav", b"", "is empty"),
        ("text.wav", b"hello, this is a text\n" * 40, "cannot be read as audio"),
        ("cut.wav", wav[:-999], "it is cut short"),
        ("promise.wav", wav[:data] + struct.pack("<I", 0x7FFE0000) + wav[data + 4 :], "2,147,352,576; it is cut short"),
        ("none.wav", wav_bytes(sound[:0]), "holds no samples"),
        ("nan.wav", wav_bytes(nan, "FLOAT"), "at 0.100 s: has samples that are NaN"),
        ("cut.flac", flac.getvalue()[:-999], "cut short|cannot be read as audio"),
        ("slow.wav", bytes(rate), "has 3 samples a second"),
        ("head.wav", wav[:20], "cannot be read as audio"),
        ("raw.raw", wav[data + 4 :], "cannot be read as audio"),
        ("\x1b[31mred.wav", b"", r"\\x1b\[31mred.wav: is empty"),
    ):
        (at / name).write_bytes(content)
        yield at / name, message
    (at / "folder.wav").mkdir()
    yield at / "folder.wav", "is a folder"
    yield at / "absent.wav", "no such file"


def test_hostile_files_are_clear_errors(tmp_path):
    for path, message in hostile(tmp_path):
        with pytest.raises(DuopldaError, match=message) as error:
            read_audio(path, RATE)
        assert "\x1b" not in str(error.value)
        assert path.suffix in str(error.value)


def test_a_header_of_a_pipe_says_nothing_of_the_length(tmp_path):
    """Programs that write WAV into a pipe cannot know it, and declare 4 GB."""
    sound = voice(0)[:4000]
    wav = bytearray(wav_bytes(sound))
    at = wav.index(b"data") + 4
    wav[at : at + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "x.wav").write_bytes(wav)
    assert len(read_audio(tmp_path / "x.wav")[0]) == len(sound)


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 2))
def test_mutated_headers_are_read_or_refused(tmp_path_factory, places, number):
    """Whatever bytes a header has: samples come out, or an error of one line."""
    at = tmp_path_factory.getbasetemp() / "mutated.wav"
    store = io.BytesIO()
    format_, coding = (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("AU", "ULAW"))[number]
    soundfile.write(store, voice(0)[:800], RATE, format=format_, subtype=coding)
    content = bytearray(store.getvalue())
    for place, byte in places:
        content[place] = byte
    at.write_bytes(content)
    n = None
    try:
        n = sum(len(block) for block in audio_blocks(at, RATE))
    except DuopldaError as error:
        message = str(error)
    assert "\n" not in message if n is None else 0 < n < 1_000_000


def test_lists_of_audio(folder, tmp_path):
    assert [file.id for file in list_audio(folder)] == ["s0/r0", "s0/r2", "s1/r1", "s1/r3"]
    assert list_audio(folder)[0].folder == "s0"
    (tmp_path / "wav.scp").write_text(f"a {folder}/s0/r0.flac\n\nb with space.wav\n")
    assert [file.path for file in list_audio(tmp_path / "wav.scp")] == [f"{folder}/s0/r0.flac", "with space.wav"]
    (tmp_path / "here.wav").touch()
    (tmp_path / "wav.scp").write_text("a here.wav\n")  # beside the list
    assert list_audio([tmp_path / "wav.scp"])[0].path == str(tmp_path / "here.wav")
    assert [file.id for file in list_audio([tmp_path / "here.wav", folder / "s0" / "r0.flac"])] == ["here", "r0"]
    for text, message in (
        ("a sox x.wav -t wav - |\n", "line 1: holds a command, and commands are never run"),
        ("a\n", "line 1: is not an id and a file"),
        ("a x\nb y\na z\n", "has the same id as x: 'a'"),
        ("", "is empty"),
        ("a \xff\n", "not UTF-8"),
    ):
        (tmp_path / "wav.scp").write_bytes(text.encode("latin-1"))
        with pytest.raises(DuopldaError, match=message):
            list_audio(tmp_path / "wav.scp")
    (tmp_path / "none").mkdir()
    with pytest.raises(DuopldaError, match="has no audio files"):
        list_audio(tmp_path / "none")


# -- extractors


def test_metadata(tiny, tmp_path):
    assert dict(tiny.metadata) == METADATA
    assert (tiny.dim, tiny.sample_rate, tiny.name) == (24, RATE, "tiny.onnx")
    same = Extractor(write_extractor(tmp_path / "same.onnx"))
    other = Extractor(write_extractor(tmp_path / "other.onnx", seed=1))
    assert tiny.sha256 == same.sha256 != other.sha256


WRONG = [({"framework": None}, "no metadata 'framework'"), ({"framework": "ours"}, "has the framework 'ours'")]
WRONG += [({name: None}, f"lacks the metadata {name}") for name in METADATA if not name.startswith(("fr", "fe"))]
WRONG += [({"framework": "nemo"}, "lacks the metadata feat_dim, window_size_ms, window_stride_ms")]
WRONG += [({"sample_rate": value}, "sample_rate is") for value in ("0", "-1", "abc", "9999999", "99999999999", "٣")]
WRONG += [({"language": ""}, "lacks the metadata language")]
NEMO = {"framework": "nemo", "feat_dim": "80", "window_size_ms": "25", "window_stride_ms": "10"}
WRONG += [(NEMO, "feature_normalize_type is 'global-mean'")]
WRONG += [({"feature_normalize_type": "per_feature"}, "feature_normalize_type is 'per_feature'")]
WRONG += [({"output_dim": "-3"}, "output_dim is '-3'"), ({"feature_normalize_type": "ours"}, "does not know")]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_metadata_that_end_the_process_of_sherpa_are_refused_before(tmp_path, change, message):
    metadata = {name: text for name, text in {**METADATA, **change}.items() if text is not None}
    with pytest.raises(DuopldaError, match=message) as error:
        Extractor(write_extractor(tmp_path / "x.onnx", metadata))
    assert "k2-fsa/sherpa-onnx" in str(error.value)


def test_a_network_without_the_outputs_of_its_framework_is_refused(tmp_path):
    path = write_extractor(tmp_path / "x.onnx", {**METADATA, **NEMO, "feature_normalize_type": "per_feature"})
    with pytest.raises(DuopldaError, match="has 1 inputs and 1 outputs, and nemo has 2 and 2"):
        Extractor(path)


def test_what_is_no_extractor(tmp_path):
    whole = write_extractor(tmp_path / "tiny.onnx").read_bytes()
    broken = whole.replace(b"ReduceMean", b"ReduceMoon")
    for content, message in (
        (b"", "is empty"),
        (b"garbage", "is not an ONNX file"),
        (whole[:-9], "is not an ONNX file, or is cut short"),
        (b"\xff" * 90, "is not an ONNX file"),
        (broken, "sherpa-onnx cannot load it"),
        (broken.replace(b"Moon", b"M\xd0on"), "sherpa-onnx cannot load it"),  # its message is no UTF-8
        (field(14, field(1, "a" * 9)[:-2]), "is not an ONNX file"),
    ):
        (tmp_path / "x.onnx").write_bytes(content)
        with pytest.raises(DuopldaError, match=message):
            Extractor(tmp_path / "x.onnx")
    with pytest.raises(DuopldaError, match="no such file"):
        Extractor(tmp_path / "absent.onnx")


@given(st.binary(max_size=60))
def test_any_bytes_have_metadata_or_an_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.onnx"
    path.write_bytes(content)
    with suppress(DuopldaError):
        assert isinstance(read_metadata(path), dict)


def test_an_embedding_is_that_of_sherpa_onnx(tiny):
    sound = voice(0)
    assert np.array_equal(tiny.embed(sound), by_hand(tiny.path)(sound))
    for samples, message in (
        (sound[:0], "is 0.000 s long"),
        (sound[:1], "is 0.000 s long"),
        (sound[:399], "is 0.025 s long"),
        (np.full(800, 1e30, np.float32), "NaN or infinity"),
    ):
        with pytest.raises(DuopldaError, match=message):
            tiny.embed(samples)


# -- speech


def test_speech_is_found_in_noise():
    rng = np.random.default_rng(0)
    sound = np.concatenate([np.zeros(RATE), voice(0), np.zeros(2 * RATE), voice(1), np.zeros(RATE)]).astype(np.float32)
    n = len(voice(0)) / RATE
    truth = np.array([[1, 1 + n], [3 + n, 3 + 2 * n]])
    for level in (0, 1e-4, 1e-2):
        noisy = (sound + rng.normal(scale=level, size=len(sound))).astype(np.float32)
        regions = EnergyDetector().regions(np.array_split(noisy, 7), RATE)
        assert np.abs(regions - truth).max() < 0.15
        assert np.array_equal(regions, EnergyDetector().regions([noisy], RATE))  # blocks do not show


def no_speech(rng):
    t = np.arange(10 * RATE) / RATE
    pink = np.fft.irfft(np.fft.rfft(rng.normal(size=len(t))) / np.sqrt(np.arange(len(t) // 2 + 1) + 1))
    yield from (np.zeros(len(t)), rng.normal(size=len(t)), pink / pink.std(), np.sin(2 * np.pi * 50 * t), t * 0 + 1)
    yield from (np.sin(2 * np.pi * 1000 * t), np.zeros(1), np.zeros(0))


def test_noise_hum_and_silence_are_no_speech():
    for i, sound in enumerate(no_speech(np.random.default_rng(0))):
        for level in (1e-6, 1e-3, 0.2):
            assert not len(EnergyDetector().regions([(level * sound).astype(np.float32)], RATE)), (i, level)
    assert not len(EnergyDetector().regions([1e-5 * voice(0)], RATE))  # far below what a microphone notices


def test_silero_is_run_by_sherpa(tmp_path):
    """A network with Silero's inputs, whose probability of speech is the power of the samples."""
    detector = SileroDetector(write_detector(tmp_path / "silero.onnx"))
    sound = np.zeros(6 * RATE, np.float32)
    sound[2 * RATE : 4 * RATE] = 0.9
    (region,) = detector.regions(np.array_split(sound, 5), RATE)
    assert np.abs(region - [2, 4]).max() < 0.3  # a region ends when a quarter of a second was silent
    assert detector.regions([sound[:RATE]], RATE).shape == (0, 2)
    with pytest.raises(DuopldaError, match="takes 16000 samples"):
        detector.regions([sound], 8000)
    with pytest.raises(DuopldaError, match="no such file"):
        SileroDetector(tmp_path / "absent.onnx").regions([sound], RATE)


# -- quality


def test_quality():
    sound = np.concatenate([np.zeros(RATE // 2), voice(0), np.zeros(RATE // 2)]).astype(np.float32)
    rng = np.random.default_rng(0)
    speech = EnergyDetector().regions([sound], RATE)
    power = np.mean(voice(0) ** 2)
    for snr in (20, 10, 5):
        noise = rng.normal(size=len(sound)) * np.sqrt(power / 10 ** (snr / 10))
        found = measure_quality((sound + noise).astype(np.float32), RATE, speech)
        assert abs(found.snr - snr) < 2
        assert abs(found.loudness - 10 * np.log10(power * (1 + 10 ** (-snr / 10)))) < 1
    found = measure_quality(sound, RATE)
    assert found.seconds == pytest.approx(len(sound) / RATE)
    assert abs(found.speech - len(voice(0)) / RATE) < 0.3
    assert found.silence == pytest.approx(1 - found.speech / found.seconds)
    assert found.clipping == 0
    assert found.bandwidth >= 7500
    loud = np.clip(30 * sound, -1, 1)
    assert measure_quality(loud, RATE).clipping == pytest.approx((np.abs(loud) == 1).mean(), rel=0.1)
    narrow = soxr.resample(soxr.resample(sound, RATE, 8000), 8000, RATE)
    assert 3500 <= measure_quality(narrow, RATE).bandwidth <= 4250
    empty = measure_quality(np.zeros(0, np.float32), RATE)
    assert (empty.seconds, empty.speech) == (0, 0)
    assert np.isnan([empty.snr, empty.bandwidth, empty.loudness, empty.clipping]).all()


# -- copies


def test_copies_depend_on_the_id_alone():
    sound, channels = voice(0), Channels()
    levels = []
    for kind in KINDS:
        copy = channels.copy("utt1", sound, RATE, kind)
        channels.copy("utt9", voice(1), RATE, kind)
        assert np.array_equal(copy, Channels().copy("utt1", sound, RATE, kind))
        assert copy.shape == sound.shape
        assert copy.dtype == np.float32
        assert np.isfinite(copy).all()
        assert np.abs(copy).max() <= 1
        level = 10 * np.log10(np.mean(copy**2) / np.mean(sound**2))
        assert -15.1 < level < 0.1
        if kind == "clean":
            assert copy is sound
            continue
        levels.append(level)
        likeness = np.corrcoef(np.abs(copy), np.abs(sound))[0, 1]  # of the envelopes: a codec may shift the phase
        assert 0.2 < likeness < 0.9999, kind
        assert not np.array_equal(copy, channels.copy("utt2", sound, RATE, kind))
        assert not np.array_equal(copy, Channels(seed=1).copy("utt1", sound, RATE, kind))
    assert np.ptp(levels) > 1
    with pytest.raises(DuopldaError, match="clean, noise, telephone, reverb, codec, not 'mud'"):
        channels.copy("a", sound, RATE, "mud")


def test_a_copy_through_a_channel_is_what_it_says(tmp_path):
    sound = np.concatenate([voice(0), np.zeros(RATE)]).astype(np.float32)
    names = [f"utt{i}" for i in range(4)]
    channels = Channels()
    for name in names:
        assert measure_quality(channels.copy(name, sound, RATE, "telephone"), RATE).bandwidth <= 4250
        noisy = measure_quality(channels.copy(name, sound, RATE, "noise"), RATE)
        assert 3 < noisy.snr < 20 < measure_quality(sound, RATE).snr
        late = channels.copy(name, sound, RATE, "reverb")[len(voice(0)) + 800 : len(voice(0)) + 2400]
        assert np.mean(late**2) > 1e-6 * np.mean(sound**2)  # where the recording itself is silent
    for rate in (8_000, 44_100):
        other = soxr.resample(sound, RATE, rate)
        assert all(channels.copy("a", other, rate, kind).shape == other.shape for kind in KINDS)
    silence = np.zeros(RATE, np.float32)
    assert all(np.array_equal(channels.copy("a", silence, RATE, kind), silence) for kind in KINDS)
    for n in (1, 2, 400):
        assert all(len(channels.copy("a", sound[:n] + 0.1, RATE, kind)) == n for kind in KINDS)


def test_noises_of_the_user(tmp_path):
    tone = (0.1 * np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)).astype(np.float32)
    soundfile.write(tmp_path / "tone.wav", tone, 8000)
    sound = voice(0)
    copy = Channels(tmp_path).copy("utt1", sound, RATE, "noise")
    spectrum = np.abs(np.fft.rfft(copy)) / np.abs(np.fft.rfft(sound)).mean()
    assert abs(np.fft.rfftfreq(len(copy), 1 / RATE)[spectrum.argmax()] - 1000) < 2


# -- embeddings of files


def embed_all(*arguments, **options):
    return [*embed_audio(*arguments, **options)]


def test_embeddings_of_files_are_those_by_hand_for_any_number_of_threads(tiny, folder):
    files = list_audio(folder)
    for threads in (1, 3):
        from threadpoolctl import threadpool_limits

        with threadpool_limits(threads):
            results = embed_all(tiny, files)
        assert [one.ids for one in results] == [(file.id,) for file in files]
        for one in results:
            samples = soundfile.read(one.file.path, dtype="float32")[0]
            assert np.array_equal(one.X[0], by_hand(tiny.path)(samples))
            assert (one.kinds, one.pieces, one.notes, one.problems) == (("clean",), one.ids, (), ())


def test_copies_have_an_embedding_each(tiny, folder):
    (file, *_) = list_audio(folder)
    (one,) = embed_all(tiny, [file], Pieces(kinds=("clean", "noise"), quality=True))
    assert one.ids == (file.id, f"{file.id}-noise")
    assert one.pieces == (file.id, file.id)
    samples = read_audio(file.path)[0]
    copy = Channels().copy(file.id, samples, RATE, "noise")
    assert np.array_equal(one.X, [tiny.embed(samples), tiny.embed(copy)])
    assert one.qualities[one.ids[1]] == measure_quality(copy, RATE)


def test_segments_and_windows(tiny, tmp_path):
    sound = np.concatenate([np.zeros(RATE), voice(0), np.zeros(RATE), voice(1)]).astype(np.float32)
    soundfile.write(tmp_path / "f.wav", sound, RATE, subtype="FLOAT")
    file = AudioFile("f", str(tmp_path / "f.wav"))
    times = np.array([1.5, 0.0, 1.0, 90.0]), np.array([2.5, 0.5, 2.0, 91.0])
    segments = {"f": Segments(np.array(["b", "silent", "a", "beyond"]), Coded.of(["f"] * 4), *times)}
    (one,) = embed_all(tiny, [file], Pieces(segments=segments))
    assert one.ids == ("a", "b")
    assert np.array_equal(one.X[1], tiny.embed(sound[RATE * 3 // 2 : RATE * 5 // 2]))
    assert [note.rpartition(": ")[2].split()[0] for note in one.notes] == ["silent", "beyond"]
    (one,) = embed_all(tiny, [file], Pieces(windows=1.5, hop=0.25))
    assert one.ids[0] == "f-00000"
    assert len(one.speech) == 2
    for (start, end), x in zip(one.spans, one.X, strict=True):
        assert np.array_equal(x, tiny.embed(sound[round(start * RATE) : round(end * RATE)]))
        assert any(low - 1e-6 <= start and end <= high + 1e-6 for low, high in one.speech)
        assert end - start == pytest.approx(1.5)
    covered = [min(s for s, _ in one.spans), max(e for _, e in one.spans)]
    assert covered == pytest.approx([one.speech[0, 0], one.speech[-1, 1]], abs=2e-3)


def test_long_recordings_are_embedded_from_the_first_speech_on(tiny, tmp_path):
    sound = np.concatenate([np.zeros(3 * RATE), voice(0), voice(1)]).astype(np.float32)
    soundfile.write(tmp_path / "f.wav", sound, RATE, subtype="FLOAT")
    (one,) = embed_all(tiny, [AudioFile("f", str(tmp_path / "f.wav"))], Pieces(longest=2.0))
    ((start, end),) = one.spans
    assert 2.8 < start < 3.1
    assert end - start == pytest.approx(2)
    assert "only the first 2 s with speech" in one.notes[0]


def test_what_cannot_be_embedded_is_named_and_the_rest_goes_on(tiny, folder, tmp_path):
    broken = [AudioFile(f"x{i}", str(path)) for i, (path, _) in enumerate(hostile(tmp_path))]
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(tmp_path / "one.wav", np.ones(1), RATE)
    files = [*broken, AudioFile("silent", str(tmp_path / "silent.wav")), AudioFile("one", str(tmp_path / "one.wav"))]
    results = embed_all(tiny, [*files, *list_audio(folder)], Pieces(quality=True))
    for one in results[: len(broken)]:
        assert one.ids == ()
        assert len(one.problems) == 1
        assert one.problems[0].count(one.file.path.split("/")[-1].strip("\x1b")) == 1  # its name
    for one in results[len(broken) : -4]:
        assert (one.ids, one.problems) == ((), ())
        assert "has no speech" in one.notes[0]
        assert one.qualities[one.file.id].speech == 0
    assert all(len(one.ids) == 1 for one in results[-4:])


def test_hours_of_silence_take_little_memory(tiny, tmp_path):
    import tracemalloc

    with soundfile.SoundFile(tmp_path / "x.flac", "w", 8000, 1) as out:
        for _ in range(20):
            out.write(np.zeros(60 * 8000, np.float32))
    tracemalloc.start()
    (one,) = embed_all(tiny, [AudioFile("x", str(tmp_path / "x.flac"))])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "has no speech in its 1200.0 s" in one.notes[0]
    assert peak < 60e6  # its samples alone are 77 MB


@pytest.mark.parametrize("wrong", [{"windows": 0.1}, {"hop": 0.0}, {"longest": float("nan")}])
def test_wrong_pieces(wrong):
    with pytest.raises(DuopldaError, match="is too short"):
        Pieces(**wrong)


# -- a published extractor


@needs_shared
def test_campplus_gives_what_sherpa_onnx_gives(tmp_path):
    extractor, hand = Extractor(CAMPPLUS), by_hand(CAMPPLUS)
    files = list_audio(SHARED / "audio")[::28]
    for one in embed_audio(extractor, files):
        samples, rate = soundfile.read(one.file.path, dtype="float32")
        assert rate == RATE
        assert np.array_equal(one.X[0], hand(samples))
    assert extractor.dim == 192


@needs_shared
def test_speech_of_conversations_is_found():
    """In recordings with truth: of the time of utterances, which have pauses, and of the time between them."""
    at = SHARED / "diarization" / "conversations"
    truth = [line.split() for line in (at / "speech.lab").read_text().splitlines()]
    for name in ("pub0_so3", "pub5_cv3"):
        regions = EnergyDetector().regions(audio_blocks(at / f"{name}.flac", RATE), RATE)
        n = 100 * 600
        found, spoken = np.zeros(n, bool), np.zeros(n, bool)
        for start, end in regions:
            found[round(100 * start) : round(100 * end)] = True
        for file, start, end in truth:
            if file == name:
                spoken[round(100 * float(start)) : round(100 * float(end))] = True
        assert (found & spoken).sum() > 0.85 * spoken.sum()
        assert (found & ~spoken).sum() < 0.05 * spoken.sum()
