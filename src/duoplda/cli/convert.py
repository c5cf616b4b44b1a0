"""`duoplda convert`: models of other tools to ours, and ours to theirs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import Force, Quiet, command_line, files_hash, result, say, usage, warn
from duoplda.errors import DuopldaError, error_prefix

EXAMPLES = """duoplda convert plda model.safetensors
duoplda convert plda.npz model.safetensors --transform xvec_transform.npz
duoplda convert model.safetensors folder --to pyannote
duoplda convert model.safetensors plda.npz --to vbx"""

Format = StrEnum("Format", ["kaldi", "vbx", "pyannote", "duoplda"])  # those that can be written


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Kaldi Plda, plda.npz, hyperion, wespeaker, ours.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new file; a folder for vbx and pyannote.")],
    to: Annotated[Format | None, typer.Option(help="Its format, if OUT's suffix should not say it.")] = None,
    transform: Annotated[Path | None, typer.Option(help="transform.h5 or xvec_transform.npz beside IN.")] = None,
    one_session: Annotated[bool, typer.Option("--one-session", help="For comparisons inside one session.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Kaldi's text format instead of the binary one.")] = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Convert a PLDA model. The format of IN is found by its content.

    These are read: Kaldi Plda (binary, text), VBx and pyannote plda.npz, wespeaker and hyperion HDF5, and our own
    files; with --transform the pair of VBx (plda, transform.h5) or of pyannote and DiariZen (plda.npz,
    xvec_transform.npz). These are written: kaldi, duoplda (OUT ends in .safetensors), and into the folder OUT the pairs
    vbx and pyannote, preprocessing included; if OUT ends in .npz, it is a plda.npz without that. None of these tools
    has a session level: it becomes noise of each recording, and a warning says how much that is. With --one-session it
    becomes part of the speaker instead, which is right for diarisation if files were the sessions in training.
    """
    from duoplda.io import check_output

    to = to or {".npz": Format.vbx, ".safetensors": Format.duoplda}.get(out.suffix.lower(), Format.kaldi)
    pair = to is Format.pyannote or (to is Format.vbx and out.suffix.lower() != ".npz")
    if text and to is not Format.kaldi:
        usage(f"--text is for --to kaldi, not {to}")
    if pair and out.suffix.lower() == ".npz":
        usage(f"--to {to} writes two files into a folder: OUT cannot be a .npz file")
    if one_session and to is Format.duoplda:
        usage("--one-session is for the formats of other tools: ours keeps the session level")
    if not pair:
        check_output(out, force, inputs=[source, transform])
    backend, found = load_model(source, transform)
    for note in found.notes if found else ():
        warn(f"{source}: {note}")
    if pair:
        _write_pair(out, to, backend, one_session, force, [source, transform])
    elif to is not Format.duoplda:
        _write_diagonal(out, to, backend, one_session, text, force)
    elif found is None:
        raise DuopldaError(f"{source}: is a model of duoplda already; name another format with --to")
    else:
        inputs = files_hash([source, transform])
        backend.save(out, provenance={"command": command_line(), "inputs": inputs}, force=force)
    d, ny = backend.plda_.speaker_loadings_.shape
    result(f"{out}: {to}, {d} dimensions, {ny} speaker factors, from {found.format if found else 'duoplda'}")


def load_model(path: Path, transform: Path | None = None) -> tuple[Any, Any]:
    """Read any model as a `Backend`: ours, with None, or another tool's and the `ForeignModel` behind it.

    The latter has no preprocessing, but for the steps that a second file `transform` holds.
    """
    from duoplda.estimators.backend import Backend
    from duoplda.io import is_container, read_model

    if is_container(path):
        if transform is not None:
            raise DuopldaError(f"{path}: is a model of duoplda, which has its preprocessing: leave out {transform}")
        return Backend.load(path), None
    found = read_model(path, transform)
    with error_prefix(str(path)):
        return Backend.from_foreign(found), found


def _write_diagonal(out: Path, to: Format, backend: Any, one_session: bool, text: bool, force: bool) -> None:
    """Write the PLDA alone, and say what is lost."""
    from duoplda.io import write_kaldi_plda, write_vbx

    model, loss = backend.collapsed(one_session=one_session)
    rest = [*backend.steps_, *(["calibration"] if backend.calibration_ is not None else [])]
    if rest:
        warn(f"only the PLDA is written: the other tool must do the rest ({', '.join(rest)})")
    if to is Format.kaldi:
        write_kaldi_plda(out, model, text=text, force=force)
    _say_lost(loss, write_vbx(out, model, force=force) if to is Format.vbx else 0)


def _write_pair(out: Path, to: Format, backend: Any, one_session: bool, force: bool, inputs: list[Any]) -> None:
    """Write PLDA and preprocessing as two files of a folder, and say what is lost."""
    from duoplda.io import write_pair

    with error_prefix(str(out)):
        transform = backend.folded()
        model, loss = backend.collapsed(one_session=one_session)
        if to is Format.pyannote and (n := len(model.mean)) > 128:
            raise DuopldaError(f"pyannote uses 128 dimensions of a PLDA, and this has {n}: train with --lda 128")
    paths, raised = write_pair(out, transform, model, str(to), force=force, inputs=inputs)
    say(f"written: {', '.join(map(str, paths))}")
    if backend.calibration_ is not None:
        warn("the calibration is not written: neither tool has one")
    if len(model.mean) > 128:
        warn(f"the PLDA has {len(model.mean)} dimensions: VBx uses as many as its option says (--lda-dim)")
    _say_lost(loss, raised)


def _say_lost(loss: Any, raised: int = 0) -> None:
    if raised:
        say(f"{raised} directions without speaker variance got a tiny one: VBx divides by each")
    (say if loss.lossless else warn)(loss.sentence())
