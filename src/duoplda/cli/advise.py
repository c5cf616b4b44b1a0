"""`duoplda advise`: what labels can teach a model, what training will choose for them, and what to do."""

from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import Terminal, result, result_json, work_options

EXAMPLES = """duoplda advise --labels table.csv
duoplda advise --speakers utt2spk --sessions utt2sess --embeddings xvectors.scp
duoplda advise --labels meta.csv --columns session=call_id,speaker=who
duoplda advise --speakers utt2spk --write-sessions utt2sess
duoplda advise --labels x.parquet --json"""


def advise(
    labels: options.Labels = None,
    speakers: options.Speakers = None,
    sessions: options.TrainingSessions = None,
    channels: options.TrainingChannels = None,
    embeddings: Annotated[File, option("Embeddings, whose number of dimensions is used; vectors are not read.")] = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    write_sessions: Annotated[
        File, option("Write the sessions that the ids seem to name: lines `recording session`, or .csv, .tsv.")
    ] = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Say what labels can teach a model, what `duoplda train` will choose for them and why, and which options pay.

    docs/choosing.md has the same chart, with what was measured. The last line is a command to paste. Some limits depend
    on the number of dimensions: give --embeddings to hear of them.

    Where no sessions are given, and ids look like copies (utt1, utt1-noise) or VoxCeleb's id/video/utterance, it says
    which sessions these are, and how to give them to `duoplda train`.
    """
    typed = work_options(locals())
    from duoplda.workflows import advise as workflow

    advice, commands = workflow.advise(**typed, note=Terminal(quiet).note)
    if json:
        result_json({**advice.as_dict(), "commands": commands})
    else:
        result("\n".join([str(advice), "", *commands]))
