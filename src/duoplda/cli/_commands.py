"""Making a command from its workflow: the parameters of the workflow become the options of the command.

`duoplda score` is the function `score` of `duoplda.cli.score`. Its docstring is the help; it runs the function `score`
of `duoplda.workflows.score`, and prints what that returns. The types and the help of options are in
`duoplda.workflows.option`, their names and defaults in the signature of the workflow. The signature is read from the
source, because importing a workflow would import SciPy and scikit-learn, for which the help must not wait.
"""

import ast
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import typer

from duoplda import workflows
from duoplda.cli._terminal import command_line, errors_in_one_line, print_note, progress_bar
from duoplda.errors import OptionsError
from duoplda.workflows import option

FLAGS = {
    "quiet": typer.Option(False, "--quiet", "-q", help="Print no notes and no progress; warnings and errors stay."),
    "json": typer.Option(False, "--json", help="Print the result as JSON on standard output."),
}


@dataclass(frozen=True)
class Run:
    """What was typed, and the one workflow that does its work."""

    name: str
    given: Mapping[str, Any]  # the values of all options, by the names of the parameters
    quiet: bool
    json: bool
    note: option.Note

    def __call__(self, doing: str | None = None, **more: Any) -> Any:
        """Run the workflow and return its result; if `doing` names the work, a progress bar shows it.

        `more` are parameters of the workflow that are not options. `note` and `show`, for messages and progress, and
        `command`, the command line, are passed to workflows that have them.
        """
        workflow = getattr(importlib.import_module(f"duoplda.workflows.{self.name}"), self.name)
        with progress_bar(None if self.quiet else doing) as show:
            told = {"note": self.note, "show": show, "command": command_line()}
            taken = inspect.signature(workflow).parameters
            return workflow(**self.given, **{name: told[name] for name in told if name in taken}, **more)


class Declared(NamedTuple):
    """A parameter of a workflow that is an option of its command."""

    name: str
    kind: Any
    option: option.Option
    default: Any  # ...: there is none
    flag: str  # how it is typed

    def parameter(self) -> inspect.Parameter:
        """The parameter of a function from which typer makes the option."""
        kind, default = _type_of_typer(self.kind), self.default
        if self.option.read is not None:  # typer takes it as a text; `value` reads it, so that an error is one line
            kind = str | None if default is None else str
            default = default if default in (..., None) else str(default)
        names = [] if self.option.argument else [self.flag]
        if kind == bool | None or (kind is bool and default):
            names = [f"{self.flag}/--no-{self.flag[2:]}"]
        shown = (typer.Argument if self.option.argument else typer.Option)(
            self.option.typed or (None if default == () else default),
            *names,
            help=self.option.help,
            metavar=self.option.metavar,
            min=self.option.min,
            max=self.option.max,
        )
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=kind)

    def value(self, typed: Any) -> Any:
        """The value for the workflow from what was typed."""
        if typed is None:
            return self.default
        if self.option.read is None:
            return typed.value if isinstance(typed, Enum) else typed
        try:
            return self.option.read(typed)
        except ValueError:
            raise OptionsError(f"`{self.name}` {typed!r} must be {self.option.must_be}") from None


def command(name: str, flags: Sequence[str]) -> tuple[Callable[..., None], str]:
    """The function of a command for typer, with the options of its workflow and these flags; and its examples."""
    module = importlib.import_module(f"duoplda.cli.{name}")
    present = getattr(module, name)
    options = {declared.name: declared for declared in options_of(name)}

    def run(quiet: bool = False, json: bool = False, **typed: Any) -> None:
        with errors_in_one_line({name: declared.flag for name, declared in options.items()}):
            refuse_second_reader({options[name].flag: value for name, value in typed.items()})
            given = {name: options[name].value(value) for name, value in typed.items()}
            present(Run(present.__name__, given, quiet, json, (lambda _: None) if quiet else print_note))

    parameters = [declared.parameter() for declared in options.values()]
    for flag in flags:
        parameters.append(inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=FLAGS[flag], annotation=bool))
    run.__doc__ = present.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run, module.EXAMPLES


def options_of(name: str) -> list[Declared]:
    """The parameters of a workflow that are annotated with a name of `option`, read from its source."""
    source = Path(workflows.__path__[0], f"{name}.py").read_text(encoding="utf-8")
    (workflow,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    positional = workflow.args.args
    required = [None] * (len(positional) - len(workflow.args.defaults))
    defaults = [*required, *workflow.args.defaults, *workflow.args.kw_defaults]
    options = []
    for argument, default in zip([*positional, *workflow.args.kwonlyargs], defaults, strict=True):
        annotation = argument.annotation
        if isinstance(annotation, ast.Attribute) and ast.unparse(annotation.value) == "option":
            kind, told = get_args(getattr(option, annotation.attr))
            told = option.Option(told) if isinstance(told, str) else told
            value = ... if default is None else ast.literal_eval(default)
            flag = f"--{told.name or argument.arg.replace('_', '-')}"
            options.append(Declared(argument.arg, kind, told, value, flag))
    return options


def _type_of_typer(kind: Any) -> Any:
    """The type for typer: a path becomes `Path`, a sequence a list, and a choice of words an enumeration."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    first = parts[0]
    if get_origin(first) is Sequence:
        inner = _type_of_typer(get_args(first)[0])
        return list[inner] | None  # type: ignore[valid-type]
    if get_origin(first) is Literal:
        enumeration: Any = StrEnum  # mypy refuses an enumeration of words that are not literals
        first = enumeration("Choice", [(word, word) for word in get_args(first)])
    elif os.PathLike[str] in parts:  # `str | PathLike`: a path may also be a text
        first = Path
    return first | None if NoneType in parts else first


def refuse_second_reader(typed: Mapping[str, Any]) -> None:
    """Refuse a second option that reads standard input or the same pipe: each can be read only once."""
    first: dict[str, str] = {}
    for flag, value in typed.items():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str | Path) and (str(path) == "-" or Path(path).is_fifo()):
                if str(path) in first:
                    raise OptionsError(f"{first[str(path)]} and {flag} cannot both read {path}: write one to a file")
                first[str(path)] = flag
