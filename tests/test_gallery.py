"""examples/gallery: every page runs as a program, without a warning, and says of its own figures what is true."""

from __future__ import annotations

import ast
import re
import runpy
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from duoplda import DuopldaError
from duoplda.metrics import bayes_error, calibration_loss, cllr, eer

matplotlib = pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "examples" / "gallery"
PAGES = sorted(path.stem for path in GALLERY.glob("plot_*.py"))
# what a page may import from the package; all of it is in the documentation
PUBLIC = {
    "",
    ".audio",
    ".calibration",
    ".case",
    ".datasets",
    ".diarization",
    ".io",
    ".metrics",
    ".plots",
    ".preprocessing",
    ".voices",
}


@cache
def ran(page: str) -> dict:
    """The names that a page leaves behind. Each page is run once."""
    from matplotlib import pyplot

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DISPLAY", raising=False)  # with one, `show` complains that Agg has no windows
        pyplot.switch_backend("Agg")
        names = runpy.run_path(str(GALLERY / f"{page}.py"), run_name="__main__")
        names["figures"] = len(pyplot.get_fignums())
        pyplot.close("all")
    return names


def source(page: str) -> str:
    return (GALLERY / f"{page}.py").read_text(encoding="utf-8")


# -- all pages


def test_there_are_pages():
    assert len(PAGES) >= 11
    assert (GALLERY / "GALLERY_HEADER.rst").read_text(encoding="utf-8").startswith("Gallery\n=======\n")


@pytest.mark.parametrize("page", PAGES)
def test_runs(page, capsys):
    assert ran(page)["figures"] >= 1


@pytest.mark.parametrize("page", PAGES)
def test_form(page):
    """A title, prose between the blocks of code, and at the end what to take home and when it does not hold."""
    text = source(page)
    title, line = (ast.get_docstring(ast.parse(text)) or "").splitlines()[:2]
    assert line == "=" * len(title)
    cells = re.split(r"^# %%\n", text, flags=re.MULTILINE)
    assert len(cells) >= 4
    last = cells[-1]
    assert all(part.startswith("#") for part in last.splitlines())
    assert last.index("# Take home\n# ---------\n# - ") < last.index("\n#\n# **When it does not hold.** ")
    for heading, line in re.findall(r"^# (.+)\n# (-{3,})$", text, re.MULTILINE):
        assert len(heading) == len(line), heading


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    targets = re.findall(r":doc:`([^`]+)`", source(page))
    for target in targets:
        path = ROOT / "docs" / f"{target[1:]}.md" if target.startswith("/") else GALLERY / f"{target}.py"
        assert path.exists(), target
    assert targets


@pytest.mark.parametrize("page", PAGES)
def test_public_names_and_seeds(page):
    tree = ast.parse(source(page))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "duoplda":
            assert node.module.removeprefix("duoplda") in PUBLIC
            assert not any(alias.name.startswith("_") for alias in node.names)
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr in ("_replace", "__name__"), node.attr
        if isinstance(node, ast.Call) and "auto" in [k.value.value for k in node.keywords if k.arg == "shrinkage"]:
            assert "random_state" in [k.arg for k in node.keywords]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "make_recordings":
            assert "seed" in [k.arg for k in node.keywords]
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "default_rng":
            assert node.args


# -- what single pages say


def test_copies():
    page = ran("plot_copies_are_not_sessions")
    named, averaged, book = (np.array(values) for values in page["cost"].values())
    assert (book[2:] > 1).all()  # from three copies on a side, worse than none
    assert book[1] < 1
    assert named[-1] < 0.2 * named[0]
    assert (named[1:] < averaged[1:]).all()
    assert (averaged[1:] < book[1:]).all()
    assert book[0] - named[0] < 0.1  # one against one
    named, averaged, book = (np.array(values) for values in page["errors"].values())
    assert (named[2:] < averaged[2:]).all()
    assert (averaged[2:] < book[2:]).all()
    llr, target = page["llr"][5]["copies as sessions"], page["target"]
    near = (llr > -45) & (llr < -35)  # -40 nats, given to trials that rather speak for one speaker
    assert near[target].mean() > near[~target].mean() > 0


def test_calibration():
    page = ran("plot_calibration")
    llr, target, systems = page["llr"], page["target"], page["systems"]
    assert target.sum() == 4000
    assert (~target).sum() == 40000
    for low in (-2, 0, 1, 2, 4):
        within = (llr >= low) & (llr < low + 1)
        assert np.log(within[target].mean() / within[~target].mean()) == pytest.approx(low + 0.5, abs=0.4)
    rates, costs = ([metric(s, target) for s in systems.values()] for metric in (eer, cllr))
    assert max(rates) == pytest.approx(min(rates))
    assert costs[0] < 0.6 * min(costs[1:])
    sure, shifted = page["fitted"].values()
    assert sure.scale_ == pytest.approx(1 / 3, rel=0.05)
    assert (shifted.scale_, shifted.offset_) == pytest.approx((1, -3), abs=0.1)
    assert cllr(page["repaired"]["too sure (3 times)"], target) == pytest.approx(costs[0], rel=0.05)
    at_one_percent = [values[0] for values in page["costs"].values()]
    assert at_one_percent[0] < min(at_one_percent[1:])


def test_tippett_and_bayes_error():
    page = ran("plot_tippett_and_bayes_error")
    target = page["target"]
    (named, _), (book, _) = page["systems"].values()
    assert target.sum() == 100
    assert (named[target] < 0).mean() < 0.05 < 0.5 < (book[target] < 0).mean()
    assert book[target].min() < 5 * named[target].min() < 0
    assert bayes_error(book, target, [2.0]).actual[0] > 1  # one had better not listen
    assert calibration_loss(named, target) < 0.03 < 1 < calibration_loss(book, target)


def test_kinds():
    page = ran("plot_kinds_of_channels")
    one, inferred, known = page["cost"].values()
    assert known < inferred < one
    assert one - inferred > 0.5 * (one - known)  # most of the gain
    order = [list(page["kinds"].channels_).index(name) for name in page["names"]]
    np.testing.assert_allclose(np.array(page["learnt"])[order], page["variances"], rtol=0.1)
    assert page["right"] > 0.7


def test_few_speakers():
    page = ran("plot_few_speakers")
    likely, chosen = (np.array(values) for values in page["bits"].values())
    assert chosen[0] < 0.5 * likely[0] + 0.02  # "halves the cost"
    assert (chosen[:3] < likely[:3]).all()
    assert chosen[-1] == pytest.approx(likely[-1], rel=0.1)  # nothing to mend
    assert (np.minimum(likely, chosen) > 0.9 * page["best"]).all()
    amounts = np.array([plda.shrinkage_[:3] for plda in page["chosen"].values()])
    assert (amounts[0] > 3 * amounts[-1]).all()


def test_adaptation():
    page = ran("plot_adaptation")
    nothing, total, sessions, labels = page["cost"].values()
    assert max(sessions, labels) < total < 0.5 * nothing
    assert sessions == pytest.approx(labels, rel=0.3)
    assert [b.adapted_["method"] for b in [*page["backends"].values()][1:]] == ["total", "clusters", "labels"]
    assert [warning.category.__name__ for warning in page["caught"]] == ["DomainWarning"]
    assert not set(page["known"].X[:, 0]) & set(page["test"].X[:, 0])


def test_clustering():
    page = ran("plot_clustering")
    assert abs(len(page["found"]) - 25) <= 2
    assert page["quality"].f > 0.95
    assert page["copies"].f < 0.75
    assert len(page["pieces"]) > 2 * 25
    assert max(page["numbers"]) - min(page["numbers"]) <= 6
    assert page["numbers"] == sorted(page["numbers"], reverse=True)


def test_diarization():
    page = ran("plot_diarization")
    assert page["n_found"] == 4
    assert page["errors"].rate < 0.06
    assert page["wrong_errors"].rate > page["errors"].rate
    assert sorted(page["match"].values()) == [0, 1, 2, 3]


def test_million_trials():
    page = ran("plot_million_trials")
    assert page["llr"].size == 1_000_000
    assert page["llr"][page["k"], page["j"]] == pytest.approx(page["one"] - page["two"], rel=1e-9)
    assert page["highest"] == pytest.approx(page["llr"].max(), rel=1e-9)
    assert page["enrolled"].ids[page["models"][:, 0]].tolist() == page["enrolled"].ids[page["llr"].argmax(0)].tolist()


def test_arrays_of_other_libraries():
    page = ran("plot_torch_tensors")
    assert np.abs(page["apart"]["double"]).max() < 1e-8
    assert 0 < np.abs(page["apart"]["single"]).max() < 1e-2


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    page = ran("plot_torch_tensors")
    assert page["label"] == "torch"
    assert page["double"].dtype == page["single"].dtype == torch.float64


def test_shards():
    page = ran("plot_shards")
    assert page["cut"] > 100
    assert page["apart"] < 1e-8
    assert page["same"]
    whole, added, wrong = ([*page["shares"].values()][i] for i in (1, 2, 3))
    np.testing.assert_allclose(added, whole, rtol=1e-6)
    assert wrong[0] > whole[0] + 0.03  # too much of the variance becomes the speaker's
    assert page["early"].n_sessions > 2 * page["stats"].n_sessions


def test_shards_with_closed_sessions_are_refused():
    with pytest.raises(DuopldaError, match="a session that was closed cannot be added to"):
        sum(ran("plot_shards")["closed"])


def test_enrolment():
    page = ran("plot_enrolment")
    cost, table = page["cost"], page["table"]
    assert cost[4, 1] < cost[2, 2] < cost[1, 4] < cost[1, 2] < cost[1, 1]
    assert cost[1, 1] - cost[1, 2] > cost[1, 3] - cost[1, 4]  # a second copy is worth more than a fourth
    assert (np.diff(table, axis=1) < 0).all()  # every session helps
    assert cllr(page["pooled"], page["targets"]) < 0.6 * cllr(page["book"], page["targets"])
    assert eer(page["pooled"], page["targets"]) < eer(page["book"], page["targets"])
    np.testing.assert_allclose(page["plda"].llr(page["voices"], page["tests"]), page["llr"][2, 2], atol=1e-8)


def test_score_normalization():
    results = {where: np.array(values) for where, values in ran("plot_score_normalization")["results"].items()}
    for metric in (0, 1):
        none, s, adaptive = (results[False, name][metric] for name in ("none", "s-norm", "adaptive s-norm"))
        assert none < min(s, adaptive)  # in the domain of training
        assert results[True, "adaptive s-norm"][metric] < 0.7 * results[True, "none"][metric]


def rows(page: str, part: str) -> dict[str, list[list[float]]]:
    """The rows of all tables of a part of results.md: for each cell, its numbers."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    text = text[text.index(f"\n{part}, maximum likelihood") :]
    text = text[: text.index("\n\n", text.index("| **kinds, decision**"))]
    found = {}
    for line in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        name, *cells = (cell.strip(" *") for cell in line.split("|"))
        found[name] = [[float(n) for n in re.findall(r"\d*\.\d+", cell)] for cell in cells]
    return found


@pytest.mark.parametrize("part", ["so762", "amnist"])
def test_real_speech_is_what_the_results_say(part):
    results, page = rows("results", part), ran("plot_real_speech")
    assert len(page[part]) == 7
    for name, (rate, low, high, bits, bits_low, bits_high) in page[part].items():
        cells = results[name]
        pooled = cells[5]
        assert (rate, bits) == (pooled[0], pooled[-1]), name
        assert [low, high] == cells[6]
        assert [bits_low, bits_high] == cells[-1]


def test_real_speech_by_enrolment():
    results, page = rows("results", "so762"), ran("plot_real_speech")
    for name, bits in page["by_enrolment"].items():
        assert list(bits) == [cell[-1] for cell in results[name][:5]], name
    ours, amnist = page["so762"], page["amnist"]
    for step in ("ML", "decision"):
        assert ours[f"kinds, {step}"][3] < ours[f"two, {step}"][3] < ours[f"plain, {step}"][3]
    assert amnist["kinds, ML"][3] > amnist["plain, ML"][3]  # no good for the larger models
    assert amnist["kinds, decision"][3] < amnist["two, decision"][3] < amnist["plain, decision"][3]
    plain, two = (results[f"{name}, ML"] for name in ("plain", "two"))
    assert all(b[0] >= a[0] for a, b in zip(plain[:5], two[:5], strict=True))  # no lower EER within a condition
    assert page["by_enrolment"]["plain, ML"][1] > 1 > page["by_enrolment"]["two, ML"][1]


def test_commands_of_real_speech_are_those_of_the_results():
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    commands = re.findall(r"^#     (python examples/.*)$", source("plot_real_speech"), re.MULTILINE)
    assert len(commands) == 2
    assert all(f"    {command}\n" in text for command in commands)


# -- copies of a recording


def test_copies_of_a_recording_are_as_the_page_says():
    page = ran("plot_from_audio")
    assert {kind: of.bandwidth for kind, of in page["qualities"].items() if of.bandwidth <= 4000} == {"telephone": 4000}
    assert page["qualities"]["noise"].snr < page["qualities"]["clean"].snr - 20
    assert len(page["none"]) == 0
    assert page["start"] == pytest.approx(0.6, abs=0.1)
    assert page["end"] == pytest.approx(3.4, abs=0.1)
