"""Commands hold no logic: each parses its options, calls the one workflow that does its work, and prints."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
from typer.models import OptionInfo

from cli_cases import done
from duoplda.cli import COMMANDS

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import import_graph as graph


def command_of(name):
    """The syntax of the function that a command is."""
    function = inspect.unwrap(getattr(importlib.import_module(f"duoplda.cli.{name}"), name))
    return ast.parse(inspect.getsource(function)).body[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_calls_one_workflow(name):
    calls = [node.func for node in ast.walk(command_of(name)) if isinstance(node, ast.Call)]
    workflows = [ast.unparse(call) for call in calls if ast.unparse(call).startswith("workflow.")]
    assert workflows == ["workflow.write_demo_data" if name == "demo" else f"workflow.{name}"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_computes_nothing_and_checks_nothing(name):
    """It raises nothing, has no loop, and its arithmetic is that of the clock (of the demonstration)."""
    forbidden = ast.Raise | ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.Try | ast.Lambda
    nodes = list(ast.walk(command_of(name)))
    assert [ast.unparse(node) for node in nodes if isinstance(node, forbidden)] == []
    hidden = {id(inner) for node in nodes if isinstance(node, ast.arg) for inner in ast.walk(node)}  # types: A | None
    sums = [ast.unparse(n) for n in nodes if isinstance(n, ast.BinOp) and id(n) not in hidden]
    assert [text for text in sums if text not in ("time.monotonic() - begin", "out / 'report.html'")] == []


def test_commands_know_the_workflows_and_no_other_room():
    known = {graph.room(i.module) for i in graph.everything() if graph.room(i.importer) == "cli"}
    assert known == {"cli", "duoplda", "errors", "workflows"}  # of the package itself, the version


def parameters(module, name):
    return inspect.signature(getattr(importlib.import_module(f"duoplda.{module}.{name}"), name)).parameters


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "demo"])
def test_a_workflow_takes_the_options_of_its_command_under_the_same_names_with_the_same_defaults(name):
    command, workflow = parameters("cli", name), parameters("workflows", name)
    more = {p for p, parameter in workflow.items() if parameter.kind is inspect.Parameter.VAR_KEYWORD}
    for option in set(command) - {"quiet", "json"}:
        assert option in workflow or more, option
        if option in workflow and option not in ("speaker_factors", "session_factors"):  # full: None
            typed, default = command[option].default, workflow[option].default
            assert typed is None or typed == default, option


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "demo"])
def test_errors_of_a_workflow_name_options(name):
    source = inspect.getsource(importlib.import_module(f"duoplda.workflows.{name}"))
    errors = re.findall(r"OptionsError\((.*?)\)\n", source, re.DOTALL)
    assert {word for text in errors for word in re.findall(r"`(\w+)`", text)} <= set(parameters("cli", name))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_texts_are_sentences(name):
    """Each begins with a capital and ends in a full stop, or in what is taken unless the option is given."""
    text = " ".join(done(name, "--help").output.split())
    command = importlib.import_module(f"duoplda.cli.{name}")
    for parameter in inspect.signature(getattr(command, name), eval_str=True).parameters.values():
        (info,) = parameter.annotation.__metadata__
        assert re.fullmatch(r"[A-Z].*\.(  \[.*\])?", info.help), (parameter.name, info.help)
        if isinstance(info, OptionInfo):  # old releases of typer do not print the help of arguments
            assert " ".join(info.help.split()).split("  [")[0][:30] in text
