"""The command line: one file per command. A command parses its options, calls the library and prints."""

from __future__ import annotations

import importlib

import typer

from duoplda.cli._common import guarded

COMMANDS = ("demo", "train", "enroll", "score", "info", "convert", "evaluate", "calibrate", "report")
EPILOG = """\b
Exit codes: 0 done, 1 failure, 2 usage, 3 missing ids, 130 interrupted.

\b
Example:
  duoplda demo --out demo
"""

app = typer.Typer(
    name="duoplda",
    help="PLDA with speaker, session and channel levels: from embeddings to likelihood ratios.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def _top(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from duoplda import __version__

        print(__version__)
        raise typer.Exit(0)


for _name in COMMANDS:
    _module = importlib.import_module(f"duoplda.cli.{_name}")
    app.command(_name, epilog=_module.EXAMPLE)(guarded(getattr(_module, _name)))
