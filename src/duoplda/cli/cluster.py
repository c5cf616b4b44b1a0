"""`duoplda cluster`: who is who among recordings that nobody has labelled."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._clusters import Known, Prior, Weight, read_pairs, tell, write_merges
from duoplda.cli._common import Force, Json, Quiet, command_line, files_hash, labels_alone, level_of, say, usage
from duoplda.cli._voices import Channels, Dask, Device, Ids, NoDomainCheck, check_files, domain_check, labels_of, reader

EXAMPLES = """\
duoplda cluster --model model.safetensors --embeddings x.scp --sessions utt2sess --out utt2spk.tsv
duoplda cluster --model model.safetensors --embeddings x.scp --sessions utt2sess --out utt2spk.tsv --report page.html
duoplda cluster --model model.safetensors --embeddings x.scp --speakers-known voices.safetensors --out utt2spk.tsv"""


def cluster(
    model: Annotated[Path, typer.Option(help="A model that `duoplda train` wrote.")],
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the recordings, all of which are clustered.")],
    out: Annotated[Path, typer.Option(help="Clusters: .tsv, .csv or .parquet; else Kaldi's utt2spk.")],
    sessions: Annotated[Path | None, typer.Option(help="utt2sess; a session is of one speaker.")] = None,
    channels: Channels = None,
    labels: Annotated[Path | None, typer.Option(help="A table instead of the two: id, session, channel.")] = None,
    ids: Ids = None,
    prior: Prior = 0.02,
    speakers: Annotated[int | None, typer.Option(min=1, help="How many speakers there are.")] = None,
    min_speakers: Annotated[int | None, typer.Option(min=1, help="There are at least so many.")] = None,
    max_speakers: Annotated[int | None, typer.Option(min=1, help="There are at most so many.")] = None,
    speakers_known: Known = None,
    must_link: Annotated[Path | None, typer.Option(help="Pairs of recordings of one speaker, one in a line.")] = None,
    cannot_link: Annotated[Path | None, typer.Option(help="Pairs of recordings of two speakers.")] = None,
    weight: Weight = 1.0,
    segments_are: Annotated[
        str | None, typer.Option(help="recordings: all are of one session (a file).  [MODEL's, or sessions]")
    ] = None,
    no_refine: Annotated[bool, typer.Option("--no-refine", help="Only merge; move no session after that.")] = False,
    report: Annotated[Path | None, typer.Option(help="A page to look at, e.g. clusters.html.")] = None,
    merges: Annotated[Path | None, typer.Option(help="The tree of merges: .tsv, .csv or .parquet.")] = None,
    device: Device = "cpu",
    dask: Dask = None,
    no_domain_check: NoDomainCheck = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Put recordings into clusters, one for each speaker, however many these are.

    There is no threshold: sessions are merged while that makes the partition more probable. Recordings of a session
    are of one speaker and count as one: give --sessions wherever recordings are copies of one another. OUT has the
    columns recording, cluster, session, margin (nats by which the session fits its cluster better than the second-best)
    and second (the second-best cluster; -: a speaker of its own). `duoplda evaluate --clusters OUT` reads it.
    """
    labels_alone(labels, sessions, channels)
    if speakers is not None and (min_speakers is not None or max_speakers is not None):
        usage("--speakers is the number itself: leave out --min-speakers and --max-speakers")
    outputs = [path.resolve() for path in (out, report, merges) if path is not None]
    if len({*outputs}) < len(outputs):
        usage("--out, --report and --merges must be different files")

    import numpy as np

    from duoplda.estimators.backend import Backend
    from duoplda.io import read_sessions, write_partition
    from duoplda.report import write_cluster_report

    domain_check(no_domain_check)
    lists = model, sessions, channels, labels, speakers_known, must_link, cannot_link
    for path in (out, report, merges):
        check_files(path, force, [embeddings], [ids], *lists)
    known = labels_of(sessions, channels)
    if labels is not None:
        known = dict(zip(("session", "channel"), read_sessions(labels), strict=True))
    options: dict[str, Any] = {"prior": prior, "weight": weight, "refine": not no_refine, "n_speakers": speakers}
    options |= {"min_speakers": min_speakers, "max_speakers": max_speakers}
    options |= {"must_link": read_pairs(must_link), "cannot_link": read_pairs(cannot_link)}
    with ExitStack() as stack:
        read, place = reader(stack, "clustering", device, dask)
        chain = Backend.load(model)
        within = sessions is None and labels is None and (segments_are or chain.provenance_.get("sessions_are"))
        options["within_session"] = level_of(segments_are, chain) == "recordings" if within else False
        if speakers_known is not None:
            options["known"] = chain.load_sides(speakers_known, device=place)
        found = chain.cluster(read(embeddings, ids), **known, **options, device=place)
    recordings = found.ids.astype(str)
    session = known["session"] or {}
    own = np.array([session.get(name, name) for name in recordings.tolist()])
    if session and (n := sum(name not in session for name in recordings.tolist())):
        say(f"{n:,} recordings have no session in {sessions or labels}: each is taken for a session of its own")
    second = np.array([*found.names.tolist(), "-"])[found.runner_up[found.item]]  # -1 is the last one
    more = {"session": own, "margin": np.round(found.margin[found.item], 4), "second": second}
    write_partition(out, recordings, found.names[found.labels], force=force, **more)
    if merges is not None:
        items = own[np.unique(found.item, return_index=True)[1]].tolist()
        write_merges(merges, found, [*items, *(options["known"].ids.tolist() if speakers_known else ())], force)
    if report is not None:
        inputs: dict[str, Any] = {"commands": [command_line()], "hashes": files_hash(lists)}
        write_cluster_report(report, found, session=own if session else None, **inputs, force=force)
    counts = {"recordings": len(recordings), "sessions": int(found.sessions.sum()), "speakers": len(found)}
    tell(found, counts, out, json)
