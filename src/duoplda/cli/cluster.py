"""`duoplda cluster`: who is who among recordings that nobody has labelled."""

from pathlib import Path
from typing import Annotated

import typer

from duoplda.cli import _options as options
from duoplda.cli._terminal import command_line, terminal
from duoplda.cli._words import present_clusters

EXAMPLES = """\
duoplda cluster --model model.safetensors --embeddings x.scp --sessions utt2sess --out utt2spk.tsv
duoplda cluster --model model.safetensors --embeddings x.scp --sessions utt2sess --out utt2spk.tsv --report page.html
duoplda cluster --model model.safetensors --embeddings x.scp --speakers-known voices.safetensors --out utt2spk.tsv"""


def cluster(
    model: options.Model,
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the recordings, all of which are clustered.")],
    out: Annotated[Path, typer.Option(help="The clusters to write: .tsv, .csv or .parquet, else Kaldi's utt2spk.")],
    sessions: Annotated[
        Path | None, typer.Option(help="The session of each recording (utt2sess); a session is of one speaker.")
    ] = None,
    channels: options.Channels = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="One table with the columns id, session and channel, instead of the two lists."),
    ] = None,
    ids: options.Ids = None,
    prior: options.Prior = 0.02,
    speakers: Annotated[int | None, typer.Option(min=1, help="The number of speakers, if it is known.")] = None,
    min_speakers: Annotated[int | None, typer.Option(min=1, help="The smallest number of speakers.")] = None,
    max_speakers: Annotated[int | None, typer.Option(min=1, help="The largest number of speakers.")] = None,
    speakers_known: options.SpeakersKnown = None,
    must_link: Annotated[
        Path | None, typer.Option(help="Pairs of recordings of the same speaker, one pair in each line.")
    ] = None,
    cannot_link: Annotated[
        Path | None, typer.Option(help="Pairs of recordings of different speakers, one pair in each line.")
    ] = None,
    weight: options.Weight = 1.0,
    segments_are: options.SegmentsAre = None,
    refine: Annotated[bool, typer.Option(help="Move single sessions after the merges, where that pays.")] = True,
    report: Annotated[Path | None, typer.Option(help="An HTML page about the clusters to write.")] = None,
    merges: Annotated[Path | None, typer.Option(help="The tree of merges to write: .tsv, .csv or .parquet.")] = None,
    device: options.Device = "cpu",
    dask: options.Dask = None,
    domain_check: options.DomainCheck = True,
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
    from duoplda.workflows import cluster as workflow

    with terminal("clustering", quiet) as screen:
        summary = workflow.cluster(
            model,
            embeddings,
            out,
            sessions=sessions,
            channels=channels,
            labels=labels,
            ids=ids,
            prior=prior,
            speakers=speakers,
            min_speakers=min_speakers,
            max_speakers=max_speakers,
            speakers_known=speakers_known,
            must_link=must_link,
            cannot_link=cannot_link,
            weight=weight,
            segments_are=segments_are,
            refine=refine,
            report=report,
            merges=merges,
            device=device,
            dask=dask,
            domain_check=domain_check,
            force=force,
            command=command_line(),
            note=screen.note,
            show=screen.show,
        )
    present_clusters(summary, out, json, screen)
