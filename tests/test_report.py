"""The report: its numbers are Python's at every stop of the sliders, in a real browser, and nothing leaves the page.

The browser tests need Chromium and its driver (Debian: chromium, chromium-driver) and selenium; without them they are
skipped, and say so.
"""

import base64
import json
import os
import re
import shutil
from datetime import date
from functools import partial
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest

from duoplda import PLDA, DuopldaError, metrics
from duoplda.data import Recordings
from duoplda.datasets import make_recordings
from duoplda.estimators.backend import Backend
from duoplda.estimators.domain import Domain
from duoplda.report import inferred_kinds, write_report
from duoplda.report._data import Grid

HOSTILE = '</script><img src=x onerror="window.hacked=1">\'&amp;\u4e2d\u00e9 <!--'
GRID = Grid.around(0.03, 1.0, 7.0)
NO_RATIOS = (2,)  # places of the systems of the report that are not calibrated


def make_trials(n=4000, n_speakers=40, seed=0):
    rng = np.random.default_rng(seed)
    speakers = rng.integers(n_speakers, size=(n, 2))
    speakers[: n // 8, 1] = speakers[: n // 8, 0]
    labels = speakers[:, 0] == speakers[:, 1]
    return speakers, labels


def make_scores(labels, d, seed, scale=1.0, shift=0.0):
    noise = np.random.default_rng(seed).standard_normal(len(labels))
    return (d**0.5 * noise + np.where(labels, d / 2, -d / 2)) * scale + shift


def page_data(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="report-data">(.*?)</script>', text, re.S)[1])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report with all its sections, hostile names everywhere, tied scores and scores on a threshold or infinite."""
    speakers, labels = make_trials()
    systems = {
        "duoplda": make_scores(labels, 12, 1),
        "rounded": np.round(make_scores(labels, 8, 2), 1),
        HOSTILE: make_scores(labels, 5, 3, 0.5),
    }
    thresholds = np.log(GRID.ratios())
    nearest = np.abs(systems["rounded"][::7, None] - thresholds).argmin(axis=1)
    systems["rounded"][::7] = thresholds[nearest]
    systems[HOSTILE][[0, 1, -1]] = -np.inf, np.inf, np.inf
    enrolled = np.array([f"spk{a}" for a in speakers[:, 0]], dtype=object)
    enrolled[np.argmin(np.where(labels, systems["duoplda"], np.inf))] = HOSTILE
    conditions = {
        "channel": np.where(np.arange(len(labels)) % 3 == 0, "telephone", "microphone"),
        HOSTILE: np.where(np.arange(len(labels)) % 2 == 0, HOSTILE, "plain"),
    }
    X, speaker, session, _ = make_recordings(40, seed=1, n_dimensions=8, n_speaker_factors=3, n_session_factors=2)
    path = write_report(
        tmp_path_factory.mktemp("report") / "report.html",
        systems,
        labels,
        trials=(enrolled, [f"rec{k}" for k in range(len(labels))]),
        speakers=(speakers[:, 0], speakers[:, 1]),
        conditions=conditions,
        title="Report " + HOSTILE,
        data_counts={"training recordings": len(X), HOSTILE: HOSTILE},
        model_summary=PLDA(3, 2, tol=1e-4).fit(X, speaker, session=session),
        commands=["duoplda report --out r.html", HOSTILE],
        hashes={"model.duoplda": "sha256:0123abcd", HOSTILE: HOSTILE},
        p_target=0.03,
        costs=(1.0, 7.0),
        bootstrap=20,
    )
    return SimpleNamespace(path=path, systems=systems, labels=labels, speakers=speakers)


# -- without a browser


def test_grid_holds_the_given_point_and_all_ratios():
    assert GRID.p_target[GRID.start[0]] == 0.03
    assert GRID.c_fa[GRID.start[2]] == 7.0
    assert {0.001, 0.01, 0.05, 0.5, 0.99} <= set(GRID.p_target)
    assert {0.1, 1.0, 10.0, 100.0} <= set(GRID.c_miss)
    expected = {(1 - p) / p * (fa / miss) for p in GRID.p_target for miss in GRID.c_miss for fa in GRID.c_fa}
    assert GRID.ratios().tolist() == sorted(expected)


def test_a_million_trials_fit_and_keep_their_operating_points(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(1_000_000) < 60_000
    systems = {
        name: d**0.5 * rng.standard_normal(len(labels)) + np.where(labels, d / 2, -d / 2)
        for name, d in (("a", 20), ("b", 7))
    }
    path = write_report(tmp_path / "r.html", systems, labels)
    assert path.stat().st_size < 250_000  # two systems: there is room for more below 500 KB
    data = page_data(path)
    ratio = Grid.around(0.01, 1, 1).ratios()
    p = 1 / (1 + ratio)  # the same costs and thresholds with costs of 1
    for system in data["systems"]:
        scores = systems[system["name"]]
        p_miss, p_fa = (np.cumsum(system["actual"][k]) / n for k, n in (("miss", 60_000), ("fa", 940_000)))
        cost = (p * p_miss + (1 - p) * p_fa) / np.minimum(p, 1 - p)
        np.testing.assert_allclose(cost, metrics.act_dcf(scores, labels, p), rtol=1e-9)
        p_miss, p_fa = (np.cumsum(system["hull"][k]) / n for k, n in (("miss", 60_000), ("fa", 940_000)))
        cost = np.min(p[:, None] * p_miss + (1 - p[:, None]) * p_fa, axis=1) / np.minimum(p, 1 - p)
        np.testing.assert_allclose(cost, metrics.min_dcf(scores, labels, p), rtol=1e-9)


def test_page_is_complete_escaped_and_allows_no_request(report):
    text = report.path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", text)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, never fetched
    assert "https://" not in text
    for name, scores in report.systems.items():
        values = metrics.measure(scores, report.labels, p_target=0.03, c_miss=1.0, c_fa=7.0)
        eer, cllr = (metrics.eer(scores, report.labels), metrics.cllr(scores, report.labels))
        assert values[0] == pytest.approx(eer)
        assert f"{100 * eer:.2f} %" in text, name
        assert (f"{cllr:.3f}" if np.isfinite(cllr) else "\N{INFINITY}") in text


def test_the_file_is_whole_and_not_replaced_unasked(tmp_path):
    trials = {"a": [1.0, 2.0, -1.0]}, [True, True, False]
    path = write_report(tmp_path / "r.html", *trials)
    first = path.read_bytes()
    with pytest.raises(DuopldaError, match="exists"):
        write_report(path, *trials)
    assert undated(write_report(path, *trials, force=True).read_bytes()) == undated(first)
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    text = first.decode()
    assert 'id="conditions"' not in text
    assert 'id="model"' not in text
    assert "row, from 0" in text


def test_model_without_a_fit_and_one_command(tmp_path):
    loadings, means = np.array([[1.0], [0.5]]), np.zeros((2, 2))
    precisions = np.stack((np.eye(2), 2 * np.eye(2)))
    model = PLDA.from_parameters(means, loadings, None, precisions, channels=["a", "b"])
    trials = {"a": [1.0, 2.0, -1.0]}, [True, True, False]
    text = write_report(tmp_path / "a.html", *trials, model_summary=model, commands="type <this>").read_text()
    assert "<dt>kinds of channels</dt><dd>2</dd>" in text
    assert "<pre>type &lt;this&gt;</pre>" in text
    assert 'id="shares"' in text
    text = write_report(tmp_path / "b.html", *trials, model_summary={"kind": "cosine"}).read_text()
    assert "<dt>kind</dt><dd>cosine</dd>" in text
    assert 'id="shares"' not in text


def test_kinds_of_channels_are_inferred_for_the_recordings_whose_kind_is_known(tmp_path):
    means, precisions = np.array([[0.0, 0.0], [50.0, 0.0]]), np.stack((np.eye(2), np.eye(2)))
    PLDA.from_parameters(means, np.eye(2), None, precisions, channels=["mic", "phone"]).save(tmp_path / "m")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 2)) + means[np.arange(6000) % 2]  # several chunks
    recordings = Recordings.from_arrays(X, ids=[f"r{k}" for k in range(len(X))])
    known = {f"r{k}": "mic" for k in range(0, 6000, 3)}
    true, inferred = inferred_kinds(Backend.load(tmp_path / "m"), recordings, known)
    assert true == ["mic"] * 2000
    assert inferred == ["mic", "phone"] * 1000
    trials = {"a": [1.0, 2.0, -1.0]}, [True, True, False]
    text = write_report(tmp_path / "r.html", *trials, kinds=(true, inferred)).read_text()
    assert "50.0 % of 2,000 recordings are right" in text
    with pytest.raises(DuopldaError, match="two columns of one length"):
        write_report(tmp_path / "s.html", *trials, kinds=(true, []))


def test_long_ids_and_many_conditions_do_not_fill_the_page(tmp_path):
    _, labels = make_trials(2000)
    ids = np.array(["x" * 5000] * len(labels))
    conditions = {"c": np.arange(len(labels)) // 2, "one class": labels}
    path = write_report(
        tmp_path / "r.html", {"a": make_scores(labels, 5, 0)}, labels, trials=(ids, ids), conditions=conditions
    )
    assert path.stat().st_size < 200_000
    assert "970 rarer values (1,940 trials) are not shown" in path.read_text()


def test_control_characters_and_halves_of_characters_are_shown(tmp_path):
    names = ["a\x00b", "c\u202ed", "e\ud800f"]
    path = write_report(tmp_path / "r.html", {"s\u202e": [1.0, 0.0, -1.0]}, [True, True, False], trials=(names, names))
    text = path.read_text(encoding="utf-8")
    assert "a\\x00b" in text
    assert "c\\u202ed" in text
    assert "e\\ud800f" in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"systems": {}}, "dictionary"),
        ({"systems": {"a": [1.0]}}, "'a'.*shape"),
        ({"systems": {"a": [1.0, np.nan, 2.0]}}, "'a'.*NaN"),
        ({"labels": [True, True, True]}, "non-target"),
        ({"trials": (["a"], ["b"])}, "'enrolled'.*3 trials"),
        ({"conditions": {"c": [1]}}, "'c'.*3 trials"),
        ({"speakers": ([0, 0, 0], [0, 0, 0])}, "at odds"),
        ({"p_target": 0.0}, "p_target"),
        ({"costs": (0.0, 1.0)}, "costs"),
        ({"model_summary": 3}, "model_summary"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_file(tmp_path, change, message):
    arguments = {"systems": {"a": [1.0, 2.0, -1.0]}, "labels": [True, True, False], **change}
    with pytest.raises(DuopldaError, match=message):
        write_report(tmp_path / "r.html", **arguments)
    assert not list(tmp_path.iterdir())


def undated(page):
    """A page without the day on which it was made."""
    assert page.count(b"<time>") == 1
    return re.sub(rb"<time>\d{4}-\d\d-\d\d</time>", b"", page)


def test_the_page_is_dated_and_counts_one_system(tmp_path):
    days = [date.today()]
    text = write_report(tmp_path / "r.html", {"a": [1.0, 2.0, -1.0]}, [True, True, False]).read_text()
    days.append(date.today())  # it may be midnight
    assert any(f"<time>{day.isoformat()}</time> \N{MIDDLE DOT} 1 system on 3 trials" in text for day in days)


def test_what_the_trials_support_is_told_of_calibrated_systems_alone(report, tmp_path):
    text = report.path.read_text(encoding="utf-8")
    section = re.search(r'<section id="support">(.*?)</section>', text, re.S)[1]
    assert section.count("<tr>") == 3  # the heads, and two systems of three
    labels = report.labels
    scores = report.systems["duoplda"]
    cells = re.findall(r"<td>(.*?)</td>", section)[:6]
    shown = [[float(v) for v in re.findall(r"-?[\d.]+", cell.replace("\N{MINUS SIGN}", "-"))] for cell in cells]
    misleading = metrics.misleading_evidence(scores, labels)
    expected = [metrics.elub(scores, labels), metrics.invariance_bounds(scores, labels)]
    expected += [[metrics.dev_pav(scores, labels)]]
    expected = [np.array(values) / np.log(10) for values in expected]
    expected += [[100 * misleading.of_targets], [100 * misleading.of_nontargets]]
    expected += [np.array([misleading.lowest_target, misleading.highest_nontarget]) / np.log(10)]
    for values, truth in zip(shown, expected, strict=True):
        np.testing.assert_allclose(values, truth, atol=0.0051)
    path = write_report(tmp_path / "r.html", {"a": scores * 5}, labels)
    assert "no ratios that trials could support" in path.read_text()


# -- the verdict


def verdict_of(path):
    """The words of the verdict, with a space where a tag was."""
    section = re.search(
        r'<section id="verdict"><h2>Verdict</h2>(.*?)</section>', path.read_text(encoding="utf-8"), re.S
    )[1]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", section)).split())


@pytest.mark.parametrize(
    ("scale", "shift", "words"),
    [
        (1.0, 0.0, "\N{CHECK MARK} calibrated"),
        (4.0, 0.0, "! not calibrated over-confident"),
        (0.25, 0.0, "! not calibrated under-confident"),
        (1.0, 3.0, "! not calibrated too high"),
        (1.0, -3.0, "! not calibrated too low"),
    ],
)
def test_the_verdict_says_whether_and_how_ratios_are_off(tmp_path, scale, shift, words):
    _, labels = make_trials()
    path = write_report(tmp_path / "r.html", {"a": make_scores(labels, 10, 0, scale, shift)}, labels)
    mark, _, way = words.partition(" calibrated ")
    said = verdict_of(path)
    assert mark in said
    assert way in said
    data = page_data(path)["systems"][0]
    assert ("before duoplda calibrate" in said) == (data["calibrated"] is False) == bool(way)
    of_ratios = ("actual" in data, "tippett" in data, "ece" in data, "actual" in data["bayes"], "Of use" in said)
    assert of_ratios == (not way,) * 5


def test_the_verdict_begins_with_one_sentence(tmp_path):
    _, labels = make_trials()
    calibrated = make_scores(labels, 10, 0)
    systems = {"a": 3 * calibrated, "b": calibrated}
    domains = {
        "domain was not checked": None,
        "like those of the training": Domain(5.0, 16.9, 192, 3150, 18),
        "of another domain": Domain(43.0, 16.9, 192, 3150, 18),
    }
    for words, domain in domains.items():
        said = verdict_of(write_report(tmp_path / "r.html", systems, labels, domain=domain, force=True))
        assert said.startswith("Of 2 systems, the one with the lowest Cllr: b has an EER of ")
        first = said.split(". ")[0]
        assert f"{100 * metrics.eer(calibrated, labels):.2f} %" in first
        assert f"{metrics.calibration_loss(calibrated, labels):.3f} bits" in first
        assert "mean what they say" in first
        assert words in first
    said = verdict_of(write_report(tmp_path / "r.html", {"a": 3 * calibrated}, labels, force=True))
    assert said.startswith("a has an EER of ")
    assert "not to be read as ratios" in said.split(". ")[0]


def test_calibrated_ratios_are_seldom_accused_and_few_trials_tell_nothing(tmp_path):
    """The loss of PAV grows as trials get fewer, also where ratios are right."""
    for n_targets, n_nontargets, kind in (
        (20, 200, "calibration unknown"),
        (100, 1000, "calibrated"),
        (500, 500, "calibrated"),
    ):
        labels = np.arange(n_targets + n_nontargets) < n_targets
        for d in (4, 8, 14):
            path = write_report(tmp_path / "r.html", {"a": make_scores(labels, d, d)}, labels, force=True)
            assert kind in verdict_of(path)
            assert "not calibrated" not in verdict_of(path)


def test_the_verdict_names_the_priors_at_which_scores_are_of_use(tmp_path):
    speakers, labels = make_trials()
    scores = make_scores(labels, 2, 5, 1.2, 0.2)  # near enough to calibrated
    for sides, bootstrap in ((None, 0), ((speakers[:, 0], speakers[:, 1]), 25)):
        path = write_report(
            tmp_path / "r.html",
            {"a": scores},
            labels,
            speakers=sides,
            bootstrap=bootstrap,
            costs=(1.0, 7.0),
            force=True,
        )
        low, high = map(float, re.search(r"Of use for priors from ([\d.]+) to ([\d.]+) ", verdict_of(path)).groups())

        inside = [1.2 * low, (low + high) / 2, 1 - 1.2 * (1 - high)]
        priors = [*inside, 0.8 * low, 1 - 0.8 * (1 - high)]
        dcf = partial(metrics.act_dcf, p_target=priors, c_fa=7.0)
        ends = dcf(scores, labels)
        if sides is not None:
            ends = metrics.bootstrap(dcf, scores, labels, *sides, n_resamples=bootstrap).high
        ratio = (1 / np.array(priors[3:]) - 1) * 7
        few = (3 / labels.sum() > ratio) | (ratio > (~labels).sum() / 3)
        assert np.all(ends[:3] < 1), (low, high)
        assert np.all((ends[3:] >= 1) | few), (low, high)


def test_scores_that_mislead_are_of_no_use(tmp_path):
    _, labels = make_trials()
    said = verdict_of(write_report(tmp_path / "r.html", {"a": -make_scores(labels, 10, 0)}, labels))
    assert "The ratios as they are mislead" in said
    assert "Do not read these scores as likelihood ratios" in said
    weak = np.where(labels, -0.2, 0.2)  # wrong, but by so little that the loss is small
    said = verdict_of(write_report(tmp_path / "r.html", {"a": weak}, labels, force=True))
    assert "Of no use at any prior" in said


def test_the_verdict_names_the_lowest_cllr_and_how_sure_that_is(report):
    values = {name: metrics.cllr(scores, report.labels) for name, scores in report.systems.items()}
    assert min(values, key=values.get) == "duoplda"
    assert "The lowest Cllr is that of duoplda , also in 100 % of the resamples" in verdict_of(report.path)


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (None, "? domain not checked"),
        (Domain(5.0, 16.9, 192, 3150, 18), "\N{CHECK MARK} domain of the training"),
        (Domain(43.0, 16.9, 192, 3150, 18), "! another domain"),
    ],
)
def test_the_domain_is_a_badge(tmp_path, domain, words):
    said = verdict_of(write_report(tmp_path / "r.html", {"a": [1.0, 2.0, -1.0]}, [True, True, False], domain=domain))
    assert words in said
    assert ("duoplda adapt" in said) == (domain is not None and not domain.within)


# -- in Chromium

FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1280,900"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def page(browser, report):
    """The report at desktop width, just opened; afterwards the console must be silent and no request have left."""
    look(browser, 1280)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(report.path.as_uri())
    yield browser
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert {url.split("#")[0] for url in urls} <= {report.path.as_uri(), "data:,"}
    assert any(e["method"] == "Network.requestWillBeSent" for e in events), "the log must have seen the page itself"
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def look(browser, width, scheme="light", media=""):
    """Emulate a screen: its width, light or dark, or paper."""
    metrics_ = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics_)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def cell(page, system, kind, key):
    return page.find_element("css selector", f'[data-system="{system}"][data-kind="{kind}"][data-key="{key}"]')


def check_point(page, report, p, c_miss, c_fa):
    """The table of decisions against Python's metrics."""
    n_targets, n_nontargets = report.labels.sum(), (~report.labels).sum()
    for k, scores in enumerate(report.systems.values()):
        ratios = k not in NO_RATIOS
        assert bool(page.find_elements("css selector", f'[data-system="{k}"][data-kind="actual"]')) == ratios
        for kind, dcf in (("actual", metrics.act_dcf), ("least", metrics.min_dcf))[not ratios :]:
            expected = dcf(scores, report.labels, p, c_miss, c_fa)
            shown = cell(page, k, kind, "dcf")
            assert float(shown.get_attribute("data-value")) == pytest.approx(expected, rel=1e-12)
            assert float(shown.text) == pytest.approx(expected, abs=5.1e-5)
            misses, alarms = (int(cell(page, k, kind, key).get_attribute("data-value")) for key in ("misses", "alarms"))
            cost = p * c_miss * misses / n_targets + (1 - p) * c_fa * alarms / n_nontargets
            assert cost / min(p * c_miss, (1 - p) * c_fa) == pytest.approx(expected, rel=1e-12)
            assert float(cell(page, k, kind, "cost").get_attribute("data-value")) == pytest.approx(cost, rel=1e-12)
            rate, count = cell(page, k, kind, "misses").text.split("\n")
            assert count == f"{misses:,}"
            assert float(rate.rstrip(" %")) == pytest.approx(100 * misses / n_targets, abs=0.0051)
        if not ratios:
            continue
        t = np.log((1 - p) / p * (c_fa / c_miss))
        assert int(cell(page, k, "actual", "misses").get_attribute("data-value")) == (scores[report.labels] < t).sum()
        assert int(cell(page, k, "actual", "alarms").get_attribute("data-value")) == (scores[~report.labels] >= t).sum()


def test_sliders_moved_by_keys_give_pythons_numbers(page, report):
    from selenium.webdriver.common.keys import Keys

    check_point(page, report, 0.03, 1.0, 7.0)
    before = page.find_element("css selector", "#det [data-kind=actual]").get_attribute("transform")
    page.find_element("id", "slider-prior").send_keys(Keys.ARROW_RIGHT * 6)
    page.find_element("id", "slider-miss").send_keys(Keys.ARROW_RIGHT * 3)
    page.find_element("id", "slider-fa").send_keys(Keys.ARROW_LEFT * 4)
    p, c_miss, c_fa = GRID.p_target[GRID.start[0] + 6], GRID.c_miss[GRID.start[1] + 3], GRID.c_fa[GRID.start[2] - 4]
    assert float(page.find_element("id", "value-prior").text) == p
    assert float(page.find_element("id", "value-miss").text) == c_miss
    assert float(page.find_element("id", "value-fa").text) == c_fa
    check_point(page, report, p, c_miss, c_fa)
    assert page.find_element("css selector", "#det [data-kind=actual]").get_attribute("transform") != before
    page.find_element("id", "slider-prior").send_keys(Keys.HOME)
    check_point(page, report, GRID.p_target[0], c_miss, c_fa)
    page.find_element("id", "slider-prior").send_keys(Keys.END)
    check_point(page, report, GRID.p_target[-1], c_miss, c_fa)
    page.find_element("id", "reset").click()
    check_point(page, report, 0.03, 1.0, 7.0)


def test_every_stop_of_the_sliders_gives_pythons_costs(page, report):
    found = page.execute_script(
        """
        const sliders = ["prior", "miss", "fa"].map((key) => document.getElementById(`slider-${key}`));
        const all = (kind) => [...document.querySelectorAll(`[data-kind=${kind}][data-key=dcf]`)];
        const cells = all("actual").concat(all("least"));
        const found = [];
        for (let i = 0; i <= sliders[0].max; i++)
          for (let j = 0; j <= sliders[1].max; j++)
            for (let k = 0; k <= sliders[2].max; k++) {
              [i, j, k].forEach((value, s) => { sliders[s].value = value; });
              sliders[0].dispatchEvent(new Event("input"));
              found.push(cells.map((cell) => Number(cell.dataset.value)));
            }
        return found;
        """
    )
    p, c_miss, c_fa = (a.ravel() for a in np.meshgrid(*GRID[:3], indexing="ij"))
    found = np.array(found)  # (stops, systems that give ratios, then all systems)
    assert len(found) == len(p) > 2000
    systems = list(report.systems.values())
    ratios = [scores for k, scores in enumerate(systems) if k not in NO_RATIOS]
    expected = [metrics.act_dcf(scores, report.labels, p, c_miss, c_fa) for scores in ratios]
    expected += [metrics.min_dcf(scores, report.labels, p, c_miss, c_fa) for scores in systems]
    np.testing.assert_allclose(found, np.transpose(expected), rtol=1e-11)


def test_markers_lie_on_their_curves(page, report):
    """The drawn curve is thinned, the markers are exact: they must still meet, for every system and kind."""
    away = page.execute_script(
        """
        const slider = document.getElementById("slider-prior"), far = [];
        for (let i = 0; i <= slider.max; i++) {
          slider.value = i;
          slider.dispatchEvent(new Event("input"));
          const curves = [...document.querySelectorAll("#det svg.plot path.curve")];
          const box = document.querySelector("#det svg.plot rect.border").getBBox();
          document.querySelectorAll("#det path[data-kind]").forEach((mark, index) => {
            const [x, y] = mark.getAttribute("transform").match(/-?[0-9.]+/g).map(Number);
            if (x < box.x + 1 || y < box.y + 1 || x > box.x + box.width - 1 || y > box.y + box.height - 1) return;
            // Calibrated systems, which come first, have two markers each.
            const steps = curves[Math.min(index >> 1, curves.length - 1)].getAttribute("d").slice(1).split("L");
            const points = steps.map((step) => step.split(" ").map(Number));
            far.push(Math.min(...points.slice(1).map(([bx, by], k) => {
              const [ax, ay] = points[k], length = (bx - ax) ** 2 + (by - ay) ** 2;
              const t = length ? Math.max(0, Math.min(1, ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length)) : 0;
              return Math.hypot(x - ax - t * (bx - ax), y - ay - t * (by - ay));
            })));
          });
        }
        return far;
        """
    )
    assert len(away) > 20
    assert max(away) < 1.0  # pixels


def test_the_verdict_comes_first_and_marks_what_is_not_calibrated_without_colour(page, report):
    first = page.find_element("css selector", "main section")
    assert first.get_attribute("id") == "verdict"
    assert first.rect["y"] < 300  # seen at once
    wrong = [k in NO_RATIOS for k in range(3)]
    heads = [h.text for h in first.find_elements("css selector", "h3")]
    rows = [r.text for r in page.find_elements("css selector", "#metrics tbody th")]
    groups = [g.text for g in page.find_elements("css selector", "#decisions .group")]
    entries = [e.text for e in page.find_elements("css selector", "#tippett .legend li")]
    for k, name in enumerate(report.systems):
        for text in (heads[k], rows[k], groups[k]):
            assert name in text
            assert ("! not calibrated" in text) == wrong[k]
        assert len(page.find_elements("css selector", f"#tippett .plot .curve.s{k}")) == (0 if wrong[k] else 2)
        assert len(page.find_elements("css selector", f"#ece .plot .curve.s{k}")) == (0 if wrong[k] else 2)
        assert len(page.find_elements("css selector", f"#bayes .plot .curve.s{k}")) == (1 if wrong[k] else 2)
        assert entries[k] == name + " (not calibrated)" * wrong[k]
    for scheme, media in (("light", ""), ("dark", ""), ("light", "print")):
        look(page, 1280, scheme, media)
        for badge in page.find_elements("css selector", "#verdict .badge"):
            assert badge.is_displayed()
            assert contrast(page, badge) > 4.5  # as WCAG AA asks for


def contrast(page, element):
    """The ratio of luminances of an element's text and of the section it stands on."""

    def luminance(colour):
        channels = np.array([int(v) / 255 for v in re.findall(r"\d+", colour)[:3]])
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    section = page.find_element("css selector", "#verdict").value_of_css_property("background-color")
    low, high = sorted(luminance(c) for c in (element.value_of_css_property("color"), section))
    return (high + 0.05) / (low + 0.05)


def test_metrics_table_shows_values_inside_their_intervals(page, report):
    rows = page.find_elements("css selector", "#metrics tbody tr")
    assert len(rows) == len(report.systems)
    for place, (row, (name, scores)) in enumerate(zip(rows, report.systems.items(), strict=True)):
        assert row.find_element("css selector", "th bdi").text == name
        cells = [c.text for c in row.find_elements("css selector", "td")]
        expected = metrics.measure(scores, report.labels, p_target=0.03, c_miss=1.0, c_fa=7.0)
        assert len(cells) == 6
        for k, (text, value) in enumerate(zip(cells, expected, strict=True)):
            if k == 2 and place in NO_RATIOS:
                assert text == "\N{EN DASH}"
                continue
            shown, interval = (part.replace(" %", "").replace("\N{INFINITY}", "inf") for part in text.split("\n"))
            low, high = map(float, interval.split("\N{EN DASH}"))
            assert float(shown) == pytest.approx(100 * value if k == 0 else value, abs=0.0051 if k == 0 else 0.00051)
            assert low <= float(shown) <= high or np.isinf(float(shown))


def test_hostile_texts_are_shown_and_do_nothing(page, report):
    assert page.execute_script("return window.hacked") is None
    assert page.find_elements("css selector", "img") == []
    assert page.title == "Report " + HOSTILE
    assert page.find_element("css selector", "h1").text == "Report " + HOSTILE
    page.find_element("css selector", "#worst summary").click()
    assert page.find_element("css selector", "#worst tbody tr td:nth-child(2)").text == HOSTILE
    for selector in (
        "#det .legend",
        "#decisions",
        "#metrics",
        "#conditions",
        "#worst",
        "#repeat pre",
        "#repeat table",
        "#data",
    ):
        assert HOSTILE in page.find_element("css selector", selector).text, selector
    heads = [h.text for h in page.find_elements("css selector", "#histograms h3")]
    assert heads == list(report.systems)


def test_worst_trials_are_the_worst(page, report):
    scores, labels = report.systems["duoplda"], report.labels
    tables = page.find_elements("css selector", "#worst table")
    assert not tables[0].is_displayed()  # folded
    page.find_element("css selector", "#worst summary").click()
    assert tables[0].is_displayed()
    assert len(tables) == 2 * len(report.systems)
    for table, expected in zip(tables, (np.sort(scores[labels])[:10], -np.sort(-scores[~labels])[:10]), strict=False):
        shown = [c.text.replace("\N{MINUS SIGN}", "-") for c in table.find_elements("css selector", "tbody .score")]
        np.testing.assert_allclose([float(v) for v in shown], expected, atol=0.0051)


def test_conditions_are_those_of_their_trials(page, report):
    own = np.arange(len(report.labels)) % 3 == 0
    rows = page.find_elements("css selector", "#conditions table:first-of-type tbody tr")
    row = next(r for r in rows if r.text.startswith("telephone"))
    cells = [c.text for c in row.find_elements("css selector", "td")]
    scores, labels = report.systems["duoplda"][own], report.labels[own]
    assert cells[0] == "duoplda"
    assert cells[1] == f"{100 * metrics.eer(scores, labels):.2f} %"
    assert cells[3] != "\N{EN DASH}"
    assert cells[-2:] == [f"{labels.sum():,}", f"{(~labels).sum():,}"]


def test_light_dark_and_print(page, report):
    def brightness(selector, style="background-color"):
        color = page.find_element("css selector", selector).value_of_css_property(style)
        return sum(map(int, re.findall(r"\d+", color)[:3])) / 3

    assert brightness("section") > 200
    assert brightness("body", "color") < 80
    look(page, 1280, "dark")
    assert brightness("section") < 60
    assert brightness("body") < 60
    assert brightness("body", "color") > 200
    look(page, 1280, "dark", "print")  # paper is white, whatever the screen is
    assert brightness("section") > 200
    assert brightness("body", "color") < 80
    assert not page.find_element("css selector", "nav").is_displayed()
    assert not page.find_element("id", "slider-prior").is_displayed()
    assert page.find_element("id", "decisions").is_displayed()
    look(page, 1280, "dark")
    pdf = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_fits_the_screen(page, width):
    look(page, width)
    page.refresh()
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    for chart in page.find_elements("css selector", "svg.plot"):
        assert chart.rect["width"] >= 240
        overlaps = page.execute_script(
            """
            const texts = [...arguments[0].querySelectorAll("text")];
            const boxes = texts.map((t) => t.getBoundingClientRect());
            const meet = (a, b) => a !== b && a.left < b.right && b.left < a.right &&
              a.top + 2 < b.bottom && b.top + 2 < a.bottom;
            return texts.filter((_, k) => boxes.some((b) => meet(boxes[k], b))).map((t) => t.textContent);
            """,
            chart,
        )
        assert overlaps == []
    shots = os.environ.get("DUOPLDA_SCREENSHOTS")  # a folder: look at them
    if shots:
        height = page.execute_script("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = page.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        with open(os.path.join(shots, f"report-{width}.png"), "wb") as file:
            file.write(base64.b64decode(shot["data"]))


def test_curves_follow_the_window(page):
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    def width():
        return page.find_element("css selector", "#det svg.plot").rect["width"]

    wide = width()
    look(page, 390)
    redrawn = WebDriverWait(page, 60, ignored_exceptions=[StaleElementReferenceException])
    assert redrawn.until(lambda _: width() < min(wide, 390))
    assert len(page.find_elements("css selector", "#det svg.plot")) == 1
