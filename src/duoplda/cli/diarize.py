"""`duoplda diarize`: who speaks when, from embeddings of the windows of files to RTTM."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import AllowMissing, Force, Json, Quiet, level_of, missing, one_of, result_json, say, usage
from duoplda.cli._voices import Ids, check_files, reader

EXAMPLES = """\
duoplda diarize --model model.safetensors --embeddings x.ark --segments x.seg --out x.rttm
duoplda diarize --model plda --transform transform.h5 --embeddings x.ark --segments x.seg --start vbx --out x.rttm
duoplda diarize --model model.safetensors --embeddings all.scp --segments segments --link --out all.rttm"""


def diarize(
    model: Annotated[Path, typer.Option(help="A model of `duoplda train`, or the PLDA of VBx, pyannote, Kaldi ...")],
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the segments.")],
    segments: Annotated[Path, typer.Option(help="Lines `segment file start end`; segments may overlap.")],
    out: Annotated[Path, typer.Option(help="The turns of all files, as RTTM.")],
    transform: Annotated[Path | None, typer.Option(help="transform.h5 or xvec_transform.npz beside MODEL.")] = None,
    segments_are: Annotated[
        str | None, typer.Option(help="What segments were in training: sessions or recordings.  [MODEL's, or sessions]")
    ] = None,
    start: Annotated[
        str, typer.Option(help="First labels by exact ratios, or as VBx or pyannote finds them.")
    ] = "ratios",
    no_hmm: Annotated[bool, typer.Option("--no-hmm", help="A mixture without an order of time.")] = False,
    no_refine: Annotated[bool, typer.Option("--no-refine", help="Neither: the first labels stay.")] = False,
    Fa: Annotated[float, typer.Option("--Fa", help="Scale of the evidence of a segment.")] = 0.3,
    Fb: Annotated[float, typer.Option("--Fb", help="Cost of a speaker.")] = 17.0,
    loop: Annotated[float, typer.Option(help="Probability that the next segment is of the same speaker.")] = 0.99,
    discount: Annotated[
        float | None, typer.Option(help="What a segment counts for.  [share of its time that is new]")
    ] = None,
    prior: Annotated[float, typer.Option(help="Probability that two segments of a file are of one speaker.")] = 0.25,
    speakers: Annotated[int | None, typer.Option(min=1, help="The number of speakers of each file.")] = None,
    min_speakers: Annotated[int | None, typer.Option(min=1, help="The fewest speakers of a file.")] = None,
    max_speakers: Annotated[int | None, typer.Option(min=1, help="The most speakers of a file.")] = None,
    dimensions: Annotated[int | None, typer.Option(min=1, help="Use those where speakers differ most.  [all]")] = None,
    link: Annotated[bool, typer.Option("--link", help="Find the same people in several files.")] = False,
    link_prior: Annotated[float, typer.Option(help="--link: probability that two speakers are one person.")] = 0.02,
    cannot_link_within: Annotated[
        bool, typer.Option("--cannot-link-within", help="--link: speakers of one file are different people.")
    ] = False,
    ids: Ids = None,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Find who speaks when: segments of files go to speakers, and become turns.

    First labels come from exact likelihood ratios (or as VBx or pyannote finds them), then the HMM of VBx finds
    speakers and changes. If sessions were utterances in training, segments are sessions: each counts as one of its own.
    If sessions were files, segments are recordings: those of a speaker in one file are of one session.
    Speakers are named after their file, or with --link alike in all files.
    """
    one_of("--start", start, "ratios", "vbx", "pyannote")
    if no_hmm and no_refine:
        usage("--no-hmm is another refinement, and --no-refine none: give one of them")
    if speakers is not None and (min_speakers is not None or max_speakers is not None):
        usage("--speakers says it all: leave out --min-speakers and --max-speakers")
    if cannot_link_within and not link:
        usage("--cannot-link-within is for --link")

    from duoplda import diarization
    from duoplda.cli.convert import load_model

    check_files(out, force, [embeddings], [ids], model, transform, segments)
    options: dict[str, Any] = {"start": start, "refine": None if no_refine else "gmm" if no_hmm else "vbx"}
    options |= {"Fa": Fa, "Fb": Fb, "loop": loop, "discount": discount, "prior": prior, "n_dimensions": dimensions}
    options |= {"n_speakers": speakers, "min_speakers": min_speakers, "max_speakers": max_speakers}
    options |= {"link": link, "link_prior": link_prior}
    options["cannot_link_within"] = cannot_link_within
    with ExitStack() as stack:
        chain, _ = load_model(model, transform)
        options["segments_are"] = level_of(segments_are, chain)
        windows = diarization.read_segments(segments)
        read, _ = reader(stack, "reading embeddings", "cpu", None)
        absent = partial(missing, allow=allow_missing)
        turns = diarization.diarize(chain, read(embeddings, ids), windows, absent=absent, **options)
    diarization.write_rttm(out, turns, force=force)
    files = {name: turns[turns.file.codes == code] for code, name in enumerate(turns.file.names.tolist())}
    counts = {
        name: {
            "speakers": len(set(own.speaker.codes.tolist())),
            "turns": len(own),
            "seconds": float(own.duration.sum()),
        }
        for name, own in files.items()
    }
    people = len(set(turns.speaker.codes.tolist()))
    if json:
        result_json({"out": str(out), "speakers": people, "turns": len(turns), "files": counts})
    else:
        whose = "linked across files" if link else "each of one file"
        say(f"{len(files):,} files, {people:,} speakers ({whose}), {len(turns):,} turns: {out}")
