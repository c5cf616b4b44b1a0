"""What the tests of audio share: a tiny extractor of embeddings as ONNX, and speech-like sounds drawn from a seed."""

from pathlib import Path

import numpy as np
import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"
CAMPPLUS = SHARED / "audio" / "campplus.onnx"
needs_shared = pytest.mark.skipif(not CAMPPLUS.exists(), reason="the shared audio is not here")
METADATA = {"framework": "wespeaker", "language": "English", "sample_rate": "16000", "output_dim": "24"}
METADATA |= {"normalize_samples": "1", "feature_normalize_type": "global-mean"}

# -- ONNX is Protocol Buffers: fields with a number and a type, written here by hand, as the library `onnx` is large.


def field(number, value):
    """A field of a message: an integer, or bytes (a text, a message in the message)."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def node(kind, inputs, output, attributes=b""):
    names = b"".join(field(1, name) for name in inputs)
    return field(1, names + field(2, output) + field(4, kind) + attributes)


def integers(name, values):
    return field(5, field(1, name) + b"".join(field(8, v) for v in values) + field(20, 7))


def integer(name, value):
    return field(5, field(1, name) + field(3, value) + field(20, 2))


def tensor(name, array):
    """An initialiser, of float32 or int64."""
    kind = {"float32": 1, "int64": 7}[array.dtype.name]
    dims = b"".join(field(1, n) for n in array.shape)
    return field(5, dims + field(2, kind) + field(8, name) + field(9, array.tobytes()))


def value(number, name, shape, kind=1):
    """An input (11) or output (12) of the graph; a text among the sizes is a size that may change."""
    dims = b"".join(field(1, field(2 if isinstance(n, str) else 1, n)) for n in shape)
    return field(number, field(1, name) + field(2, field(1, field(1, kind) + field(2, dims))))


def write_onnx(path, graph, metadata):
    texts = b"".join(field(14, field(1, name) + field(2, text)) for name, text in metadata.items())
    path.write_bytes(field(1, 8) + field(7, graph + field(2, "tiny")) + field(8, field(1, "") + field(2, 13)) + texts)
    return path


def write_extractor(path, metadata=METADATA, seed=0):
    """An extractor of 24 dimensions: how much each of 80 bands varies over time, through a matrix drawn from a seed."""
    weights = np.random.default_rng(seed).normal(size=(80, 24)).astype("<f4")
    nodes = node("Mul", ["x", "x"], "squares") + node(
        "ReduceMean", ["squares"], "power", integers("axes", [1]) + integer("keepdims", 0)
    )
    nodes += node("MatMul", ["power", "weights"], "e")
    graph = nodes + tensor("weights", weights) + value(11, "x", ["b", "t", 80]) + value(12, "e", ["b", 24])
    return write_onnx(path, graph, metadata)


def write_detector(path):
    """A network with the inputs and outputs of Silero's (its fifth version): the probability is the mean power."""
    nodes = node("Mul", ["input", "input"], "squares")
    nodes += node("ReduceMean", ["squares"], "output", integers("axes", [1]) + integer("keepdims", 1))
    nodes += node("Identity", ["state"], "stateN")
    graph = nodes + value(11, "input", ["b", "n"]) + value(11, "state", [2, "b", 128]) + value(11, "sr", [1], 7)
    graph += value(12, "output", ["b", 1]) + value(12, "stateN", [2, "b", 128])
    return write_onnx(path, graph, {})


# -- sounds

RATE = 16_000


def voice(seed, seconds=3.0):
    """Something with the rhythm of speech: a buzz through resonances, in syllables with short pauses between them."""
    rng = np.random.default_rng(seed)
    n = round(seconds * RATE)
    t = np.arange(n) / RATE
    pitch = rng.uniform(90, 220) * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * t))
    buzz = ((np.cumsum(pitch) / RATE) % 1 < 0.1) + 0.05 * rng.normal(size=n)
    spectrum = np.fft.rfft(buzz)
    frequency = np.fft.rfftfreq(n, 1 / RATE)
    formants = rng.uniform([300, 900, 2200, 5000], [800, 1800, 3000, 7500])
    shape = sum(1 / (1 + ((frequency - f) / 150) ** 2) for f in formants)
    sound = np.fft.irfft(spectrum * shape, n) * (0.02 + np.abs(np.sin(2 * np.pi * 2 * t)))
    return (0.1 * sound / sound.std()).clip(-0.9, 0.9).astype(np.float32)


def wav_bytes(sound, coding="PCM_16"):
    import io

    import soundfile

    store = io.BytesIO()
    soundfile.write(store, sound, RATE, format="WAV", subtype=coding)
    return store.getvalue()


def by_hand(model):
    """A function that gives embeddings as sherpa-onnx's own examples compute them."""
    import sherpa_onnx

    extractor = sherpa_onnx.SpeakerEmbeddingExtractor(sherpa_onnx.SpeakerEmbeddingExtractorConfig(model=str(model)))

    def embed(samples):
        stream = extractor.create_stream()
        stream.accept_waveform(sample_rate=RATE, waveform=samples)
        stream.input_finished()
        return np.array(extractor.compute(stream), np.float32)

    return embed
