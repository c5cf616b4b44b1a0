"""The reference in docs/api lists every public name, and each has an example that is run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import duoplda

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "api").glob("*.rst"))
# Rooms and their files hand these on under the names that users type.
FLAT = {
    "duoplda.evaluation.metrics": "duoplda.metrics",
    "duoplda.evaluation.resampling": "duoplda.metrics",
    "duoplda.evaluation.partitions": "duoplda.metrics",
    "duoplda.evaluation.support": "duoplda.metrics",
    "duoplda.evaluation.calibration": "duoplda.calibration",
    "duoplda.report.plots": "duoplda.plots",
    "duoplda.estimators.scorers": "duoplda.metrics",
    "duoplda.estimators.preprocessing": "duoplda.preprocessing",
}


def reference() -> dict[str, list[str]]:
    """Module -> names that the pages list."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        module, inside = "", False
        for line in page.read_text(encoding="utf-8").splitlines():
            if given := re.match(r"\.\. module:: (\S+)", line):
                module = given[1]
            inside = line.startswith(".. autosummary::") or (inside and (not line or line.startswith("   ")))
            if inside and (name := re.fullmatch(r"   (\w+)", line)):
                found.setdefault(module, []).append(name[1])
    return found


REFERENCE = reference()
LISTED = [(module, name) for module, names in REFERENCE.items() for name in names]


def public_modules() -> list[str]:
    """Modules without an underscore in their names that say what is public."""
    names = [m.name for m in pkgutil.walk_packages(duoplda.__path__, "duoplda.")]
    public = [name for name in ["duoplda", *names] if not any(part.startswith("_") for part in name.split("."))]
    public.remove("duoplda.arrays")  # its __all__ is for the other rooms, not for users
    return [name for name in public if re.search(r"^__all__", source(name), re.MULTILINE) or name in REFERENCE]


def source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def loaded(module: str):
    if module == "duoplda.engines.dask":
        pytest.importorskip("dask")
    if module == "duoplda.voices":
        pytest.importorskip("sqlalchemy")
    return importlib.import_module(module)


def test_the_pages_are_read():
    assert {"duoplda", "duoplda.io", "duoplda.metrics", "duoplda.plots"} <= set(REFERENCE)
    assert len(LISTED) > 150
    assert len(set(LISTED)) == len(LISTED)


def test_every_module_with_public_names_is_there():
    missing = {FLAT.get(name, name) for name in public_modules()} - set(REFERENCE)
    assert missing == set()
    for module in REFERENCE:
        assert not any(part.startswith("_") for part in module.split("."))


@pytest.mark.parametrize("module", public_modules())
def test_the_reference_is_that_of_the_module(module):
    """Names that another public module lists under the same object need not be listed again."""
    found, listed = loaded(module), REFERENCE[FLAT.get(module, module)]
    if hasattr(found, "__all__"):
        others = {id(getattr(duoplda, name)) for name in duoplda.__all__ if name != "__version__"}
        own = [name for name in found.__all__ if module == "duoplda" or id(getattr(found, name)) not in others]
        assert set(own) <= set(listed)
        if module not in FLAT:
            assert set(listed) == set(own)
    for name in listed:
        assert not name.startswith("_") or name == "__version__"
        assert hasattr(loaded(FLAT.get(module, module)), name)


def examples(thing: object) -> int:
    finder = doctest.DocTestFinder(recurse=inspect.isclass(thing))
    return sum(len(test.examples) for test in finder.find(thing, "thing", module=False))


@pytest.mark.parametrize(("module", "name"), LISTED, ids=".".join)
def test_each_has_a_docstring_with_an_example(module, name):
    thing = getattr(loaded(module), name)
    if not callable(thing):
        assert isinstance(thing, (str, int, tuple, dict))  # a constant
        return
    assert inspect.getdoc(thing)
    assert ">>>" in (thing.__doc__ or "") or examples(thing), f"{module}.{name} has no example"


def test_names_that_pages_import_are_in_the_reference():
    """Programs on pages and in the gallery use public names only."""
    texts = [p.read_text(encoding="utf-8") for p in DOCS.glob("*.md")]
    code = [block for text in texts for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    code += [p.read_text(encoding="utf-8") for p in (DOCS.parent / "examples/gallery").glob("*.py")]
    imported = {
        (module, name.split(" as ")[0].strip())
        for block in code
        for module, names in re.findall(r"^\s*from (duoplda[\w.]*) import (.+)$", block, re.MULTILINE)
        for name in names.strip("()").split(",")
    }
    assert len(imported) > 30
    known = {*LISTED, *(tuple(module.rsplit(".", 1)) for module in REFERENCE if "." in module)}
    assert sorted(imported - known) == []
