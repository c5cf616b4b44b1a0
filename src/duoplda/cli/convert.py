"""`duoplda convert`: convert models of other tools to ours, and ours to theirs."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result

EXAMPLES = """duoplda convert plda model.safetensors
duoplda convert plda.npz model.safetensors --transform xvec_transform.npz
duoplda convert model.safetensors folder --to pyannote
duoplda convert model.safetensors plda.npz --to vbx
duoplda convert model.safetensors plda.h5 --to hyperion"""


def convert(run: Run) -> None:
    """Convert a PLDA model. The format of IN is found by its content.

    These are read: Kaldi Plda (binary, text), VBx and pyannote plda.npz, wespeaker and hyperion HDF5, and our own
    files; with --transform the pair of VBx (plda, transform.h5) or of pyannote and DiariZen (plda.npz,
    xvec_transform.npz). These are written: kaldi, hyperion (an SPLDA; OUT ends in .h5), duoplda (OUT ends in
    .safetensors), and into the folder OUT the pairs vbx and pyannote, with the preprocessing; if OUT ends in .npz, it
    is a plda.npz without preprocessing. None of these tools has a session level: it becomes noise of each recording,
    and a warning says how much that is. With --one-session it becomes part of the speaker instead, which is right for
    diarisation if files were the sessions in training.
    """
    converted = run()
    result(f"{run.given['out']}: {converted}")
