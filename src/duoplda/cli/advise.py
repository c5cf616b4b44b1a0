"""`duoplda advise`: what labels can teach a model, what training will choose for them, and what to do."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json

EXAMPLES = """duoplda advise --labels table.csv
duoplda advise --speakers utt2spk --sessions utt2sess --embeddings xvectors.scp
duoplda advise --labels meta.csv --columns session=call_id,speaker=who
duoplda advise --speakers utt2spk --write-sessions utt2sess
duoplda advise --labels x.parquet --json"""


def advise(run: Run) -> None:
    """Say what labels can teach a model, what `duoplda train` will choose for them and why, and which options help.

    It looks at labels only: recordings may still be bad, or unlike those in use. docs/choosing.md explains the letters,
    with measured figures. The last line is a command to paste. Some limits depend on the number of dimensions: give
    --embeddings to learn about them.

    If no sessions are given, and ids look like copies (utt1, utt1-noise) or like VoxCeleb's id/video/utterance, it says
    which sessions these would be, and how to give them to `duoplda train`.
    """
    advice, commands = run()
    if run.json:
        result_json({**advice.as_dict(), "commands": commands})
    else:
        result("\n".join([str(advice), "", *commands]))
