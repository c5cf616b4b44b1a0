"""The command line: one file per command.

A command runs the one function of `duoplda.workflows` that does its work, and prints what that returns. The parameters
of this function are the options of the command. `_commands` makes only the command that is typed, and the function is
imported only when it runs, so that the help starts at once.
"""

from textwrap import indent
from typing import Any

import typer
import typer.core
import typer.main

from duoplda.cli._commands import command
from duoplda.cli._terminal import result, standard_streams

# What each command does, in a line that fits a terminal of 80 columns.
SUMMARIES = {
    "demo": "Make data, train, score and write a report.",
    "embed": "Make embeddings of audio, of its windows and of copies.",
    "advise": "Say what labels allow a model to learn, before training.",
    "split": "Deal speakers to training, development and evaluation.",
    "train": "Train a model on embeddings with speakers and sessions.",
    "adapt": "Adapt a model to recordings of another domain.",
    "enroll": "Enroll speakers, or change a file of enrolled speakers.",
    "score": "Score trials: log-likelihood ratios for one speaker or two.",
    "voices": "List and change the known voices of a registry.",
    "identify": "Say which of the known voices recordings are of.",
    "cluster": "Put recordings into clusters, one for each speaker.",
    "link": "Find the same people among speakers of several files.",
    "diarize": "Find who speaks when in files.",
    "serve": "Answer who is speaking, over HTTP and in a page.",
    "info": "Print what is in a model, or who is enrolled in a file.",
    "convert": "Convert models of other tools to ours, and ours to theirs.",
    "evaluate": "Print how good scores, clusters or diarisation are.",
    "calibrate": "Learn to turn scores into likelihood ratios, and apply it.",
    "report": "Write one HTML page on scores: metrics and curves.",
    "case": "Compare recordings for a court: a ratio and its validation.",
}
COMMANDS = tuple(SUMMARIES)
# Commands without --quiet, as they print no notes; and without --json, as they print the name of a file.
WITHOUT = {"quiet": ("info", "serve"), "json": ("demo", "serve", "convert", "report")}
EXAMPLE = "\b\nExample:\n"  # \b keeps the lines that follow as they are
EXIT_CODES = "\b\nExit codes: 0 done, 1 failure, 2 usage, 3 missing ids, 130 interrupted.\n\n"


class Commands(typer.core.TyperGroup):
    """All commands by name and summary; only the one that is typed is made."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        if name is None or listed is None:
            return name, listed, rest
        flags = [flag for flag, others in WITHOUT.items() if name not in others]
        made, examples = command(name, flags)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name, epilog=EXAMPLE + indent(examples, "  "))(made)
        return name, typer.main.get_command(alone), rest


app = typer.Typer(
    name="duoplda",
    cls=Commands,
    help="PLDA with speaker, session and channel levels: from embeddings to likelihood ratios.",
    epilog=f"{EXIT_CODES}{EXAMPLE}  duoplda demo --out demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def run() -> None:
    """Run the command that was typed, also where a standard stream is closed."""
    with standard_streams():
        app(prog_name="duoplda")


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Print the version, and end.")) -> None:
    if version:
        from duoplda import __version__

        result(__version__)
        raise typer.Exit(0)


for _name, _summary in SUMMARIES.items():
    app.command(_name, short_help=_summary)(lambda: None)  # a placeholder with the summary, for the list of commands
