"""`duoplda convert`: models of other tools to ours, and ours to theirs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import Terminal, command_line, result, work_options

EXAMPLES = """duoplda convert plda model.safetensors
duoplda convert plda.npz model.safetensors --transform xvec_transform.npz
duoplda convert model.safetensors folder --to pyannote
duoplda convert model.safetensors plda.npz --to vbx
duoplda convert model.safetensors plda.h5 --to hyperion"""

Format = StrEnum("Format", ["kaldi", "vbx", "pyannote", "hyperion", "duoplda"])  # those that can be written


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="A model of Kaldi, VBx, pyannote, hyperion, wespeaker or duoplda.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; a folder for vbx and pyannote.")],
    to: Annotated[Format | None, option("The format of OUT.  [by its suffix]")] = None,
    transform: Annotated[File, option("The file transform.h5 or xvec_transform.npz that belongs to IN.")] = None,
    one_session: Annotated[bool, option("Write a model for comparisons inside one session.", "--one-session")] = False,
    text: Annotated[bool, option("Write Kaldi's text format instead of the binary one.", "--text")] = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert a PLDA model. The format of IN is found by its content.

    These are read: Kaldi Plda (binary, text), VBx and pyannote plda.npz, wespeaker and hyperion HDF5, and our own
    files; with --transform the pair of VBx (plda, transform.h5) or of pyannote and DiariZen (plda.npz,
    xvec_transform.npz). These are written: kaldi, hyperion (an SPLDA; OUT ends in .h5), duoplda (OUT ends in
    .safetensors), and into the folder OUT the pairs vbx and pyannote, preprocessing included; if OUT ends in .npz, it
    is a plda.npz without that. None of these tools has a session level: it becomes noise of each recording, and a
    warning says how much that is. With --one-session it becomes part of the speaker instead, which is right for
    diarisation if files were the sessions in training.
    """
    typed = work_options(locals())
    from duoplda.workflows import convert as workflow

    converted = workflow.convert(**typed, command=command_line(), note=Terminal(quiet).note)
    result(f"{out}: {converted}")
