"""The user guide, docs/index.md and docs/install.md: code and commands run, and figures are those of the results."""

from __future__ import annotations

import re
import tomllib

import numpy as np
import pytest

from cli_cases import duoplda
from test_docs_pages import figures, prose, resolved, run, text
from test_examples import ROOT

GUIDE = ("sessions", "kinds", "shrinkage", "calibration", "court", "scale", "adaptation", "clustering")
GUIDE += ("diarization", "normalization")
NEW = ("index", "install", "guide", "sessions", "kinds", "shrinkage", "court", "scale", "contributing", "citing")
NEW += ("audio", "diarization")
SOURCES = ("results", "adaptation", "clustering", "normalization", "model", "choosing", "glossary")


@pytest.mark.parametrize("page", ["index", "sessions", "kinds", "shrinkage", "scale"])
def test_code_runs(page):
    assert run(f"docs/{page}.md")


def test_claims_of_the_code():
    kinds = run("docs/kinds.md")
    assert set(kinds["plda"].channels_) == {"phone", "clean"}
    found = run("docs/shrinkage.md")["plda"]
    assert found.calibration_ is not None
    assert 0 < found.cost_ < 1
    scale = run("docs/scale.md")
    whole = scale["PLDA"]().fit(scale["X"], scale["speaker"], session=scale["session"])
    np.testing.assert_allclose(scale["plda"].noise_precision_, whole.noise_precision_, rtol=1e-6)
    assert scale["rows"].shape == (len(scale["tests"]), 3)


@pytest.mark.parametrize("page", NEW)
def test_commands_and_names_exist(page):
    shown = prose(f"docs/{page}.md")
    for command, rest in re.findall(r"`duoplda ([a-z]+)([^`]*)`", shown):
        help_ = duoplda(command, "--help")
        assert help_.exit_code == 0, command
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in help_.output, f"duoplda {command} {option}"
    for name in re.findall(r"`(duoplda(?:\.\w+)+)`", shown):
        resolved(name)
    for target in re.findall(r"`make ([a-z-]+)`", shown):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    for script in re.findall(r"python (examples/\w+\.py)|python -m (benchmarks\.\w+)", shown):
        path = script[0] or f"{script[1].replace('.', '/')}.py"
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", ["sessions", "kinds", "shrinkage", "court"])
def test_figures_are_those_of_the_results(page):
    """Each figure with a point is on a page that says how it was measured; so is each pair EER / Cllr, in one cell."""
    sources = "".join(text(f"docs/{source}.md") for source in SOURCES)
    known = set(figures(sources))
    shown = re.sub(r"`[^`]*`", "", prose(f"docs/{page}.md"))
    own = figures(shown)
    assert len(own) > 5
    assert [number for number in own if number not in known] == []
    cells = {(found[0], found[-1]) for cell in re.split(r"[|\n\[]", sources) if len(found := figures(cell)) > 1}
    pairs = [tuple(figures(pair)) for pair in re.findall(r"\| (\d+\.\d+ / \d?\.\d+) ", shown)]
    assert [pair for pair in pairs if pair not in cells] == []
    assert page == "court" or pairs


@pytest.mark.parametrize("page", GUIDE)
def test_each_page_says_when_it_helps_and_when_not(page):
    shown = text(f"docs/{page}.md").lower()
    assert re.search(r"helps|can be trusted|gains|how good", shown)
    assert re.search(r"does not (help|pay)|when it does not|, and when not|what it does not|no better", shown)


def test_every_extra_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for_users = set(project["optional-dependencies"]) - {"test", "scorers", "lint", "docs"}
    assert set(re.findall(r"^\| `(\w+)` \|", text("docs/install.md"), re.MULTILINE)) == for_users
    assert project["requires-python"] == ">=3.11"
    assert "Python 3.11 or newer" in text("docs/install.md")


def test_every_page_is_in_the_contents():
    """The front page's contents have each page once, and each guide page is in the overview."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", text("docs/index.md"), re.DOTALL | re.MULTILINE)
    entries = [e for block in blocks for e in re.findall(r"^(?:[^:\n]*: )?[^:<\n]*?<?([\w/]+)>?$", block, re.MULTILINE)]
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert {entry for entry in entries if "/" not in entry} == pages
    assert len(entries) == len(set(entries))
    linked = set(re.findall(r"\]\((\w+)\.md", text("docs/guide.md")))
    assert set(GUIDE) <= linked
