"""`duoplda link`: speakers of several files, named file by file, get names that hold for all files."""

from pathlib import Path
from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import terminal, work_options
from duoplda.cli._words import present_clusters

EXAMPLES = """\
duoplda link --model m.safetensors --embeddings x.scp --segments segments --rttm a.rttm --rttm b.rttm --out all.rttm
duoplda link --model m.safetensors --embeddings x.scp --local utt2spk --out utt2spk.tsv"""


def link(
    model: options.Model,
    embeddings: Annotated[Path, option("Embeddings of the segments, or of the recordings of --local.")],
    out: Annotated[Path, option("Turns to write (.rttm), or recordings: .tsv, .csv, .parquet, else Kaldi's utt2spk.")],
    rttm: Annotated[
        list[Path] | None, option("Who speaks when in one or several files; repeat the option for more.")
    ] = None,
    segments: Annotated[
        File, option("The segments of files: lines `segment file start end`; --rttm needs them.")
    ] = None,
    local: Annotated[File, option("The local speaker of each recording (utt2spk), instead of --rttm.")] = None,
    segments_are: options.SegmentsAre = None,
    sessions: Annotated[
        File,
        option("The session of each recording (utt2sess); names count within a local speaker."),
    ] = None,
    channels: options.Channels = None,
    occasions: options.Occasions = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    prior: options.Prior = 0.02,
    weight: options.Weight = 1.0,
    discount: Annotated[float, option("How much each segment counts; below 1 where segments overlap.")] = 1.0,
    speakers_known: options.SpeakersKnown = None,
    registry: options.KnownVoices = None,
    cannot_link_within: options.CannotLinkWithin = False,
    device: options.Device = "cpu",
    dask: options.Dask = None,
    domain_check: options.DomainCheck = True,
    allow_missing: options.AllowMissing = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Link the speakers of several files: local speakers who are one person get one name.

    Local speakers come from RTTM, where a segment belongs to the speaker whose turns overlap it for the longest time,
    or from a list (--local), whose names count within a file if --segments says which file that is. All segments of a
    local speaker are taken together. To the model each is a session of its own, or with `--segments-are recordings`
    they are recordings of one session, as where the model was trained with files as sessions; --sessions has priority.
    """
    typed = work_options(locals())
    from duoplda.workflows import link as workflow

    with terminal("linking", quiet) as screen:
        summary = workflow.link(**typed, note=screen.note, show=screen.show)
    present_clusters(summary, out, json, screen)
