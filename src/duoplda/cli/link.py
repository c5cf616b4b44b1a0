"""`duoplda link`: speakers of several files, named file by file, get names that hold for all files."""

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duoplda.cli._clusters import Known, Prior, Weight, tell
from duoplda.cli._common import AllowMissing, Force, Json, Quiet, say, usage, warn
from duoplda.cli._voices import Channels, Device, Ids, Sessions, check_files, labels_of
from duoplda.errors import DuopldaError

if TYPE_CHECKING:
    from duoplda.io import Segments, Turns

EXAMPLES = """\
duoplda link --model model.safetensors --embeddings x.scp --segments segments --rttm a.rttm --rttm b.rttm --out all.rttm
duoplda link --model model.safetensors --embeddings x.scp --local utt2spk --out utt2spk.tsv"""
SegmentsAre = StrEnum("SegmentsAre", ["recordings", "sessions"])


def link(
    model: Annotated[Path, typer.Option(help="A model that `duoplda train` wrote.")],
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the segments, or of recordings.")],
    out: Annotated[Path, typer.Option(help="Turns (.rttm), or a table .tsv, .csv, .parquet, or Kaldi's utt2spk.")],
    rttm: Annotated[list[Path] | None, typer.Option(help="Who speaks when in some of the files; repeatable.")] = None,
    segments: Annotated[Path | None, typer.Option(help="Lines `segment file start end`; --rttm needs it.")] = None,
    local: Annotated[Path | None, typer.Option(help="utt2spk instead of --rttm: local speakers.")] = None,
    segments_are: Annotated[SegmentsAre, typer.Option(help="What segments were in training.")] = SegmentsAre.sessions,
    sessions: Sessions = None,
    channels: Channels = None,
    ids: Ids = None,
    prior: Prior = 0.02,
    weight: Weight = 1.0,
    speakers_known: Known = None,
    cannot_link_within: Annotated[
        bool, typer.Option("--cannot-link-within", help="Local speakers of one file are different people.")
    ] = False,
    device: Device = "cpu",
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Link the speakers of several files: those who are one person get one name.

    Local speakers come from RTTM, where each segment belongs to the speaker with whose turns it overlaps most, or from
    a list (--local), whose names count within a file if --segments says which file that is. Segments of a local speaker
    are sessions, each of its own, or recordings of one session (--segments-are), unless --sessions has them.
    """
    if (not rttm) == (local is None) or (rttm and segments is None):
        usage("give either --rttm with --segments, or --local")
    if out.suffix.lower() == ".rttm" and not rttm:
        usage("only turns can be written as turns: give --rttm, or an OUT that does not end in .rttm")
    if cannot_link_within and segments is None:
        usage("--cannot-link-within needs --segments, which say what file a segment is of")

    import numpy as np

    from duoplda.estimators.backend import Backend
    from duoplda.io import LabelColumns, Turns, read_partition, read_recordings, read_segments, write_partition, write_rttm

    lists = *(rttm or ()), segments, local, model, sessions, channels, speakers_known
    check_files(out, force, [embeddings], [ids], *lists)
    cuts = None if segments is None else read_segments(segments)
    turns = None if not rttm else joined(rttm)
    who = speakers_of(cuts, turns) if cuts is not None and turns is not None else local_speakers(local, cuts)
    with ExitStack() as stack:
        from duoplda.cli._common import progress

        show = stack.enter_context(progress("linking"))
        ...
