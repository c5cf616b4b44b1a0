"""The help of each command of the command line, as `duoplda COMMAND --help` prints it."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class CommandHelp(SphinxDirective):
    """One section for each command, in the order of `duoplda --help`."""

    def run(self) -> list[nodes.Node]:
        from typer.testing import CliRunner

        from duoplda.cli import COMMANDS, app

        found: list[nodes.Node] = []
        for command in COMMANDS:
            help_ = CliRunner().invoke(
                app, [command, "--help"], prog_name="duoplda", terminal_width=88, env={"COLUMNS": "88"}
            )
            section = nodes.section(ids=[f"duoplda-{command}"], names=[f"duoplda {command}"])
            section += nodes.title("", f"duoplda {command}")
            section += nodes.literal_block(help_.output, help_.output, language="text")
            found.append(section)
        return found


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
