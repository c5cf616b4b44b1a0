"""`duoplda cluster`: who is who among recordings that nobody has labelled."""

from pathlib import Path
from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import command_line, terminal, work_options
from duoplda.cli._words import present_clusters

EXAMPLES = """\
duoplda cluster --model model.safetensors --embeddings x.scp --sessions utt2sess --out utt2spk.tsv
duoplda cluster --model model.safetensors --embeddings x.scp --sessions utt2sess --out utt2spk.tsv --report page.html
duoplda cluster --model model.safetensors --embeddings x.scp --speakers-known voices.safetensors --out utt2spk.tsv"""


def cluster(
    model: options.Model,
    embeddings: Annotated[Path, option("Embeddings of the recordings, all of which are clustered.")],
    out: Annotated[Path, option("The clusters to write: .tsv, .csv or .parquet, else Kaldi's utt2spk.")],
    sessions: Annotated[File, option("The session of each recording (utt2sess); a session is of one speaker.")] = None,
    channels: options.Channels = None,
    labels: Annotated[
        File,
        option("One table with the columns id, session and channel, instead of the two lists."),
    ] = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    prior: Annotated[
        float | None,
        option("The probability that two sessions drawn at random are of one speaker; without it, it is learned."),
    ] = None,
    speakers: Annotated[int | None, option("The number of speakers, if it is known.", min=1)] = None,
    min_speakers: Annotated[int | None, option("The smallest number of speakers.", min=1)] = None,
    max_speakers: Annotated[int | None, option("The largest number of speakers.", min=1)] = None,
    speakers_known: options.SpeakersKnown = None,
    registry: options.KnownVoices = None,
    must_link: Annotated[File, option("Pairs of recordings of the same speaker, one pair in each line.")] = None,
    cannot_link: Annotated[File, option("Pairs of recordings of different speakers, one pair in each line.")] = None,
    weight: options.Weight = 1.0,
    segments_are: options.SegmentsAre = None,
    refine: Annotated[bool, option("Move single sessions after the merges, where that pays.")] = True,
    report: Annotated[File, option("An HTML page about the clusters to write.")] = None,
    merges: Annotated[File, option("The tree of merges to write: .tsv, .csv or .parquet.")] = None,
    device: options.Device = "cpu",
    dask: options.Dask = None,
    domain_check: options.DomainCheck = True,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Put recordings into clusters, one for each speaker, however many these are.

    There is no threshold: sessions are merged while that makes the partition more probable. Recordings of a session
    are of one speaker and count as one: give --sessions wherever recordings are copies of one another. OUT has the
    columns recording, cluster, session, margin (nats by which the session fits its cluster better than the second-best)
    and second (the second-best cluster; -: a speaker of its own). `duoplda evaluate --clusters OUT` reads it. With
    `--segments-are recordings` all recordings are of one session, such as the segments of one file.
    """
    typed = work_options(locals())
    from duoplda.workflows import cluster as workflow

    with terminal("clustering", quiet) as screen:
        summary = workflow.cluster(**typed, command=command_line(), note=screen.note, show=screen.show)
    present_clusters(summary, out, json, screen)
