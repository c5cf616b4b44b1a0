"""The command line: one file per command. Commands parse, call and print; heavy imports are inside them."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import typer

from duoplda.cli._common import guarded

COMMANDS = ("demo", "train", "score", "info", "convert", "evaluate", "calibrate", "report")
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
    if find_spec(f"duoplda.cli.{_name}") is not None:
        _module = importlib.import_module(f"duoplda.cli.{_name}")
        _command = getattr(_module, _name)
        app.command(_name, epilog=getattr(_module, "EXAMPLE", None))(guarded(_command))


def main() -> None:
    """The entry point `duoplda`."""
    app(prog_name="duoplda")
