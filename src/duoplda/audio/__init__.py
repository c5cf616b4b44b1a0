"""From audio to embeddings: extractors in ONNX files, speech detection, copies through simulated channels, and quality.

It needs the libraries of the extra `audio`: `pip install duoplda[audio]`. The other rooms do not need this one.
"""

from duoplda.audio.channels import KINDS, Channels
from duoplda.audio.embedding import Embedded, Pieces, embed_audio
from duoplda.audio.extractor import Extractor
from duoplda.audio.journal import Journal
from duoplda.audio.listing import AudioFile, list_audio
from duoplda.audio.onnx import read_metadata
from duoplda.audio.quality import AudioQuality, measure_quality, quality_table
from duoplda.audio.reading import audio_blocks, audio_rate, audio_spans, read_audio, received_audio
from duoplda.audio.speech import EnergyDetector, SileroDetector, SpeechDetector, band_levels

__all__ = [
    "KINDS",
    "AudioFile",
    "AudioQuality",
    "Channels",
    "Embedded",
    "EnergyDetector",
    "Extractor",
    "Journal",
    "Pieces",
    "SileroDetector",
    "SpeechDetector",
    "audio_blocks",
    "audio_rate",
    "audio_spans",
    "band_levels",
    "embed_audio",
    "list_audio",
    "measure_quality",
    "quality_table",
    "read_audio",
    "read_metadata",
    "received_audio",
]
