"""Who speaks when: from embeddings of the windows of audio files to the turns of speakers.

The embeddings, and the decision what is speech, come from `duoplda.audio` or from another tool. `diarize` assigns each
window to one speaker and joins windows to turns. If it is given the regions where speech overlaps, it adds a second
speaker there. `der` compares turns with a reference. Files of turns (RTTM), scored regions (UEM) and segments are read
and written here.
"""

from duoplda.diarization.chunks import diarize_chunks
from duoplda.diarization.diarizer import Diarizer, diarize
from duoplda.diarization.error_rate import DiarizationErrors, der
from duoplda.diarization.first_labels import centroid_labels, cosine_labels, ratio_labels, threshold_between
from duoplda.diarization.linking import link_speakers
from duoplda.diarization.online import Online, OnlineLabel
from duoplda.diarization.rttm import Regions, Turns, is_rttm, read_rttm, read_uem, write_rttm
from duoplda.diarization.segments import Segments, read_regions, read_segments, write_segments
from duoplda.diarization.vbhmm import Diarized, latent, posterior, smoothed, vb_hmm
from duoplda.diarization.windows import Diarization, as_turns, new_share

__all__ = [
    "Diarization",
    "DiarizationErrors",
    "Diarized",
    "Diarizer",
    "Online",
    "OnlineLabel",
    "Regions",
    "Segments",
    "Turns",
    "as_turns",
    "centroid_labels",
    "cosine_labels",
    "der",
    "diarize",
    "diarize_chunks",
    "is_rttm",
    "latent",
    "link_speakers",
    "new_share",
    "posterior",
    "ratio_labels",
    "read_regions",
    "read_rttm",
    "read_segments",
    "read_uem",
    "smoothed",
    "threshold_between",
    "vb_hmm",
    "write_rttm",
    "write_segments",
]
