"""`duoplda convert`: models of other tools to ours, ours to theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import Force, Quiet, command_line, files_hash, refuse_existing, result, say, usage, warn
from duoplda.errors import DuopldaError

EXAMPLE = """\b
Example:
  duoplda convert plda model.safetensors
  duoplda convert model.safetensors plda.npz --to vbx
"""


class Format(StrEnum):
    """What can be written."""

    kaldi = "kaldi"
    vbx = "vbx"
    duoplda = "duoplda"


@dataclass(frozen=True, eq=False)
class Found:
    """A model that was read: its PLDA, where it comes from, and what the file says beyond it."""

    plda: Any
    format: str
    notes: list[str] = field(default_factory=list)
    backend: Any = None  # of a file of ours that has the whole chain


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Kaldi Plda, plda.npz, hyperion, wespeaker, ours.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new file.")],
    to: Annotated[Format | None, typer.Option(help="Its format, if OUT's suffix should not say it.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Kaldi's text format instead of the binary one.")] = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Convert a PLDA model: the format of IN is found by its content.

    Read: Kaldi Plda (binary, text), VBx and pyannote plda.npz, wespeaker and hyperion HDF5, and our own files. Written:
    kaldi, vbx (OUT ends in .npz) and duoplda (.safetensors). Kaldi and VBx have no session level: it becomes noise of
    each recording, and a warning says how much that was.
    """
    if to is None:
        to = {".npz": Format.vbx, ".safetensors": Format.duoplda}.get(out.suffix.lower(), Format.kaldi)
    if text and to is not Format.kaldi:
        usage(f"--text is for --to kaldi, not {to}")
    refuse_existing(out, force)
    found = read_model(source)
    for note in found.notes:
        warn(f"{source}: {note}")
    if to is Format.duoplda:
        _write_own(out, found, source)
    else:
        _write_diagonal(out, to, found, text, force)
    d, ny = found.plda.speaker_loadings_.shape
    result(f"{out}: {to}, {d} dimensions, {ny} speaker factors, from {found.format}")


def _write_diagonal(out: Path, to: Format, found: Found, text: bool, force: bool) -> None:
    from duoplda.io.kaldi_plda import collapse, write_kaldi_plda
    from duoplda.io.vbx import FLOOR, write_vbx

    model, loss = collapse(found.plda)
    before = [*found.backend.steps_] if found.backend else []
    after = ["calibration"] if found.backend and found.backend.calibration_ is not None else []
    if before or after:
        warn(f"only the PLDA is written: the other tool must do the rest ({', '.join(before + after)})")
    if to is Format.kaldi:
        write_kaldi_plda(out, model, text=text, force=force)
    else:
        raised = write_vbx(out, model, force=force)
        if raised:
            say(f"{raised} directions without speaker variance got {FLOOR:g} of the largest: VBx divides by each")
    (say if loss.lossless else warn)(loss.sentence())


def _write_own(out: Path, found: Found, source: Path) -> None:
    from duoplda.estimators.backend import Backend

    if found.backend is not None:
        raise DuopldaError(f"{source}: is a model of duoplda already; name another format with --to")
    Backend.from_plda(found.plda).save(out, command=command_line(), inputs=files_hash([source]))


# -- reading by content


def read_model(path: Path) -> Found:
    """Any model that can be read."""
    from duoplda.io._common import bad, magic, open_binary, starts_as
    from duoplda.io.kaldi_plda import is_kaldi_plda, read_kaldi_plda
    from duoplda.io.vbx import read_vbx
    from duoplda.io.wespeaker import refuse_torch

    with open_binary(path) as f:
        start = f.read(16)
    if start[7:9] == b"\0{":  # safetensors: the length of the header, and the header
        return _own(path)
    start = magic(path)
    if is_kaldi_plda(start):
        return _foreign(path, lambda: read_kaldi_plda(path).parameters(), "a Kaldi Plda")
    if starts_as(start, "zip"):
        refuse_torch(path)
        return _foreign(path, lambda: read_vbx(path).parameters(), "a plda.npz of VBx or pyannote")
    if starts_as(start, "hdf5"):
        return _hdf5(path)
    raise bad(path, "byte 0", "is no model that duoplda knows", "known: Kaldi Plda, plda.npz, HDF5, safetensors")


def _own(path: Path) -> Found:
    from duoplda.estimators.backend import Backend

    backend = Backend.load(path)
    return Found(backend.plda_, "duoplda", backend=backend)


def _foreign(path: Path, read: Callable[[], Any], what: str, notes: list[str] | None = None) -> Found:
    from duoplda import PLDA

    parameters = read()
    try:
        return Found(PLDA.from_parameters(*parameters), what, notes or [])
    except DuopldaError as error:
        raise DuopldaError(f"{path}: {error}") from None


def _hdf5(path: Path) -> Found:
    from duoplda.io._common import bad, listed
    from duoplda.io.hdf5 import opened
    from duoplda.io.hyperion import is_hyperion, read_hyperion
    from duoplda.io.wespeaker import is_wespeaker, read_wespeaker

    with opened(path) as f:
        names, wespeaker, hyperion = sorted(f), is_wespeaker(f), is_hyperion(f)
    if wespeaker:
        model, notes = read_wespeaker(path)
        return _foreign(path, model.parameters, "wespeaker's HDF5", notes)
    if hyperion:
        parameters, kind = read_hyperion(path)
        return _foreign(path, lambda: parameters, f"hyperion's {kind}")
    raise bad(path, "", f"is HDF5 without a PLDA in it (it has: {listed(names)})", "wespeaker's or hyperion's is read")
