"""Conversion: models of other tools to ours, and ours to theirs."""

from __future__ import annotations

import warnings
from pathlib import Path

from duoplda.errors import DuopldaError, error_prefix
from duoplda.estimators.backend import Backend
from duoplda.io import (
    ForeignModel,
    check_output,
    is_container,
    read_model,
    write_hyperion,
    write_kaldi_plda,
    write_pair,
    write_vbx,
)
from duoplda.model.collapse import Loss
from duoplda.workflows import option
from duoplda.workflows._files import Note, PathLike, file_hashes, silent
from duoplda.workflows.option import refuse

PYANNOTE_DIMENSIONS = 128  # pyannote cuts every PLDA to 128, and VBx does unless --lda-dim says otherwise


def convert(
    source: option.ModelToConvert,
    out: option.ConvertedOut,
    *,
    to: option.Format = None,
    transform: option.Transform = None,
    one_session: option.OneSession = False,
    text: option.Text = False,
    force: option.Force = False,
    command: str | None = None,
    note: Note = silent,
) -> str:
    """Write a PLDA model in another format, and return a line that says what was written; warnings say what is lost."""
    suffix = Path(out).suffix.lower()
    wanted = to or {".npz": "vbx", ".safetensors": "duoplda", ".h5": "hyperion"}.get(suffix, "kaldi")
    pair = wanted == "pyannote" or (wanted == "vbx" and suffix != ".npz")
    refuse(text and wanted != "kaldi", f"`text` is for the format kaldi, not {wanted}")
    cause = f"`to` {wanted} writes two files into a folder, whose name cannot end in .npz"
    refuse(pair and suffix == ".npz", cause)
    cause = "`one_session` is for the formats of other tools: ours keeps the session level"
    refuse(one_session and wanted == "duoplda", cause)
    if not pair:
        check_output(out, force, inputs=[source, transform])
    backend, foreign = load_model(source, transform)
    for remark in foreign.notes if foreign else ():
        warnings.warn(f"{source}: {remark}", UserWarning, stacklevel=2)
    if pair:
        _write_pair(Path(out), wanted, backend, one_session, force, [source, transform], note)
    elif wanted != "duoplda":
        _write_plda(out, wanted, backend, one_session, text, force, note)
    elif foreign is None:
        raise DuopldaError(f"{source}: is a model of duoplda already; name another format with `to`")
    else:
        provenance = {"command": command, "sha256": file_hashes([source, transform])}
        backend.save(out, provenance=provenance, force=force)
    d, ny = backend.plda_.speaker_loadings_.shape
    return f"{wanted}, {d} dimensions, {ny} speaker factors, from {foreign.format if foreign else 'duoplda'}"


def load_model(path: PathLike, transform: PathLike | None = None) -> tuple[Backend, ForeignModel | None]:
    """Read any model as a `Backend`, and the `ForeignModel` it was made from, which is None for a model of ours.

    A foreign model has only the preprocessing that a second file `transform` holds.
    """
    if is_container(path):
        if transform is not None:
            raise DuopldaError(f"{path}: is a model of duoplda, which has its preprocessing: leave out {transform}")
        return Backend.load(path), None
    foreign = read_model(path, transform)
    with error_prefix(str(path)):
        return Backend.from_foreign(foreign), foreign


def _write_plda(
    out: PathLike, to: str, backend: Backend, one_session: bool, text: bool, force: bool, note: Note
) -> None:
    """Write only the PLDA, and report what is lost."""
    model, loss = backend.collapsed(one_session=one_session)
    others = [*backend.steps_, *(["calibration"] if backend.calibration_ is not None else [])]
    if others:
        warnings.warn(
            f"only the PLDA is written: the other tool must do the rest ({', '.join(others)})",
            UserWarning,
            stacklevel=3,
        )
    raised = 0
    if to == "kaldi":
        write_kaldi_plda(out, model, text=text, force=force)
    elif to == "hyperion":
        write_hyperion(out, model, force=force)
    else:
        raised = write_vbx(out, model, force=force)
    _say_lost(loss, raised, note)


def _write_pair(
    out: Path, to: str, backend: Backend, one_session: bool, force: bool, inputs: list[PathLike | None], note: Note
) -> None:
    """Write PLDA and preprocessing as two files in a folder, and report what is lost."""
    with error_prefix(str(out)):
        transform = backend.folded()
        model, loss = backend.collapsed(one_session=one_session)
        d = len(model.mean)
        if to == "pyannote" and d > PYANNOTE_DIMENSIONS:
            raise DuopldaError(f"pyannote uses 128 dimensions of a PLDA, and this has {d}: train with --lda 128")
    paths, raised = write_pair(out, transform, model, to, force=force, inputs=inputs)
    note(f"written: {', '.join(map(str, paths))}")
    if backend.calibration_ is not None:
        warnings.warn("the calibration is not written: neither tool has one", UserWarning, stacklevel=3)
    if d > PYANNOTE_DIMENSIONS:
        said = f"the PLDA has {d} dimensions: VBx uses the number that its option --lda-dim gives"
        warnings.warn(said, UserWarning, stacklevel=3)
    _say_lost(loss, raised, note)


def _say_lost(loss: Loss, raised: int, note: Note) -> None:
    """Report what the other format cannot hold; a loss of variance is a warning."""
    if raised:
        note(f"{raised} directions without speaker variance got a tiny variance: VBx divides by each")
    if loss.lossless:
        note(loss.sentence())
    else:
        warnings.warn(loss.sentence(), UserWarning, stacklevel=4)
