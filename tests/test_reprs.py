"""How models, statistics, sides and clusters show themselves, as text and in notebooks."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_html_repr

from duoplda import PLDA, Backend, Statistics, display
from duoplda.datasets import make_recordings
from duoplda.model.summary import level_covariances, variance_directions, variance_shares

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x1b[31m\u202e"
VOID = {"br", "img", "meta", "link", "input", "hr", "rect"}


@pytest.fixture(scope="module")
def data():
    return make_recordings(40, (1, 4), (1, 3), n_dimensions=8, n_speaker_factors=4, n_session_factors=4, seed=0)


@pytest.fixture(scope="module")
def backend(data):
    """A fitted chain whose kinds of channels have hostile names."""
    kind = np.array([HOSTILE, "mic"])[np.arange(len(data.X)) % 2]
    return Backend(lda=6, plda=PLDA(shrinkage="auto")).fit(data.X, data.speaker, session=data.session, channel=kind)


@pytest.fixture(scope="module")
def objects(data, backend):
    """One of each, with hostile names wherever a name can stand."""
    speaker = np.char.add(HOSTILE, data.speaker.astype(str))
    session = np.char.add(HOSTILE, data.session.astype(str))
    kind = np.array([HOSTILE, "mic"])[np.arange(len(data.X)) % 2]
    sides = backend.enroll(data.X, speaker, session, kind)
    return {
        "Backend": backend,
        "PLDA": backend.plda_,
        "Model": backend.plda_.model_,
        "Statistics": Statistics.from_arrays(data.X, speaker, session, kind, n_folds=2),
        "Sides": sides,
        "Clustering": backend.cluster(data.X, session, known=backend.enroll(data.X[:60], speaker[:60])),
    }


class Reader(HTMLParser):
    """Reads HTML, and notes its tags, attributes and text; tags that are not closed in order are an error."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.stack, self.tags, self.attributes, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.stack
    return reader


def card_of(shown):
    """The HTML that is ours: scikit-learn's diagram of an estimator follows it."""
    html = shown._repr_html_()
    return html.partition("<div><style>")[0] if isinstance(shown, BaseEstimator) else html


KINDS = ["Backend", "PLDA", "Model", "Statistics", "Sides", "Clustering"]


@pytest.mark.parametrize("name", KINDS)
def test_html_is_plain_and_whole(objects, name):
    found = read(card_of(objects[name]))
    allowed = {"div", "strong", "dl", "dt", "dd", "bdi", "span", "svg", "g", "rect", "title"}
    assert set(found.tags) <= allowed | {"table", "thead", "tbody", "tr", "th", "td"}
    assert not any(key.startswith("on") or key in ("src", "href") for key, _ in found.attributes)
    assert not any("url(" in (value or "") or "@import" in (value or "") for _, value in found.attributes)
    assert not set(found.text) & set("\x1b\u202e")
    assert name in found.text


@pytest.mark.parametrize("name", KINDS)
def test_hostile_names_are_texts(objects, name):
    shown = HOSTILE[:20]
    assert shown in read(card_of(objects[name])).text
    assert shown in repr(objects[name]) or name == "Clustering"  # whose text has no names


@pytest.mark.parametrize("name", KINDS)
def test_text_is_short_and_cannot_steer_a_terminal(objects, name):
    text = repr(objects[name])
    assert not set(text) & set("\x1b\u202e")
    assert len(text.splitlines()) <= 3
    assert len(text) < 800


def test_numbers_are_those_of_the_object(data, objects):
    N, H, M = len(data.X), len(np.unique(data.session)), len(np.unique(data.speaker))
    for name in ("Statistics", "Sides"):
        assert f" {N:,} recordings" in repr(objects[name])
        assert f" {H:,} sessions" in repr(objects[name])
    assert f" {M} speakers" in repr(objects["Statistics"])
    assert "8 dimensions" in repr(objects["Statistics"])
    assert f"{M} sides" in repr(objects["Sides"])
    assert f"trained on: {N} recordings, {H} sessions, {M} speakers" in repr(objects["Backend"])
    assert "dimensions: 8 in, 6 in the PLDA; 6 speaker and 6 session factors" in repr(objects["Backend"])
    clusters = objects["Clustering"]
    assert f"<Clustering: {len(clusters)} speakers, {N} recordings" in repr(clusters)
    assert f"{int(clusters.known.sum())} known speakers" in repr(clusters)


def test_open_sessions_are_counted(data):
    some = Statistics.from_arrays(data.X, data.speaker, data.session, close=False)
    assert f"{len(np.unique(data.session))} open sessions" in repr(some)
    folds = Statistics.from_arrays(data.X, data.speaker, data.session, close=False, n_folds=3)
    assert f"3 folds, {len(np.unique(data.session))} open sessions" in repr(folds)


def test_many_ids_are_not_all_written(backend, data):
    sides = backend.enroll(np.repeat(data.X, 20, axis=0), np.arange(20 * len(data.X)))
    assert repr(sides).endswith(f", ... ({20 * len(data.X):,} in all)>")
    assert len(repr(sides)) < 300


# -- estimators


LONG = {"enrolment": ((1, 1), (3, None)), "priors": (0.5, 0.01, 0.001), "max_iter": 1000, "tol": 1e-4, "n_folds": 7}


@pytest.mark.parametrize("estimator", [PLDA(), Backend(), PLDA(**LONG), Backend(plda=PLDA(**LONG))])
def test_without_training_it_is_what_scikit_learn_writes(estimator):
    text = repr(estimator)
    assert eval(text, {"PLDA": PLDA, "Backend": Backend}).get_params().keys() == estimator.get_params().keys()
    assert max(map(len, text.splitlines())) <= 80  # scikit-learn's printer breaks lines, in inner estimators too
    assert "#" not in text
    with sklearn.config_context(print_changed_only=False):
        assert "whiten=" in repr(estimator) or "minimum_divergence=" in repr(estimator)

    def but_for_numbers(html):
        return re.sub(r"sk-\w+(-\w+)*-\d+", "", html)

    assert but_for_numbers(estimator._repr_html_()) == but_for_numbers(estimator_html_repr(estimator))


def test_fitted_its_parameters_can_still_be_pasted(backend):
    first, *comments = repr(backend).splitlines()
    assert first == repr(clone(backend)) == "Backend(lda=6, plda=PLDA(shrinkage='auto'))"
    assert comments
    assert all(comment.startswith("# ") for comment in comments)
    again = eval(repr(backend), {"PLDA": PLDA, "Backend": Backend})
    assert repr(again) == first
    assert str(backend) == repr(backend)


def test_inside_of_others_it_is_its_parameters(backend):
    assert "#" not in repr(make_pipeline(backend.plda_))
    assert "#" not in repr(Backend(plda=backend.plda_))


def test_variance_shares_are_those_of_the_model(backend):
    p = backend.plda_
    parts = level_covariances(p.speaker_loadings_, p.session_loadings_, p.noise_precision_, p.channel_priors_)
    for name, share in variance_shares(*parts).items():
        assert f"{name} {100 * share:.1f} %" in repr(backend)
        assert f"{name} {100 * share:.1f} %" in read(card_of(backend)).text


def test_the_plot_shows_each_direction(backend):
    text = read(card_of(backend)).text
    for i, share in enumerate(variance_directions(backend.plda_).speaker):
        assert f"direction {i + 1}: speaker {100 * share:.0f} %" in text


def test_columns_of_many_directions_are_means():
    values = np.linspace(1, 0, 100)
    html = display.shares_columns({"speaker": values.tolist(), "session": (1 - values).tolist()}, "title", most=10)
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" fill="#', html)]
    np.testing.assert_allclose(heights[::2], 64 * values.reshape(10, 10).mean(axis=1), atol=0.01)
    np.testing.assert_allclose(np.add(heights[::2], heights[1::2]), 64, atol=0.02)
    assert "directions 91 to 100" in html


def test_a_bar_is_as_long_as_its_share():
    html = display.shares_bar({"speaker": 0.5, "session": 0.25, "channel": 0.25})
    assert re.findall(r'<rect x="([\d.]+)" width="([\d.]+)"', html) == [
        ("0.0", "180.0"),
        ("180.0", "90.0"),
        ("270.0", "90.0"),
    ]


def test_the_diagram_of_scikit_learn_is_still_there(backend):
    html = backend._repr_html_()
    assert html.startswith('<div class="duoplda-card"')
    assert "sk-container-id" in html
    bundle = backend._repr_mimebundle_()
    assert bundle["text/plain"] == repr(backend)
    assert "duoplda-card" in bundle["text/html"]
    with sklearn.config_context(display="text"):
        assert not hasattr(backend, "_repr_html_")
        assert backend._repr_mimebundle_() == {"text/plain": repr(backend)}


def test_what_training_did_is_shown(data):
    labels = {"y": data.speaker, "session": data.session}
    with pytest.warns(sklearn.exceptions.ConvergenceWarning):
        plda = PLDA(max_iter=1).fit(data.X, **labels)
    assert "EM: not converged in 1 iterations" in repr(plda)
    assert "ratios: not calibrated" in repr(plda)
    given = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    assert "dimensions: 1; 1 speaker and 0 session factors" in repr(given)
    assert "speaker 50.0 %" in read(card_of(given)).text


def test_an_adapted_model_says_so(data):
    backend = Backend(plda=PLDA(shrinkage=0.1)).fit(data.X, data.speaker, session=data.session)
    assert "adapted" not in repr(backend)
    assert "adapted: labels" in repr(backend.adapt(data.X + 1, data.speaker, data.session))


def luminance(colour):
    """Of sRGB, as the contrast of WCAG 2 needs it."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def test_colours_stand_out_in_the_light_and_in_the_dark():
    for colour in display.LEVELS.values():
        own = luminance(colour)
        assert 1.05 / (own + 0.05) >= 3
        assert (own + 0.05) / (luminance("#111111") + 0.05) >= 3


def test_tensors():
    torch = pytest.importorskip("torch")
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    assert "on cpu" in repr(plda.enroll(torch.zeros(2, 1, dtype=torch.float64), ["a", "b"]))
    assert "on" not in plda.enroll(np.zeros((2, 1)), ["a", "b"])._facts()
