"""docs/choosing.md and docs/glossary.md: their code runs, and what they name is there; the links of all pages."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from cli_cases import duoplda
from duoplda import PLDA, Backend, DuopldaError
from duoplda.datasets import make_recordings

ROOT = Path(__file__).parents[1]
OURS = ("docs/choosing.md", "docs/glossary.md")
PAGES = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SIZES = {"n_dimensions": 12, "n_speaker_factors": 6, "n_session_factors": 6}


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", text(page))


def run(page: str) -> dict:
    """The names that the blocks of Python leave, which run one after another as one story."""
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE):
        exec(compile(block, page, "exec"), names)
    return names


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def resolved(name: str) -> object:
    """The module, class or function of a dotted name; AttributeError where there is none."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


# -- the code


def test_choosing_runs(capsys):
    names = run("docs/choosing.md")
    assert names["llr"].shape == (len(names["enrolled"]), len(names["tests"]))
    assert np.isfinite(names["llr"]).all()
    assert names["backend"].calibration_ is not None  # "calibrated", says the page
    said, counts = capsys.readouterr().out, names["backend"].counts_
    for name, n in counts.items():
        assert f"{n} {name}" in said  # what the page counts is what training counts


def test_glossary_runs(capsys):
    """The figures beside the code are those that it prints."""
    names = run("docs/glossary.md")
    said = capsys.readouterr().out
    posteriors = re.search(r"^\[(.*)\]$", said, re.MULTILINE)
    assert posteriors
    np.testing.assert_allclose(np.fromstring(posteriors[1], sep=" "), [0.01, 0.50, 0.996], atol=0.005)
    assert "differences between recordings" in said  # the error about singular training
    printed = [float(n) for n in re.findall(r"(?<=Cllr |ons, )\d\.\d\d", said)]
    claimed = [float(n) for n in re.findall(r"\d\.\d\d", " ".join(re.findall(r"# about .*", text("docs/glossary.md"))))]
    assert len(printed) == len(claimed) == 3
    np.testing.assert_allclose(printed, claimed, atol=0.03)
    assert names["named"] < printed[2] < names["unnamed"]


# -- what the pages say of counts of labels


def test_sessions_of_one_recording_have_no_session_factors():
    X, speaker, session, _ = make_recordings(60, sessions=3, recordings=1, seed=0, **SIZES)
    assert PLDA().fit(X, speaker, session=session).session_loadings_.shape[1] == 0


def test_one_session_for_each_speaker_counts_as_speaker():
    X, speaker, session, model = make_recordings(300, sessions=1, recordings=4, seed=0, **SIZES)
    with pytest.warns(UserWarning, match="sessions count as part of the speaker"):
        found = PLDA().fit(X, speaker, session=session)
    truth = np.trace(model.V @ model.V.T), np.trace(model.U @ model.U.T)
    np.testing.assert_allclose((found.speaker_loadings_**2).sum(), sum(truth), rtol=0.15)
    assert (found.session_loadings_**2).sum() < 0.05 * truth[1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Backend().fit(X, speaker, session=session).calibration_ is None
    first, second = (str(w.message) for w in caught)
    assert "sessions count as part of the speaker" in first
    assert "not calibrated" in second


@pytest.mark.filterwarnings("ignore:no trials can be made")
def test_one_recording_for_each_speaker():
    X, speaker, _, _ = make_recordings(60, sessions=1, recordings=1, seed=0, **SIZES)
    with pytest.raises(DuopldaError, match="no speaker has two recordings"):
        PLDA().fit(X, speaker)
    with pytest.warns(UserWarning, match="no speaker has two recordings"):
        PLDA(shrinkage="auto", random_state=0).fit(X, speaker)


def test_two_speakers_are_too_few_to_adapt_to():
    X, speaker, session, model = make_recordings(30, sessions=2, recordings=2, seed=0, **SIZES)
    backend = Backend(plda=PLDA(shrinkage=0.1)).fit(X, speaker, session=session)
    few = make_recordings(2, sessions=3, recordings=2, model=model, seed=1)
    with pytest.raises(DuopldaError, match="at least 3"):
        backend.adapt(few.X, few.speaker, few.session)


# -- links and names


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    """Relative links point to files, and anchors to headings; so do pages and examples that are only named."""
    here = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = here / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"
    for path in re.findall(r"\b(?:docs/\w+\.md|examples/\w+\.py)\b", text(page)):
        assert (ROOT / path).exists(), f"{page}: {path}"


def test_links_are_found():
    """The test above has something to look at."""
    assert {"README.md", *OURS} <= set(PAGES)
    assert all(len(re.findall(r"\]\(\w+\.md\)", prose(page))) > 5 for page in OURS)


@pytest.mark.parametrize("page", OURS)
def test_names(page):
    names = set(re.findall(r"`(duoplda(?:\.\w+)+)`", prose(page)))
    assert names
    for name in sorted(names):
        resolved(name)
        assert not any(part.startswith("_") for part in name.split(".")), name


def test_a_name_that_is_not_there_is_noticed():
    with pytest.raises(AttributeError):
        resolved("duoplda.metrics.eeer")
    with pytest.raises(AttributeError):
        resolved("duoplda.nothing")


@pytest.mark.parametrize("page", OURS)
def test_commands(page):
    """Commands in backticks exist, and have the options that are named with them."""
    commands = re.findall(r"`duoplda ([a-z]+)([^`]*)`", prose(page))
    assert commands
    for command, rest in commands:
        result = duoplda(command, "--help")
        assert result.exit_code == 0, command
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in result.output, f"duoplda {command} {option}"


def test_options_of_training():
    """Options that choosing.md names alone, without their command, are those of train."""
    alone = set(re.findall(r"`(--[a-z-]+)", prose("docs/choosing.md"))) - {"--set", "--prior"}
    known = duoplda("train", "--help").output
    assert alone
    assert [option for option in alone if option not in known] == []
    assert "--prior" in duoplda("cluster", "--help").output


# -- the chart


def test_the_chart_and_the_list_have_the_same_leaves():
    page = text("docs/choosing.md")
    chart = re.search(r"^```mermaid\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert chart
    drawn = re.findall(r"([A-Z])\[\1\. ", chart[1])
    listed = re.findall(r"^ *- \*\*([A-Z])\. ", page, re.MULTILINE)
    assert drawn == listed == [chr(ord("A") + i) for i in range(len(listed))]


def figures(numbers: str) -> list[str]:
    return [number.lstrip("0") for number in re.findall(r"\d*\.\d+", numbers)]


def test_figures_are_those_of_the_results():
    """Each pair EER/Cllr is the first and the last figure of one cell of the results, and each figure is in them."""
    sources = "".join(text(f"{page}.md") for page in ("docs/results", "docs/adaptation", "docs/clustering"))
    cells = {(found[0], found[-1]) for cell in re.split(r"[|\n\[]", sources) if len(found := figures(cell)) > 1}
    page = prose("docs/choosing.md")
    pairs = [tuple(figures(pair)) for pair in re.findall(r"(?<!\d)\d+\.\d+/\d?\.\d+", page)]
    assert len(pairs) > 30
    assert [pair for pair in pairs if pair not in cells] == []
    known, own = set(figures(sources)), figures(page)
    assert len(own) > 2 * len(pairs)
    assert [number for number in own if number not in known] == []
