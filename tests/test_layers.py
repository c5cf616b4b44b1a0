"""The house: imports go one way, no room reaches into another's private things, and the drawing is up to date."""

import ast
import importlib
import operator
import re
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import import_graph as graph

modules, everything = cache(graph.modules), cache(graph.everything)  # the files are read once
RANK = {name: i for i, name in enumerate(["duoplda", *graph.ROOMS])} | dict.fromkeys(graph.FACADES, 99)


def test_every_module_has_a_room():
    assert {graph.room(m) for m in modules()} <= set(RANK)


def test_imports_go_one_way():
    wrong = [
        f"{i.importer}:{i.line} imports {i.module}"
        for i in everything()
        if graph.room(i.importer) != graph.room(i.module)
        and i.module != "duoplda"
        and RANK[graph.room(i.importer)] < RANK[graph.room(i.module)]
        and i.importer != "duoplda"
    ]
    assert not wrong


def test_there_is_no_cycle():
    """Of modules, inside a room too. (The package itself only names its rooms, and imports them when asked.)"""
    after = {}
    for i in everything():
        if i.module != "duoplda" and i.importer != i.module:
            after.setdefault(i.importer, set()).add(i.module)
    done, path = set(), []

    def visit(module):
        if module in path:
            pytest.fail(" -> ".join([*path[path.index(module) :], module]))
        if module not in done:
            path.append(module)
            for other in sorted(after.get(module, ())):
                visit(other)
            done.add(path.pop())

    for module in modules():
        visit(module)


def private(name):
    return name is not None and name.startswith("_") and not name.startswith("__")


def test_nothing_private_is_used_from_another_room():
    wrong = []
    for i in everything():
        if graph.room(i.importer) != graph.room(i.module) and any(map(private, [*i.module.split("."), i.name])):
            wrong.append(f"{i.importer}:{i.line} imports {i.module} {i.name or ''}")
    for module, path in modules().items():
        names = modules_of_others(module, path)
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and private(node.attr) and getattr(node.value, "id", None) in names:
                wrong.append(f"{module}:{node.lineno} uses {node.value.id}.{node.attr}")
    assert not wrong


@cache
def nodes(path):
    """The syntax of a file."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def modules_of_others(module, path):
    """Names under which a module knows modules of other rooms."""
    known, names = modules(), set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known and graph.room(inner) != graph.room(module):
                    names.add(alias.asname or alias.name)
    return names


def test_the_page_is_what_the_tool_draws():
    """Arrows and sizes: `python tools/import_graph.py` draws them again."""
    assert graph.PAGE.read_text(encoding="utf-8") == graph.page()


def test_the_page_names_the_rooms_in_their_order():
    text = graph.PAGE.read_text(encoding="utf-8")
    assert " -> ".join(graph.ROOMS) in text
    table = re.findall(r"^\| (`.*?) \| ", text, re.M)
    named = [
        name.removesuffix(".py").strip("/") for cell in table for name in re.findall(r"`([a-z]+(?:/|\.py))`", cell)
    ]
    assert named[: len(graph.ROOMS)] == graph.ROOMS
    for room, cell in re.findall(r"^\| `([a-z]+)/` \| (.*) \|$", text, re.M):  # and files that are there
        assert all((graph.SOURCE / "duoplda" / room / name).exists() for name in re.findall(r"`(\w+\.py)`", cell)), room


@pytest.mark.parametrize(
    ("flat", "room"),
    [
        ("calibration", "evaluation.calibration"),
        ("plots", "report.plots"),
        ("preprocessing", "estimators.preprocessing"),
    ],
)
def test_flat_names_are_those_of_the_rooms(flat, room):
    flat, room = (importlib.import_module(f"duoplda.{name}") for name in (flat, room))
    assert flat.__all__ == room.__all__
    assert all(getattr(flat, name) is getattr(room, name) for name in room.__all__)


def test_the_two_walks_name_what_there_is():
    """Every step of docs/architecture.md is in the file, and under the name, that stands beside it."""
    text = (Path(__file__).parents[1] / "docs/architecture.md").read_text()
    steps = [row for row in re.findall(r"^\|.*?\| (`.*) \|$", text, re.M) if ".py`" in row]
    assert len(steps) > 15
    for step in steps:
        file = None
        for name in re.findall(r"`([\w./]+)`", step):
            if name.endswith(".py"):
                file = name
            elif file is not None:
                module = importlib.import_module(f"duoplda.{file.removesuffix('.py').replace('/', '.')}")
                assert operator.attrgetter(name)(module) is not None, step
