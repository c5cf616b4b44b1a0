"""`duoplda link`: speakers of several files, named file by file, get names that hold for all files."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._clusters import Known, Prior, Weight, tell
from duoplda.cli._common import AllowMissing, Force, Json, Quiet, level_of, missing, usage, warn
from duoplda.cli._voices import Channels, Dask, Device, Ids, NoDomainCheck, check_files, domain_check, labels_of, reader
from duoplda.errors import DuopldaError, some

EXAMPLES = """\
duoplda link --model m.safetensors --embeddings x.scp --segments segments --rttm a.rttm --rttm b.rttm --out all.rttm
duoplda link --model m.safetensors --embeddings x.scp --local utt2spk --out utt2spk.tsv"""


def link(
    model: Annotated[Path, typer.Option(help="A model that `duoplda train` wrote.")],
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the segments, or of the recordings of --local.")],
    out: Annotated[Path, typer.Option(help="Turns (.rttm), or recordings: .tsv, .csv, .parquet, else utt2spk.")],
    rttm: Annotated[list[Path] | None, typer.Option(help="Who speaks when, in some files; repeatable.")] = None,
    segments: Annotated[Path | None, typer.Option(help="Lines `segment file start end`; --rttm needs them.")] = None,
    local: Annotated[Path | None, typer.Option(help="Instead of --rttm: utt2spk with local speakers.")] = None,
    segments_are: Annotated[
        str | None, typer.Option(help="What segments were in training: sessions or recordings.  [MODEL's, or sessions]")
    ] = None,
    sessions: Annotated[Path | None, typer.Option(help="utt2sess; names count within a local speaker.")] = None,
    channels: Channels = None,
    ids: Ids = None,
    prior: Prior = 0.02,
    weight: Weight = 1.0,
    discount: Annotated[float, typer.Option(help="What a segment counts, where segments overlap.")] = 1.0,
    speakers_known: Known = None,
    cannot_link_within: Annotated[
        bool, typer.Option("--cannot-link-within", help="Local speakers of one file are different people.")
    ] = False,
    device: Device = "cpu",
    dask: Dask = None,
    no_domain_check: NoDomainCheck = False,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Link the speakers of several files: local speakers who are one person get one name.

    Local speakers come from RTTM, where a segment belongs to the speaker whose turns overlap it for the longest time,
    or from a list (--local), whose names count within a file if --segments says which file that is. All segments of a
    local speaker are taken together. To the model each is a session of its own, or with `--segments-are recordings`
    they are recordings of one session, as where the model was trained with files as sessions; --sessions has priority.
    """
    if (not rttm) == (local is None) or (rttm and segments is None):
        usage("give either --rttm with --segments, or --local")
    if out.suffix.lower() == ".rttm" and not rttm:
        usage("turns are written where turns are read: give --rttm, or an OUT that does not end in .rttm")
    if cannot_link_within and segments is None:
        usage("--cannot-link-within needs --segments, which say what file a segment is of")

    from duoplda import diarization, io
    from duoplda.cli import _local
    from duoplda.estimators.backend import Backend
    from duoplda.estimators.clustering import unscaled
    from duoplda.estimators.scoring import enroll_recordings

    domain_check(no_domain_check)
    lists = *(rttm or ()), segments, local, model, sessions, channels, speakers_known
    check_files(out, force, [embeddings], [ids], *lists)
    cuts = None if segments is None else diarization.read_segments(segments)
    if cuts is not None and discount == 1 and (often := _local.density(cuts)) > 1.5:
        warn(f"a second of speech is in {often:.1f} segments, and counts as often; see --discount {1 / often:.2f}")
    turns = None if not rttm else _local.joined(rttm)
    if turns is not None and cuts is not None:
        who = _local.by_overlap(cuts, turns)
    else:
        who = _local.by_list(Path(local or ""), cuts, allow_missing)
    if not who:
        raise DuopldaError("no local speaker has a segment: do the names of the files agree?")
    people = sorted({*who.values()})
    row = {person: k for k, person in enumerate(people)}
    labels = labels_of(sessions, channels)
    chain = Backend.load(model)
    if labels["session"] is not None or level_of(segments_are, chain) == "recordings":
        found_in = labels["session"] or dict.fromkeys(who, "")  # a session is of one local speaker
        labels["session"] = {i: " ".join([*person, found_in[i]]) for i, person in who.items() if i in found_in}
    options: dict[str, Any] = {"prior": prior, "weight": weight, "discount": discount}
    with ExitStack() as stack:
        read, place = reader(stack, "linking", device, dask)
        if speakers_known is not None:
            options["known"] = chain.load_sides(speakers_known, device=place)
        else:
            chain = unscaled(chain)
        absent = partial(missing, "segments have no embedding", allow=allow_missing)
        pairs = [row[person] for person in who.values()], [*who]
        sides = enroll_recordings(chain, read(embeddings, ids), *pairs, **labels, device=place, absent=absent)
    if cannot_link_within:
        options["cannot_link"] = _local.within(people, sides.ids.tolist())
    found = chain.cluster(sides, **options)
    name = {people[k]: str(found.names[c]) for k, c in zip(found.ids.tolist(), found.labels.tolist(), strict=True)}
    if turns is not None and out.suffix.lower() == ".rttm":
        spoken = list(zip(turns.file.values.tolist(), turns.speaker.values.tolist(), strict=True))
        if rest := sorted({*spoken} - {*name}):
            warn(f"{len(rest)} local speakers have no segment, and get names of their own: {some(map('_'.join, rest))}")
        names = [name.get(person) or "_".join(person) for person in spoken]
        named = diarization.Turns(turns.file, turns.start, turns.duration, io.Coded.of(names))
        diarization.write_rttm(out, named, force=force)
    else:
        listed = {recording: person for recording, person in who.items() if person in name}
        more = {"local": [person[1] for person in listed.values()]}
        io.write_partition(out, listed, [name[person] for person in listed.values()], force=force, **more)
    counts = {"segments": len(who), "local speakers": len(sides), "speakers": len(found)}
    tell(found, counts, out, json)
