"""The command line: one file per command.

A command parses its options, calls the one function of `duoplda.workflows` that does its work, and prints what that
gives. What the function needs is imported when the command runs, so that the help starts at once.
"""

import importlib
from textwrap import indent

import typer

from duoplda.cli._terminal import guarded

COMMANDS: tuple[str, ...] = ("demo", "advise", "train", "adapt", "enroll", "score", "cluster", "link", "diarize")
COMMANDS += ("info", "convert", "evaluate", "calibrate", "report")
EXAMPLE = "\b\nExample:\n"  # \b keeps the lines that follow as they are
EXIT_CODES = "\b\nExit codes: 0 done, 1 failure, 2 usage, 3 missing ids, 130 interrupted.\n\n"

app = typer.Typer(
    name="duoplda",
    help="PLDA with speaker, session and channel levels: from embeddings to likelihood ratios.",
    epilog=f"{EXIT_CODES}{EXAMPLE}  duoplda demo --out demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Print the version, and end.")) -> None:
    if version:
        from duoplda import __version__

        print(__version__)
        raise typer.Exit(0)


for _name in COMMANDS:
    _module = importlib.import_module(f"duoplda.cli.{_name}")
    app.command(_name, epilog=EXAMPLE + indent(_module.EXAMPLES, "  "))(guarded(getattr(_module, _name)))
