"""`duoplda convert`: models of other tools to ours, and ours to theirs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import Force, Quiet, command_line, files_hash, result, say, usage, warn
from duoplda.errors import DuopldaError

EXAMPLES = """duoplda convert plda model.safetensors
duoplda convert model.safetensors plda.npz --to vbx"""


Format = StrEnum("Format", ["kaldi", "vbx", "duoplda"])  # those that can be written


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Kaldi Plda, plda.npz, hyperion, wespeaker, ours.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new file.")],
    to: Annotated[Format | None, typer.Option(help="Its format, if OUT's suffix should not say it.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Kaldi's text format instead of the binary one.")] = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Convert a PLDA model. The format of IN is found by its content.

    These are read: Kaldi Plda (binary, text), VBx and pyannote plda.npz, wespeaker and hyperion HDF5, and our own
    files. These are written: kaldi, vbx (OUT ends in .npz) and duoplda (.safetensors). Kaldi and VBx have no session
    level: it becomes noise of each recording, and a warning says how much that is.
    """
    from duoplda.io import check_output

    to = to or {".npz": Format.vbx, ".safetensors": Format.duoplda}.get(out.suffix.lower(), Format.kaldi)
    if text and to is not Format.kaldi:
        usage(f"--text is for --to kaldi, not {to}")
    check_output(out, force, inputs=[source])
    backend, found = load_model(source)
    for note in found.notes if found else ():
        warn(f"{source}: {note}")
    if to is not Format.duoplda:
        _write_diagonal(out, to, backend, text, force)
    elif found is None:
        raise DuopldaError(f"{source}: is a model of duoplda already; name another format with --to")
    else:
        backend.save(out, provenance={"command": command_line(), "inputs": files_hash([source])}, force=force)
    d, ny = backend.plda_.speaker_loadings_.shape
    result(f"{out}: {to}, {d} dimensions, {ny} speaker factors, from {found.format if found else 'duoplda'}")


def load_model(path: Path) -> tuple[Any, Any]:
    """Read any model as a `Backend`: ours, with None, or one without preprocessing and the `ForeignModel` behind it."""
    from duoplda.estimators.backend import Backend
    from duoplda.estimators.plda import PLDA
    from duoplda.evaluation.metrics import named
    from duoplda.io import is_container, read_model

    if is_container(path):
        return Backend.load(path), None
    found = read_model(path)
    with named(str(path)):
        return Backend.from_plda(PLDA.from_parameters(*found.parameters)), found


def _write_diagonal(out: Path, to: Format, backend: Any, text: bool, force: bool) -> None:
    """Write the PLDA without its session level, and say what is lost by that."""
    from duoplda.arrays import to_numpy
    from duoplda.io import write_kaldi_plda, write_vbx
    from duoplda.model.collapse import collapse

    names = ("channel_means_", "speaker_loadings_", "session_loadings_", "noise_precision_", "channel_priors_")
    model, loss = collapse(*(to_numpy(getattr(backend.plda_, name)) for name in names))
    rest = [*backend.steps_, *(["calibration"] if backend.calibration_ is not None else [])]
    if rest:
        warn(f"only the PLDA is written: the other tool must do the rest ({', '.join(rest)})")
    if to is Format.kaldi:
        write_kaldi_plda(out, model, text=text, force=force)
    elif raised := write_vbx(out, model, force=force):
        say(f"{raised} directions without speaker variance got a tiny one: VBx divides by each")
    (say if loss.lossless else warn)(loss.sentence())
