"""Commands hold no logic: each runs its one workflow, whose parameters are its options, and prints what that gives."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

from cli_cases import done, duoplda
from duoplda import cli, workflows
from duoplda.cli import COMMANDS
from duoplda.cli._commands import options_of
from duoplda.workflows import option

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import import_graph as graph


def command_of(name):
    """The syntax of the function that a command is."""
    source = Path(cli.__path__[0], f"{name}.py").read_text()
    (function,) = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name]
    return function


def workflow_of(name):
    return getattr(importlib.import_module(f"duoplda.workflows.{name}"), name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_its_workflow_once(name):
    calls = [ast.unparse(node.func) for node in ast.walk(command_of(name)) if isinstance(node, ast.Call)]
    assert calls.count("run") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_computes_nothing_and_checks_nothing(name):
    """It has no loop, and its arithmetic is that of the clock (of the demonstration)."""
    forbidden = ast.Raise | ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.Try | ast.Lambda
    nodes = list(ast.walk(command_of(name)))
    assert [ast.unparse(node) for node in nodes if isinstance(node, forbidden)] == []
    sums = [ast.unparse(n) for n in nodes if isinstance(n, ast.BinOp)]
    assert [text for text in sums if text not in ("time.monotonic() - begin", "run.given['out'] / 'report.html'")] == []


def test_commands_know_the_workflows_and_no_other_room():
    known = {graph.room(i.module) for i in graph.everything() if graph.room(i.importer) == "cli"}
    assert known == {"cli", "duoplda", "errors", "workflows"}  # of the package itself, the version


# -- options are the parameters of workflows


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_read_from_the_source_as_python_reads_them(name):
    """Names, types, help and defaults; what is no option has a default of its own, as no user gives it."""
    workflow = workflow_of(name)
    hints = get_type_hints(workflow, vars(sys.modules[workflow.__module__]) | {"Scores": object}, include_extras=True)
    options = {declared.name: declared for declared in options_of(name)}
    for parameter in inspect.signature(workflow).parameters.values():
        kind, *more = get_args(hints[parameter.name]) or (None,)
        if more and isinstance(more[0], option.Option | str):
            declared = options.pop(parameter.name)
            assert declared.kind == kind
            assert declared.option in (more[0], option.Option(str(more[0])))
            assert declared.default == (... if parameter.default is parameter.empty else parameter.default)
        else:
            assert parameter.kind is parameter.VAR_KEYWORD or parameter.default is not parameter.empty
    assert options == {}


def test_every_declared_option_is_one_of_a_command():
    sources = [Path(workflows.__path__[0], f"{name}.py").read_text() for name in COMMANDS]
    used = {name for source in sources for name in re.findall(r"\boption\.(\w+)", source)}
    declared = {name for name, kind in vars(option).items() if get_origin(kind) is Annotated}
    assert len(declared) > 150
    assert declared <= used


@pytest.mark.parametrize("name", COMMANDS)
def test_errors_of_a_workflow_name_options(name):
    source = inspect.getsource(importlib.import_module(f"duoplda.workflows.{name}"))
    nodes = [*ast.walk(ast.parse(source))]
    errors = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) in ("OptionsError", "refuse")]
    causes = [n.value for n in nodes if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "cause"]
    words = {word for node in [*errors, *causes] for word in re.findall(r"`(\w+)`", ast.unparse(node))}
    assert words <= {declared.name for declared in options_of(name)}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_texts_are_sentences(name):
    """Each begins with a capital and ends in a full stop, or in what is taken unless the option is given."""
    text = " ".join(done(name, "--help").output.split())
    for declared in options_of(name):
        info = declared.option
        assert re.fullmatch(r"[A-Z].*\.(  \[.*\])?", info.help), (declared.name, info.help)
        if not info.argument:  # old releases of typer do not print the help of arguments
            assert declared.flag in text
            assert " ".join(info.help.split()).split("  [")[0][:30] in text


@pytest.mark.parametrize(("arguments", "message"), [
    (["train", "--priors", "0.5,2"], "--priors '0.5,2' must be probabilities between 0 and 1"),
    (["train", "--enrolment", "2y3"], "--enrolment '2y3' must be sessions x recordings"),
    (["train", "--learn-channels", "0"], "--learn-channels '0' must be a whole number from 1 on or auto"),
    (["train", "--columns", "session="], "--columns 'session=' must be meanings and names"),
])  # fmt: skip
def test_a_text_that_makes_no_sense_is_refused_with_what_to_type(tmp_path, arguments, message):
    command, *options = arguments
    result = duoplda(command, "--embeddings", "x", "--speakers", "s", "--out", tmp_path / "m", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"duoplda: error: {message}" in result.stderr
    assert result.stderr.endswith("(--help shows how)\n")
