"""The page on a clustering: its numbers are those of the clustering, in a real browser too, and nothing leaves it."""

import base64
import json
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from duoplda import PLDA, DuopldaError, Recordings, plots
from duoplda.datasets import make_recordings
from duoplda.report import close_calls, weak_clusters, weak_pairs, write_cluster_report
from duoplda.trials.clustering import Clustering
from test_report import HOSTILE, browser, look  # noqa: F401

MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def found():
    """Speakers of a clustering that is not sure of itself; some are known, and names try to act as markup."""
    X, speaker, session, _ = make_recordings(45, (1, 5), (1, 3), n_dimensions=16, seed=3)
    plda = PLDA(8, 8, tol=1e-4).fit(X, speaker, session=session)
    last = np.array([name.endswith("-0") for name in session.tolist()])
    voices = np.isin(speaker, np.unique(speaker)[:6]) & last
    names = np.where(speaker == speaker[voices][0], HOSTILE, np.char.add("voice-", speaker.astype(str)))
    known = plda.enroll(X[voices], names[voices], session[voices])
    ids = np.array([HOSTILE if k == 7 else f"rec{k}" for k in range(len(X))], object)[~voices].astype(str)
    of = dict(zip(ids.tolist(), session[~voices].tolist(), strict=True))
    return plda.cluster(Recordings.from_arrays(X[~voices], ids=ids), session=of, known=known), list(of.values())


@pytest.fixture(scope="module")
def report(tmp_path_factory, found):
    clustering, session = found
    path = write_cluster_report(
        tmp_path_factory.mktemp("clusters") / "clusters.html",
        clustering,
        session=session,
        title="Speakers " + HOSTILE,
        data_counts={HOSTILE: HOSTILE},
        commands=["duoplda cluster --out utt2spk.tsv", HOSTILE],
        hashes={"model.safetensors": "0123abcd", HOSTILE: HOSTILE},
        most=12,
    )
    return SimpleNamespace(path=path, clustering=clustering, session=session)


def made(k, sessions=None, ny=3, seed=0):
    """A clustering of k speakers, each item of which is a session and a recording."""
    rng = np.random.default_rng(seed)
    sessions = np.ones(k, np.int64) if sessions is None else np.asarray(sessions)
    labels = np.repeat(np.arange(k), sessions)
    n = len(labels)
    first = np.flatnonzero(np.append(True, labels[1:] != labels[:-1]))
    merges, made_of = [], first.tolist()
    for i in range(n):
        if i not in first:
            merges.append((made_of[labels[i]], i, 1.0 + rng.random(), 0))
            made_of[labels[i]] = n + len(merges) - 1
    nearest = (np.arange(k) + 1) % k if k > 1 else np.array([-1])
    return Clustering(
        ids=np.array([f"rec{i}" for i in range(n)]),
        labels=labels,
        names=np.array([f"spk{i + 1}" for i in range(k)]),
        known=np.zeros(k, bool),
        sessions=sessions,
        support=rng.random(k),
        split=np.where(sessions > 1, rng.random(k), np.inf),
        nearest=nearest,
        merge=np.where(nearest < 0, -np.inf, -rng.random(k)),
        item=np.arange(n),
        runner_up=np.full(n, -1),
        margin=rng.random(n),
        merges=np.array(merges, float).reshape(-1, 4),
        leaves=n,
        log_posterior=1.5,
        means=rng.standard_normal((k, ny)),
        prior=0.02,
        exact=True,
    )


def cells(text, section):
    """The texts of the table in a section, row by row, the marks around them left out."""
    body = re.search(rf'<section id="{section}">.*?<tbody>(.*?)</tbody>', text, re.S)[1]
    parts = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)]
    return [[re.sub(r"<[^>]*>", "", cell).replace(MINUS, "-") for cell in row] for row in parts]


# -- what is doubtful


def test_what_is_doubtful_comes_first(found):
    c, _ = found
    split = sorted((value, k) for k, value in enumerate(c.split.tolist()) if np.isfinite(value))
    assert weak_clusters(c, 5) == [k for _, k in split[:5]]
    margin = sorted((value, k) for k, value in enumerate(c.margin.tolist()))
    assert close_calls(c, 7) == [k for _, k in margin[:7]]
    pairs = []
    for _, k in sorted((-value, k) for k, value in enumerate(c.merge.tolist()) if c.nearest[k] >= 0):
        pair = tuple(sorted((k, int(c.nearest[k]))))
        pairs += [pair] * (pair not in pairs)
    assert weak_pairs(c, 6) == pairs[:6]
    assert len(pairs) > 6


def test_what_cannot_be_doubted_is_left_out():
    one = made(1)
    assert weak_clusters(one) == []
    assert weak_pairs(one) == []
    two = replace(made(2), margin=np.array([np.inf, 1.0]))
    assert weak_pairs(two) == [(0, 1)]
    assert close_calls(two) == [1]


# -- the page, without a browser


def test_page_is_complete_escaped_and_allows_no_request(report):
    text = report.path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert "script-src" not in text
    assert "<img" not in text
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", text)
    assert "http" not in text.replace("http-equiv", "")
    assert not re.search(r"\bstyle=", text)  # the policy forbids it
    assert re.findall(r'href="#(\w+)"', text) == re.findall(r'<section id="(\w+)"', text)


def test_tables_hold_the_numbers_of_the_clustering(report):
    c, text = report.clustering, report.path.read_text(encoding="utf-8")
    sizes = cells(text, "sizes")
    assert len(sizes) == 30
    order = np.argsort(-c.sessions, kind="stable")[:30]
    recordings = np.bincount(c.labels)
    for (who, _, sessions, n, support), k in zip(sizes, order, strict=True):
        assert who.endswith("(known)") == c.known[k]
        assert (int(sessions), int(n)) == (c.sessions[k], recordings[k])
        assert float(support) == pytest.approx(c.support[k], abs=0.051)
    single = int((c.sessions[np.argsort(-c.sessions, kind="stable")[30:]] == 1).sum())
    assert f"{len(c) - 30} further speakers, {single} of them with one session" in text
    merges = cells(text, "merges")
    assert [float(row[3]) for row in merges] == pytest.approx(c.split[weak_clusters(c, 12)], abs=0.051)
    splits = cells(text, "splits")
    best = np.sort(c.merge)[::-1][0]
    assert float(splits[0][2]) == pytest.approx(best, abs=0.051)
    assert len(splits) == 12
    for (what, _, _, margin, odds), item in zip(cells(text, "sessions"), close_calls(c, 12), strict=True):
        row = int(np.flatnonzero(c.item == item)[0])
        assert what.startswith(report.session[row])
        assert float(margin) == pytest.approx(c.margin[item], abs=0.051)
        assert float(odds.split(" : ")[0].replace(",", "")) == pytest.approx(np.exp(c.margin[item]), rel=0.06, abs=0.51)


@pytest.mark.parametrize(
    ("nats", "odds"), [(0.0, "1.0 : 1"), (3.0, "20 : 1"), (-3.0, "1 : 20"), (99.0, "&gt; 1,000,000 : 1")]
)
def test_nats_are_also_odds(tmp_path, nats, odds):
    c = replace(made(2, [2, 1]), split=np.array([nats, np.inf]))
    text = write_cluster_report(tmp_path / "r.html", c).read_text()
    assert cells(text, "merges")[0][3:] == [f"{nats:.1f}", odds]


def test_many_speakers_make_a_small_page(tmp_path):
    c = made(3, [1, 1, 1])
    k = 50_000
    grown = {name: np.resize(getattr(c, name), k) for name in ("known", "sessions", "support", "split", "merge")}
    names = np.array([f"s{i}" * 20 for i in range(k)])
    grown |= {"nearest": np.roll(np.arange(k), 1), "names": names, "labels": np.arange(k), "item": np.arange(k)}
    grown |= {"ids": np.arange(k), "runner_up": np.full(k, -1), "margin": np.arange(k) / 7.0}
    path = write_cluster_report(tmp_path / "r.html", replace(c, **grown, means=np.random.default_rng(0).random((k, 5))))
    assert path.stat().st_size < 400_000
    text = path.read_text()
    assert "The 1,000 largest of 50,000 are shown" in text
    assert text.count("<circle") == 1001  # one of them is in the legend


def test_few_speakers_have_a_page_too(tmp_path):
    for k, sessions in ((1, [1]), (1, [3]), (2, [1, 1])):
        for ny in (1, 2):
            path = write_cluster_report(tmp_path / "r.html", made(k, sessions, ny), force=True)
            text = path.read_text()
            assert ('id="map"' in text) == (k > 1)
            assert ('id="merges"' in text) == (max(sessions) > 1)
            assert "nan" not in text
    same = replace(made(2), means=np.zeros((2, 3)))
    assert "nan" not in write_cluster_report(tmp_path / "r.html", same, force=True).read_text()


def test_the_file_is_whole_and_not_replaced_unasked(tmp_path):
    path = write_cluster_report(tmp_path / "r.html", made(3))
    first = path.read_bytes()
    with pytest.raises(DuopldaError, match="exists"):
        write_cluster_report(path, made(3))
    assert write_cluster_report(path, made(3), force=True).read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    with pytest.raises(DuopldaError, match=r"shape \(1,\) for 3 recordings"):
        write_cluster_report(tmp_path / "s.html", made(3), session=["a"])


def test_control_characters_are_shown(tmp_path):
    c = replace(made(2), names=np.array(["a\x00b", "c\u202ed"]), ids=np.array(["e\x1bf", "g"]))
    text = write_cluster_report(tmp_path / "r.html", c).read_text(encoding="utf-8")
    assert "a\\x00b" in text
    assert "c\\u202ed" in text
    assert "e\\x1bf" in text
    assert not {"\x00", "\u202e", "\x1b"} & {*text}


# -- in Chromium


@pytest.fixture
def page(browser, report):  # noqa: F811
    """The page at desktop width; afterwards the console must be silent and no request have left."""
    look(browser, 1280)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(report.path.as_uri())
    yield browser
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert {url.split("#")[0] for url in urls} <= {report.path.as_uri(), "data:,"}
    assert urls


def test_hostile_texts_are_shown_and_do_nothing(page, report):
    assert page.execute_script("return window.hacked") is None
    assert page.find_elements("css selector", "img") == []
    assert page.title == "Speakers " + HOSTILE
    for selector in ("#data", "#repeat pre", "#repeat table"):
        assert HOSTILE in page.find_element("css selector", selector).text, selector
    titles = page.execute_script("return [...document.querySelectorAll('#map title')].map((t) => t.textContent)")
    sessions = int(report.clustering.sessions[report.clustering.names.tolist().index(HOSTILE)])
    assert f"{HOSTILE}: {sessions} session{'s' * (sessions != 1)}" in titles


def test_bars_are_as_long_as_speakers_are_large(page, report):
    widths = page.execute_script(
        "return [...document.querySelectorAll('svg.bar rect')].map((r) => r.getBoundingClientRect().width)"
    )
    sizes = np.sort(report.clustering.sessions)[::-1][:30]
    np.testing.assert_allclose(np.array(widths) / widths[0], sizes / sizes[0], atol=0.02)


def test_the_map_is_the_plane_of_largest_variance(page, report):
    c = report.clustering
    boxes = page.execute_script(
        """
        return [...document.querySelectorAll("#map svg.map .point")].map((p) => {
          const box = p.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2, p.tagName];
        });
        """
    )
    order = np.argsort(-c.sessions, kind="stable")
    at, _ = plots.principal_plane(c.means)
    drawn = np.array([box[:2] for box in boxes]) * [1, -1]
    plane = at[order]
    scale = np.ptp(drawn[:, 0]) / np.ptp(plane[:, 0])
    np.testing.assert_allclose(drawn - drawn.mean(axis=0), scale * (plane - plane.mean(axis=0)), atol=0.6)
    assert [box[2] == "path" for box in boxes] == c.known[order].tolist()


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_fits_the_screen(page, width):
    look(page, width)
    page.refresh()
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    chart = page.find_element("css selector", "svg.map")
    assert chart.rect["width"] >= 240
    found = page.execute_script(
        """
        const texts = [...arguments[0].querySelectorAll("text")], own = arguments[0].getBoundingClientRect();
        const boxes = texts.map((t) => t.getBoundingClientRect());
        const meet = (a, b) => a !== b && a.left < b.right && b.left < a.right &&
          a.top + 2 < b.bottom && b.top + 2 < a.bottom;
        const out = (b) => b.left < own.left || b.right > own.right || b.top < own.top || b.bottom > own.bottom;
        const scale = own.width / arguments[0].viewBox.baseVal.width;
        const sizes = texts.map((t) => parseFloat(getComputedStyle(t).fontSize) * scale);
        return [texts.filter((_, k) => boxes.some((b) => meet(boxes[k], b)) || out(boxes[k])).map((t) => t.textContent),
                texts.length, Math.min(...sizes)];
        """,
        chart,
    )
    assert found[0] == []
    assert found[1] > 4  # two axes, and names
    assert found[2] > 9  # pixels
    shots = os.environ.get("DUOPLDA_SCREENSHOTS")  # a folder: look at them
    if shots:
        height = page.execute_script("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = page.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        with open(os.path.join(shots, f"clusters-{width}.png"), "wb") as file:
            file.write(base64.b64decode(shot["data"]))


def test_tables_can_be_reached_and_heads_are_in_order(page):
    heads = page.execute_script("return [...document.querySelectorAll('h1, h2, h3')].map((h) => h.tagName)")
    assert heads[0] == "H1"
    assert "H1" not in heads[1:]
    for region in page.find_elements("css selector", ".scroll"):
        assert region.get_attribute("tabindex") == "0"
        assert region.find_elements("css selector", 'th[scope="col"]')
    assert page.find_element("css selector", "svg.map").get_attribute("aria-label").startswith("Map of ")


def test_dark_and_print(page):
    def brightness(selector, style="background-color"):
        color = page.find_element("css selector", selector).value_of_css_property(style)
        return sum(map(int, re.findall(r"\d+", color)[:3])) / 3

    look(page, 1280, "dark")
    assert brightness("section") < 60
    assert brightness("svg.map text", "fill") > 120
    look(page, 1280, "dark", "print")
    assert brightness("section") > 200
    look(page, 1280)


# -- plots


def test_principal_plane_is_that_of_the_covariance():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 6)) * [3, 2, 1, 0.5, 0.2, 0.1] @ np.linalg.qr(rng.standard_normal((6, 6)))[0]
    at, shares = plots.principal_plane(rows)
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    np.testing.assert_allclose(shares, values[:-3:-1] / values.sum())
    direct = (rows - rows.mean(axis=0)) @ vectors[:, :-3:-1]
    np.testing.assert_allclose(np.abs(at), np.abs(direct), atol=1e-9)
    for flat in (np.zeros((3, 2)), np.zeros((1, 4)), np.ones((2, 1))):
        at, shares = plots.principal_plane(flat)
        assert at.shape == (len(flat), 2)
        assert not at.any()
        assert shares.tolist() == [0, 0]
    with pytest.raises(DuopldaError, match="shape"):
        plots.principal_plane([1.0, 2.0])


def test_cluster_sizes_are_drawn_in_order(found):
    pytest.importorskip("matplotlib")
    c, _ = found
    ax = plots.cluster_sizes(c)
    drawn = sum(patch.get_data().values for patch in ax.patches)
    assert drawn.tolist() == sorted(c.sessions.tolist(), reverse=True)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        f"found ({(~c.known).sum()})",
        f"known ({c.known.sum()})",
    ]


def test_cluster_map_shows_every_speaker(found, tmp_path):
    pytest.importorskip("matplotlib")
    c, _ = found
    ax = plots.cluster_map(c)
    at, _ = plots.principal_plane(c.means)
    drawn = [np.asarray(points.get_offsets()) for points in ax.collections]
    np.testing.assert_allclose(drawn[0], at[~c.known])
    np.testing.assert_allclose(drawn[1], at[c.known])
    assert len(ax.texts) == 8
    plots.save(ax, tmp_path / "map.svg")
    plots.save(plots.cluster_map(replace(c, names=np.array(["$x_$"] * len(c)))), tmp_path / "odd.svg")


def test_dendrogram_joins_what_was_merged():
    pytest.importorskip("matplotlib")
    c = made(3, [3, 2, 1])
    line = plots.dendrogram(c).lines[0]
    x, y = (np.reshape(v, (-1, 5))[:, :4] for v in line.get_data())
    assert len(x) == len(c.merges) == 3
    expected = c.linkage()
    np.testing.assert_allclose(y[:, 1], expected[:3, 2])
    np.testing.assert_allclose(y[:, 1], y[:, 2])
    feet = {0.0: set()}
    for (a, _, b, _), (low, _, _, right) in zip(x, y, strict=True):
        for place, height in ((a, low), (b, right)):
            if height == 0 and place == round(place):
                feet[0.0].add(place)
    assert len(feet[0.0]) == 5  # leaves that were merged; the sixth session stands alone
    with pytest.raises(DuopldaError, match="nothing was merged"):
        plots.dendrogram(made(3))


def test_dendrogram_of_a_deep_tree():
    pytest.importorskip("matplotlib")
    assert len(plots.dendrogram(made(1, [5000])).lines[0].get_xdata()) == 5 * 4999
