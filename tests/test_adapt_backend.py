"""Whole adaptations, by labels, by sessions or by nothing: what comes back, what is refused, and what it is worth."""

import copy
import json
import pickle
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from duoplda import PLDA, Backend, DomainWarning, DuopldaError, Recordings, Statistics, metrics
from duoplda.data.labels import folds as folds_of
from duoplda.data.recordings import Relabelled
from duoplda.datasets import draw, make_recordings, sample
from duoplda.estimators.adaptation import METHODS
from duoplda.estimators.preprocessing import through
from duoplda.model.adaptation import usual_shares
from duoplda.model.parameters import checked
from duoplda.observer import Observer
from duoplda.selection.adaptation import OFFSET_LIMIT, SCALE_LIMITS
from test_statistics import assert_equal_statistics

SHARED = Path(__file__).parents[2] / "shared" / "data"
D, FAR = 8, 500.0


def drawn(model, n_speakers, seed, sessions=(2, 6), recordings=(1, 4), prefix="", priors=None):
    """Recordings in random order, and their speakers, sessions and kinds."""
    X, speaker, session, kind = draw(model, n_speakers, sessions, recordings, seed, priors)
    order = np.random.default_rng(seed).permutation(len(X))
    speaker, session = (np.char.add(prefix, c[order]) for c in (speaker, session))
    return X[order], speaker, session, model.kinds[kind[order]]


def covariances(model):
    return model.V @ model.V.T, model.U @ model.U.T, np.linalg.inv(model.W)


def factor(C):
    s, E = np.linalg.eigh(C)
    return E * np.sqrt(np.maximum(s, 0))


def source_model(d=D, **variances):
    sizes = {"n_dimensions": d, "n_speaker_factors": d, "n_session_factors": d}
    model = make_recordings(2, **sizes, mean=3.0, seed=0, **variances).model
    return replace(model, mu=model.mu + FAR)


def other_domain(model, seed, speaker, session, noise, shift=1.5):
    """The model with its mean elsewhere, and its covariances with other sizes in other directions.

    `speaker`, `session` and `noise` are the smallest and the largest factor by which deviations change.
    """
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(D, D)))[0]
    A = [Q * np.geomspace(*sizes, D) @ Q.T for sizes in (speaker, session, noise)]
    B, S, N = covariances(model)
    W = np.stack([np.linalg.inv(A[2] @ n @ A[2].T) for n in N])
    mu = model.mu + rng.normal(size=D) * shift
    one = model.K == 1
    kinds = None if one else model.kinds
    loadings = factor(A[0] @ B @ A[0].T), factor(A[1] @ S @ A[1].T)
    return checked(mu[0] if one else mu, *loadings, W[0] if one else W, kinds)


SOURCE = source_model(speaker_variance=3.0)
TARGET = other_domain(SOURCE, 1, (0.3, 2.0), (0.3, 2.0), (0.45, 3.0))
TRAIN = drawn(SOURCE, 100, 1)[:3]
ADAPT = drawn(TARGET, 30, 2, (2, 4), (1, 3), prefix="t")[:3]
FRESH = drawn(TARGET, 60, 3, (4, 4), (2, 2), prefix="f")[:3]
QUICK = PLDA(tol=1e-4)


@pytest.fixture(scope="module")
def plda():
    return clone(QUICK).fit(*TRAIN)


@pytest.fixture(scope="module")
def backend():
    """With a calibration of its own."""
    return Backend(plda=PLDA(tol=1e-4, shrinkage="auto", random_state=0)).fit(*TRAIN)


@pytest.fixture(scope="module")
def adapted(plda, backend):
    """Adaptations to `ADAPT` of either, by what is known of it; each is made once."""
    given = {"speakers": ADAPT, "sessions": (ADAPT[0], None, ADAPT[2]), "nothing": ADAPT[:1]}

    @lru_cache(None)
    def make(source, known, method):
        return {"plda": plda, "backend": backend}[source].adapt(*given[known], method=method)

    return lambda source, known, method="auto": make(source, known, method)


@pytest.fixture(scope="module")
def by_labels(adapted):
    return adapted("plda", "speakers")


def trials(model, data=FRESH, channel=None):
    """Two sessions of each speaker against the first recordings of the others: ratios, and which are targets."""
    X, speaker, session = data[:3]
    first = np.zeros(len(X), bool)
    for i in np.unique(speaker):
        first |= np.isin(session, np.unique(session[speaker == i])[:2])
    tested = np.flatnonzero(~first)
    tested = tested[np.unique(session[tested], return_index=True)[1]]
    kinds = [None, None] if channel is None else [channel[first], channel[tested]]
    enrolled = model.enroll(X[first], speaker[first], session[first], kinds[0])
    tests = model.enroll(X[tested], np.arange(len(tested)), None, kinds[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DomainWarning)  # some models are not adapted
        found = model.llr(enrolled, tests)
    return found.ravel(), (enrolled.ids[:, None] == speaker[tested]).ravel()


def cllr(model, *given):
    scores, label = trials(model, *given)
    return metrics.cllr(scores, label)


def raw(model):
    """The same without a calibration."""
    bare = copy.deepcopy(model)
    bare.calibration_ = None
    return bare


def model_of(fitted):
    return getattr(fitted, "plda_", fitted).model_


def assert_same_model(a, b, tolerance=1e-9):
    """Loadings may be rotated: their covariances are not."""
    a, b = model_of(a), model_of(b)
    assert a.kinds.tolist() == b.kinds.tolist()
    for x, y in zip(covariances(a), covariances(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.abs(y).max())
    deviation = np.sqrt(np.abs(covariances(b)[0]).max())
    np.testing.assert_allclose(a.mu, b.mu, rtol=tolerance, atol=tolerance * deviation)


def assert_same(a, b, tolerance=1e-9):
    """The model, the steps and what they say."""
    assert_same_model(a, b, tolerance)
    for name, step in getattr(a, "steps_", {}).items():
        for key, value in vars(step).items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                np.testing.assert_allclose(value, vars(b.steps_[name])[key], rtol=tolerance, atol=tolerance)
    first, second = (json.loads(json.dumps(x.adapted_), parse_float=lambda text: round(float(text), 5)) for x in (a, b))
    assert first == second
    for x, y in zip(trials(a), trials(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def assert_sound(adapted):
    model = model_of(adapted)
    for part in (model.mu, model.V, model.U, model.W):
        assert np.isfinite(part).all()
    np.linalg.cholesky(model.W)
    story = json.loads(json.dumps(adapted.adapted_))
    assert story == adapted.adapted_
    assert "NaN" not in json.dumps(story)
    assert story["method"] in METHODS
    assert 0 <= story["centre"] <= 1
    assert story["calibration"]["reason"]
    if "scale" in story["calibration"]:
        assert SCALE_LIMITS[0] <= story["calibration"]["scale"] <= SCALE_LIMITS[1]
        assert abs(story["calibration"]["offset"]) <= OFFSET_LIMIT


# -- from nothing of the target to all of it


@pytest.mark.parametrize("what", ["backend", "plda"])
def test_zero_weight_gives_the_source_to_the_last_bit(what, request):
    source = request.getfixturevalue(what)
    same = source.adapt(*ADAPT, method="labels", weights=(0, 0, 0), centre=0)
    assert same is not source
    for part in ("mu", "V", "U", "W"):
        np.testing.assert_array_equal(getattr(model_of(same), part), getattr(model_of(source), part))
    for name, step in getattr(source, "steps_", {}).items():
        for key, value in vars(step).items():
            np.testing.assert_array_equal(vars(same.steps_[name])[key], value)
    np.testing.assert_array_equal(trials(same)[0], trials(source)[0])
    assert same.adapted_["method"] == "labels"
    assert "give the target no influence" in same.adapted_["notes"][0]


@pytest.mark.parametrize("options", [{"method": "sessions", "weights": (0, 0)}, {"method": "total", "weights": 0}])
def test_zero_weight_of_other_methods(backend, options):
    same = backend.adapt(*ADAPT, centre=0, **options)
    np.testing.assert_array_equal(trials(same)[0], trials(backend)[0])


def test_the_source_stays_as_it_is(backend):
    before, scores = pickle.dumps((backend.steps_, backend.plda_)), trials(backend)[0]
    for method in ("labels", "total", "kaldi"):
        backend.adapt(*ADAPT, method=method)
    assert pickle.dumps((backend.steps_, backend.plda_)) == before
    np.testing.assert_array_equal(trials(backend)[0], scores)
    assert backend.adapted_ is None


def test_weight_one_and_many_speakers_give_the_targets_own_covariances(plda):
    """Those that PLDA.fit finds in the same data: the distance shrinks with the number of speakers."""
    distances = []
    for n in (60, 960):
        data = drawn(TARGET, n, 5)[:3]
        stats = Statistics.from_arrays(*data)
        own = clone(QUICK).fit_statistics(stats)
        adapted = plda.adapt(stats, method="labels", weights=(1, 1, 1), centre=1)
        pairs = zip(covariances(model_of(adapted)), covariances(model_of(own)), strict=True)
        distances.append([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])
        size = np.sqrt(np.diagonal(covariances(model_of(own))[0]) / n)
        assert (np.abs(model_of(adapted).mu - model_of(own).mu) < 3 * size).all()
    assert (np.array(distances[1]) < (0.05, 0.05, 0.03)).all()
    assert (np.array(distances[1]) < np.array(distances[0])).all()
    pairs = zip(covariances(SOURCE), covariances(TARGET), strict=True)
    assert min(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs) > 0.5  # so that the source would not do


def off(adapted):
    """How far a model is from the truth: the divergence of the pair of same speakers, from both sides."""

    def pair(model):
        B, S, N = covariances(model)
        total = B + S + N[0]
        return np.block([[total, B], [B, total]])

    A, C = pair(model_of(adapted)), pair(TARGET)
    step = np.tile(model_of(adapted).mu[0] - TARGET.mu[0], 2)
    spread = np.trace(np.linalg.solve(A, C)) + np.trace(np.linalg.solve(C, A)) - 2 * len(A)
    return spread + step @ (np.linalg.inv(A) + np.linalg.inv(C)) @ step


LEARNING = {"labels": "speakers", "clusters": "sessions", "sessions": "sessions", "total": "nothing"}


@pytest.mark.parametrize("method", LEARNING)
def test_known_covariances_are_recovered_better_than_by_centring(plda, backend, adapted, method):
    known, asked = LEARNING[method], "sessions" if method == "sessions" else "auto"
    new, centred = adapted("plda", known, asked), adapted("plda", known, "centre")
    assert new.adapted_["method"] == method
    # Where nothing is known, what has grown is given to sessions and noise, and not to the speakers, whoever it was.
    nearer = 0.95 if method == "total" else 0.6
    assert off(new) < nearer * off(centred)
    assert off(centred) < off(plda)
    if method == "total":
        assert cllr(new) < 0.5 * cllr(centred)
    for what, source in (("plda", plda), ("backend", backend)):
        new, centred = adapted(what, known, asked), adapted(what, known, "centre")
        assert_sound(new)
        # Where nothing is known, ten recordings count as one speaker, so that few people's do no harm: less is gained.
        gain = 0.96 if method == "total" else 0.9
        assert cllr(raw(new)) < gain * min(cllr(raw(centred)), cllr(raw(source)))
        assert cllr(new) < 0.97 * min(cllr(centred), cllr(source))


def test_a_calibration_that_nothing_tells_of_is_not_kept_without_a_word(adapted):
    story = adapted("backend", "nothing").adapted_
    assert story["calibration"] == {"reason": "that of the source stays"}
    assert any("calibration may not hold here" in note for note in story["notes"])


def test_what_kaldi_does_helps_less(adapted):
    labelled = cllr(adapted("backend", "speakers"))
    new = adapted("backend", "nothing", "kaldi")
    assert_sound(new)
    assert new.adapted_["centre"] == 1
    assert labelled < 0.97 * cllr(new) < cllr(adapted("backend", "nothing", "centre"))


# -- a target like the source


CHANGES = {
    "none": {},
    "speaker": {"V": factor(np.diag(np.geomspace(0.2, 12, D)))},
    "session": {"U": factor(np.diag(np.geomspace(6, 0.1, D)))},
    "noise": {"W": SOURCE.W / 3},
}


@pytest.mark.parametrize("level", CHANGES)
def test_the_level_that_has_changed_moves(plda, level):
    """Speakers who are left out choose it, whatever the mean and the noise are."""
    X, speaker, session, _ = drawn(replace(SOURCE, **CHANGES[level]), 30, 3, (2, 4), (2, 4))
    story = plda.adapt(X, speaker, session).adapted_
    moved = {name for name in ("speaker", "session", "noise") if story["chosen"][name]}
    assert {name for name, share in story["shares"].items() if share} == moved
    assert (level in moved) == bool(moved) == (level != "none")
    if level == "none":
        assert story["chosen"]["gain"] == 0
        assert "no level that moves makes held-out speakers more likely" in story["notes"][0]
    else:
        assert story["chosen"]["gain"] > story["chosen"]["error"] > 0


def test_sessions_of_unknown_speakers_move_what_is_above_the_noise_half_as_far(plda):
    """Each session counts as a speaker."""
    X, _, session = ADAPT
    story = plda.adapt(Statistics.from_arrays(X, None, session, n_folds=16)).adapted_
    assert story["chosen"]["noise"] == 1
    assert 0 < story["shares"]["both"] <= 0.25
    assert story["shares"]["noise"] == 0.5


# -- clusters


class Kept(Observer):
    """Keeps the arrays of each stage by name, and gives those that it has."""

    def __init__(self, stages=None):
        self.stages = dict(stages or {})
        self.computed = []

    def stage(self, name):
        return self.stages.get(name)

    def stage_done(self, name, results):
        self.stages[name] = results
        self.computed.append(name)


WELL = source_model(speaker_variance=40.0, session_variance=0.4, channel_variance=0.3)
APART = other_domain(WELL, 2, (0.8, 1.3), (0.8, 0.8), (1.4, 1.4))
SPEAKERS = 12


@pytest.fixture(scope="module")
def well():
    return Backend(length_norm=False, plda=clone(QUICK)).fit(*drawn(WELL, 60, 6, (2, 4), (2, 2))[:3])


def clear(n=SPEAKERS, seed=7):
    """Speakers who are easily told apart; each has the name of its first session, as clusters have."""
    X, speaker, session, _ = drawn(APART, n, seed, (3, 5), (2, 2))
    first = {i: min(session[speaker == i]) for i in np.unique(speaker)}
    return X, np.array([first[i] for i in speaker]), session


@pytest.fixture(scope="module")
def cleared(well):
    """The adaptations of `well` to `clear()`, by what is known of it; each is made once."""
    X, speaker, session = clear()
    given = {"speakers": (speaker, session), "sessions": (None, session), "nothing": ()}
    return lru_cache(None)(lambda known: well.adapt(X, *given[known]))


def test_clusters_that_are_the_speakers(well, cleared):
    X, speaker, session = clear()
    kept = Kept()
    adapted = well.adapt(X, session=session, observer=kept)
    found = kept.stages
    names = [name for name in found if name.startswith("partition")]
    assert len(names) >= 4
    truth = dict(zip(session, speaker, strict=True))
    for name in names:
        assert found[name]["sessions"].tolist() == sorted(truth), name
        assert found[name]["speakers"].tolist() == [truth[s] for s in sorted(truth)], name
    story = adapted.adapted_
    assert story["target"]["clusters"] == cleared("speakers").adapted_["target"]["speakers"] == SPEAKERS
    weights = tuple(story["shares"].values())
    labelled = well.adapt(X, speaker, session, method="labels", weights=weights, centre=story["centre"])
    assert_same_model(adapted, labelled)
    np.testing.assert_allclose(trials(raw(adapted))[0], trials(raw(labelled))[0], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", ["labels", "clusters", "sessions", "total", "kaldi"])
def test_the_order_of_recordings_does_not_matter(well, method):
    X, speaker, session = clear()
    order = np.random.default_rng(1).permutation(len(X))
    observers = [Kept(), Kept()]
    first = well.adapt(X, speaker, session, method=method, observer=observers[0])
    second = well.adapt(X[order], speaker[order], session[order], method=method, observer=observers[1])
    a, b = (observer.stages for observer in observers)
    assert a.keys() == b.keys()
    for name in a:
        if name.startswith("partition"):
            np.testing.assert_array_equal(a[name]["speakers"], b[name]["speakers"])
    assert_same(first, second)


def test_clusters_that_nobody_can_tell_apart_in_any_order(backend, adapted):
    """Sessions that overlap: the partition is not the truth, but it is the same."""
    X, _, session = ADAPT
    order = np.random.default_rng(2).permutation(len(X))
    assert_same(adapted("backend", "sessions"), backend.adapt(X[order], session=session[order]))


NAMES = {
    "integers": lambda code: code,
    "small integers": lambda code: (code - 30).astype(np.int8),
    "unsigned": lambda code: code.astype(np.uint64),
    "large unsigned": lambda code: code.astype(np.uint64) + np.uint64(1 << 63),
    "numbers": lambda code: code / 4,
    "bytes": lambda code: np.char.mod("%d", code).astype(bytes),
    "objects": lambda code: np.char.mod("s%d", code).astype(object),
    "a list": lambda code: [f"s{i}" for i in code.tolist()],
}


@pytest.mark.parametrize("how", NAMES)
def test_names_of_sessions_of_any_type(well, how):
    X, speaker, session = clear()
    code, kept = np.unique(session, return_inverse=True)[1], Kept()
    adapted = well.adapt(X, session=NAMES[how](code), method="sessions", observer=kept)
    assert adapted.adapted_["target"] == {"recordings": len(X), "sessions": len(set(session))}
    made = kept.stages["partition source 1"]
    assert len(made["sessions"]) == len(set(session))
    assert len(set(made["speakers"].tolist())) == SPEAKERS
    names = NAMES[how](code)
    again = Relabelled(Recordings.from_arrays(X, None, names), made["sessions"], made["speakers"]).labels()
    pairs = set(zip(again.speaker.tolist(), speaker.tolist(), strict=True))
    assert len(pairs) == SPEAKERS  # clusters are speakers


def test_relabelled_recordings():
    X, speaker, session = clear(8)
    sessions, first = np.unique(session, return_index=True)
    plain = Statistics.from_arrays(X, speaker, session, n_folds=4)
    ways = {
        "arrays": Recordings.from_arrays(X, None, session),
        "chunks": Recordings.from_chunks(lambda: [X[:7], X[7:30], X[30:]], None, session),
    }
    for recordings in ways.values():
        again = Relabelled(recordings, sessions, speaker[first])
        labels = again.labels()
        assert labels.speaker_ids[labels.speaker].tolist() == speaker.tolist()
        assert labels.session_ids[labels.session].tolist() == session.tolist()
        stats = Statistics.of(again, n_folds=4)
        assert_equal_statistics(stats, plain, 1e-12)
        for a, b in zip(stats.folds, plain.folds, strict=True):
            assert a.speaker_ids.tolist() == b.speaker_ids.tolist()
        (told,) = again.map(lambda part: [part.labels().speaker_ids.tolist()])
        assert told == np.unique(speaker).tolist()
        assert sum(len(c.X) for c in again.chunks(5)) == len(X)
        assert again.buckets == recordings.buckets
        assert again.may_have_kinds == recordings.may_have_kinds
        alone = pickle.loads(pickle.dumps(again))
        assert alone.recordings is None
        assert alone.speakers.tolist() == speaker[first].tolist()
    with pytest.raises(DuopldaError, match="have no names"):
        Relabelled(Recordings.from_arrays(X, speaker), sessions, speaker[first]).labels()


def test_chunks_give_the_same(well, cleared):
    X, speaker, session = clear()
    cuts = [3, 50, 51, 80]

    def chunks():
        return np.split(X, cuts)

    for labels, known in (((speaker, session), "speakers"), ((None, session), "sessions"), ((), "nothing")):
        assert_same(well.adapt(Recordings.from_chunks(chunks, *labels)), cleared(known))


def test_a_cluster_of_processes_gives_the_same(well, cleared):
    """Shards cut through sessions; clusters of sessions are made of what the workers sum up."""
    pytest.importorskip("distributed")
    from dask import delayed
    from distributed import Client, LocalCluster

    from duoplda.engines import dask as engine

    X, speaker, session = clear()
    size = len(X) // 3
    assert len(set(session[:size]) & set(session[size:])) > 3  # sessions are cut
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options, silence_logs=50) as cluster, Client(cluster, set_as_default=False) as client:

        def shards(**columns):
            chunks = [
                delayed({name: column[i : i + size] for name, column in columns.items()})
                for i in range(0, len(X), size)
            ]
            return engine.recordings(chunks, client=client)

        assert_same(well.adapt(shards(X=X, speaker=speaker, session=session)), cleared("speakers"))
        assert_same(well.adapt(shards(X=X, session=session)), cleared("sessions"))
        assert_same(well.adapt(shards(X=X)), cleared("nothing"))
        relabelled = Relabelled(shards(X=X, session=session), *first_of(session, speaker))
        assert_equal_statistics(Statistics.of(relabelled), Statistics.from_arrays(X, speaker, session), 1e-9)
        told = [ids for part in relabelled.map(speaker_ids) for ids in part]
        assert set(told) == set(speaker.tolist())


def speaker_ids(part):
    yield part.labels().speaker_ids.tolist()


def first_of(session, speaker):
    sessions, first = np.unique(session, return_index=True)
    return sessions, speaker[first]


# -- guards


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_labelled_speakers(backend, n):
    mine = np.isin(ADAPT[1], np.unique(ADAPT[1])[:n])
    for method in ({}, {"weights": (0.1, 0.1, 0.1), "method": "labels"}):
        with pytest.raises(DuopldaError, match=rf"{n} labelled speakers are too few to adapt to \(at least 3\)"):
            backend.adapt(*(c[mine] for c in ADAPT), **method)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_few_labelled_speakers(plda, n):
    """From 5 on they calibrate, too."""
    mine = np.isin(ADAPT[1], np.unique(ADAPT[1])[:n])
    adapted = plda.adapt(*(c[mine] for c in ADAPT))
    assert_sound(adapted)
    assert ("scale" in adapted.adapted_["calibration"]) == (n == 5)
    assert adapted.adapted_["shares"]["speaker"] < n / (n + 39)
    assert off(adapted) < off(plda)


def test_few_labelled_recordings_tell_how_large_sessions_and_noise_are(plda):
    """Half of the way, which is as far as shapes go, would leave ratios of so noisy recordings too sure."""
    noisy = replace(SOURCE, W=SOURCE.W / 5)
    adapted = plda.adapt(*drawn(noisy, 4, 5, (3, 4), (3, 3), prefix="n")[:3])
    sizes = [np.trace(covariances(model_of(fitted))[2][0]) for fitted in (adapted, plda)]
    assert 4 < sizes[0] / sizes[1] < 6
    test = drawn(noisy, 60, 6, (4, 4), (2, 2), prefix="f")[:3]
    assert cllr(adapted, test) < 0.9 * cllr(plda, test)
    assert_sound(adapted)


def test_sessions_that_fall_apart_differ_more_and_not_their_speakers(plda):
    restless = replace(SOURCE, U=SOURCE.U * 4)
    X, _, session = drawn(restless, 8, 5, (3, 4), (3, 3), prefix="n")[:3]
    adapted = plda.adapt(X, session=session)
    assert any("many sessions are alone in their cluster" in note for note in adapted.adapted_["notes"])
    (B, S, _), (source_B, source_S, _) = (covariances(model_of(fitted)) for fitted in (adapted, plda))
    assert np.trace(B) < 1.1 * np.trace(source_B)
    assert np.trace(S) > 3 * np.trace(source_S)
    test = drawn(restless, 60, 6, (4, 4), (2, 2), prefix="f")[:3]
    assert cllr(adapted, test) < 0.9 * cllr(plda, test)
    assert_sound(adapted)


def test_sessions_that_fall_apart_and_vary_less_tell_nothing(plda):
    """Speakers who differ less fall apart, too: nothing has grown that sessions and noise could be given."""
    alike = replace(SOURCE, V=SOURCE.V / 3)
    X, _, session = drawn(alike, 4, 6, (3, 6), (1, 3), prefix="n")[:3]
    adapted = plda.adapt(X, session=session)
    assert any("few clusters have several sessions" in note for note in adapted.adapted_["notes"])
    test = drawn(alike, 60, 6, (4, 4), (2, 2), prefix="f")[:3]
    assert cllr(adapted, test) < cllr(plda, test) + 0.003


@pytest.mark.parametrize("n", [1, 3])
def test_too_few_clusters(well, n):
    X, _, session = clear(n, 11)
    words = f"{n} clusters were found, fewer than 4: they do not show how speakers differ"
    with pytest.warns(UserWarning, match=words):
        adapted = well.adapt(X, session=session)
    assert adapted.adapted_["target"]["clusters"] == n
    assert list(adapted.adapted_["shares"]) == ["total"]  # as if nothing were known
    assert_sound(adapted)
    with pytest.warns(UserWarning, match=words):
        well.adapt(X, session=session, method="sessions")


def test_some_clusters_do_not_calibrate(well):
    X, _, session = clear(6, 12)
    adapted = well.adapt(X, session=session)
    assert "scale" not in adapted.adapted_["calibration"]
    assert "6 clusters are too few to calibrate with (at least 8)" in adapted.adapted_["notes"]
    assert_sound(adapted)
    X, _, session = clear(8, 12)
    assert not any("too few to calibrate" in note for note in well.adapt(X, session=session).adapted_["notes"])


def test_all_speakers_in_one_fold(well):
    """Names whose hashes fall together: nothing can be held out, and nothing fails."""
    X, speaker, session = clear(10, 13)
    names = np.array([f"n{i}" for i in range(4000)])
    alike = names[folds_of(names, 16, 0) == 3]
    renamed = dict(zip(np.unique(session), np.sort(alike[: len(np.unique(session))]), strict=True))
    session = np.array([renamed[s] for s in session])
    speaker = np.array([alike[100 + i] for i in np.unique(speaker, return_inverse=True)[1]])
    for given in ((speaker, session), (None, session)):
        for method in ("auto", "sessions"):
            adapted = well.adapt(X, *given, method=method)
            assert_sound(adapted)
            assert "scale" not in adapted.adapted_["calibration"]


HOME = source_model(24, speaker_variance=2.0)  # in few dimensions, few recordings would tell much


@pytest.fixture(scope="module")
def home():
    """Trained on so many recordings that those of a target can add little."""
    plda = PLDA(tol=1e-4, shrinkage="auto", random_state=0)
    return Backend(plda=plda).fit(*drawn(HOME, 400, 20)[:3])


@pytest.mark.parametrize("given", ["labels", "clusters", "sessions"])
def test_a_target_like_the_source_changes_next_to_nothing(home, given):
    backend, (X, speaker, session, _) = home, drawn(HOME, 30, 21, (3, 5), (2, 2))
    options = {"method": "sessions"} if given == "sessions" else {}
    adapted = backend.adapt(X, speaker if given == "labels" else None, session, **options)
    story = adapted.adapted_
    assert story["method"] == given
    assert not any(story["chosen"][level] for level in ("speaker", "session", "noise"))
    assert not any(story["shares"].values())
    assert adapted.calibration_ is backend.calibration_ is not None
    assert story["calibration"]["reason"] == "that of the source stays"
    if given != "sessions":
        who = "speakers" if given == "labels" else "clusters"
        assert f"no level that moves makes held-out {who} more likely" in story["notes"][0]
    for a, b in zip(covariances(model_of(adapted)), covariances(model_of(backend)), strict=True):
        assert np.linalg.norm(a - b) < 0.12 * np.linalg.norm(b)
    fresh = drawn(HOME, 60, 22, (4, 4), (2, 2))[:3]
    assert cllr(adapted, fresh) == pytest.approx(cllr(backend, fresh), abs=0.01)
    scores, label = trials(backend, fresh)
    assert metrics.eer(trials(adapted, fresh)[0], label) == pytest.approx(metrics.eer(scores, label), abs=0.005)


def test_a_plain_model_and_recordings_without_copies(plda):
    """Where noise and sessions are not told apart, labels are followed all the same; like the source, nothing is."""
    plain = PLDA(n_session_factors=0, tol=1e-4).fit(*TRAIN[:2])
    single = np.unique(ADAPT[2], return_index=True)[1]
    few = tuple(c[single] for c in ADAPT)
    for source, given in ((plain, ADAPT[:2]), (plain, ADAPT), (plda, few), (plain, few), (plda, few[:2])):
        adapted = source.adapt(*given)
        assert_sound(adapted)
        story = adapted.adapted_
        assert story["shares"].keys() == {"speaker", "session", "noise"}
        assert story["shares"]["noise"] == story["shares"]["session"] >= 0.5
        assert cllr(adapted) < 0.9 * cllr(source.adapt(*given, method="centre"))
    home = drawn(SOURCE, 40, 23)
    same = plain.adapt(*home[:2])
    assert not any(same.adapted_["shares"].values())
    np.testing.assert_array_equal(model_of(same).V, model_of(plain).V)
    one = plain.adapt(*ADAPT, method="labels", weights=(0, 0, 1), centre=0)  # the noise alone, by its own weight
    assert not np.allclose(model_of(one).W, model_of(plain).W)
    np.testing.assert_array_equal(model_of(one).V, model_of(plain).V)


def test_hostile_targets_give_no_nan(plda, backend):
    X, speaker, session = (c[:60] for c in ADAPT)
    copies, N = np.repeat(X[::3], 3, axis=0), np.arange(60)
    for source in (plda, backend):
        for method, weights in (
            ("labels", (1, 1, 1)),
            ("labels", None),
            ("kaldi", (1, 1)),
            ("sessions", (1, 1)),
        ):
            options = {"method": method, "weights": weights}
            assert_sound(source.adapt(copies, N // 9, N // 3, **options))  # the noise is 0
            assert_sound(source.adapt(np.r_[X, X], np.r_[speaker, speaker], np.r_[session, session], **options))
            assert_sound(source.adapt(X, N // 2, N // 2, **options))  # one session for each speaker
        for method in ("kaldi", "total"):
            for n in (2, 5):
                assert_sound(source.adapt(X[:n], method=method))
            with pytest.raises(DuopldaError, match="1 recording of the target does not show how recordings vary"):
                source.adapt(X[:1], method=method, centre=1)
        for size in (1e4, 1e-4):
            assert_sound(source.adapt(size * X, speaker, session))


BAD = {
    "a constant column": (lambda X: np.where(np.arange(D) == 4, 77.3, X), {}, "columns 4 of the target are constant"),
    "another dimension": (lambda X: X[:, :5], {}, "the target's vectors have 5 dimensions, the model takes 8"),
    "not a number": (lambda X: np.where(np.arange(len(X))[:, None] == 7, np.nan, X), {}, "NaN or infinity .* rows: 7"),
    "no recordings": (lambda X: X[:0], {}, "at least one recording is needed"),
    "unknown": (None, {"method": "magic"}, "method='magic' must be one of auto, labels, clusters, .*, kaldi"),
    "three": (None, {"method": "labels", "weights": (1, 1)}, "method='labels' takes 3 weights"),
    "two": (None, {"method": "sessions", "weights": 1}, "method='sessions' takes 2 weights"),
    "two or three": (None, {"method": "kaldi", "weights": 1}, "takes 2 or 3 weights"),
    "none": (None, {"weights": 1}, "method='auto' takes no weights"),
    "none for clusters": (None, {"method": "clusters", "weights": 1}, "method='clusters' takes no weights"),
    "more than one": (None, {"method": "total", "weights": 1.5}, "must be numbers from 0 to 1"),
    "negative": (None, {"method": "kaldi", "weights": (-1, 1)}, "must be numbers from 0 to 1"),
    "no number": (None, {"method": "total", "weights": np.nan}, "must be numbers from 0 to 1"),
    "text": (None, {"method": "total", "weights": "much"}, "must be numbers from 0 to 1"),
    "too far": (None, {"centre": 1.1}, "centre=1.1 must be None, or a number from 0 to 1"),
    "no way": (None, {"centre": "half"}, "centre='half' must be None, or a number"),
    "a prior": (None, {"method": "clusters", "prior": 2.0}, "prior=2.0 must be a number between 0 and 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(backend, case):
    change, options, message = BAD[case]
    X, speaker, session = ADAPT
    for data in ((speaker, session), (None, session), ())[: 1 if change is None else 3]:
        with pytest.raises(DuopldaError, match=message):
            backend.adapt(X if change is None else change(X), *data, **options)


def test_what_is_known_and_what_is_not(backend, plda, well, adapted, cleared):
    X, _, session = ADAPT
    too_little = {"labels": (None, session), "clusters": (), "sessions": ()}
    for method, labels in too_little.items():
        with pytest.raises(DuopldaError, match=rf"method='{method}' needs \w+ of the target's recordings"):
            backend.adapt(X, *labels, method=method)
    for known, told in (("speakers", "labels"), ("sessions", "clusters"), ("nothing", "total")):
        assert adapted("backend", known).adapted_["method"] == told
    X, _, session = clear()
    assert_same(well.adapt(Recordings.from_arrays(X, None, session)), cleared("sessions"))
    named_alike = well.adapt(Recordings.from_arrays(X, session, session))  # speakers who have one session each
    assert named_alike.adapted_["method"] == "labels"
    assert backend.adapt(Recordings.from_arrays(X)).adapted_["method"] == "total"
    with pytest.raises(DuopldaError, match="statistics are of the PLDA's space"):
        backend.adapt(Statistics.from_arrays(*ADAPT))
    with pytest.raises(DuopldaError, match="open sessions"):
        plda.adapt(Statistics.from_arrays(*ADAPT, close=False))
    with pytest.raises(DuopldaError, match="statistics cannot be clustered"):
        plda.adapt(Statistics.from_arrays(*ADAPT), method="clusters")


# -- statistics suffice


def test_statistics_suffice(plda, adapted, by_labels):
    X, speaker, session = ADAPT
    stats = Statistics.from_arrays(*ADAPT, n_folds=16)
    assert_same(plda.adapt(stats), by_labels)
    half = np.arange(len(X)) % 2 == 0  # shards that cut sessions
    shards = [Statistics.from_arrays(X[h], speaker[h], session[h], n_folds=16, close=False) for h in (half, ~half)]
    assert_same(plda.adapt(sum(shards).close()), by_labels)
    alone = Statistics.from_arrays(X, None, session, n_folds=16)
    sessions = plda.adapt(alone)
    assert sessions.adapted_["method"] == "sessions"
    assert "statistics cannot be clustered: only their sessions are used" in sessions.adapted_["notes"]
    assert off(sessions) < 0.6 * off(adapted("plda", "sessions", "centre"))
    for weights in ((0.3, 0.2), (1, 1), (0, 0.1)):
        options = {"method": "sessions", "weights": weights}
        assert_same(plda.adapt(alone, **options), plda.adapt(X, session=session, **options))
    assert_same_model(plda.adapt(stats, method="kaldi"), adapted("plda", "nothing", "kaldi"))
    # Clusters of the recordings tell how far the mean goes; statistics have none.
    total = {"method": "total", "centre": 0.8}
    assert_same_model(plda.adapt(stats, **total), plda.adapt(X, **total))
    assert_same_model(plda.adapt(stats, method="centre"), adapted("plda", "speakers", "centre"))


def test_statistics_without_folds(plda, by_labels):
    """There is no calibration, and it says so; given weights, nothing is missing."""
    stats = Statistics.from_arrays(*ADAPT)
    adapted = plda.adapt(stats)
    assert any("without folds" in note for note in adapted.adapted_["notes"])
    assert "scale" not in adapted.adapted_["calibration"]
    assert adapted.adapted_["shares"] == usual_shares(stats)._asdict()  # of all levels
    assert adapted.adapted_["centre"] == by_labels.adapted_["centre"]
    alone = Statistics.from_arrays(ADAPT[0], None, ADAPT[2])
    with pytest.raises(DuopldaError, match="gather statistics with n_folds=16, or give weights"):
        plda.adapt(alone)
    assert_sound(plda.adapt(alone, method="sessions", weights=(0.3, 0.1)))


# -- kinds of channels, and chains


KINDS = np.array(["mic", "room", "tel"])
SIZES = np.array([0.6, 1.0, 2.0])
MIXED = checked(
    SOURCE.mu + np.random.default_rng(5).normal(size=(3, D)),
    *(SOURCE.V, SOURCE.U, SOURCE.W / SIZES[:, None, None], KINDS),
)
ELSEWHERE = other_domain(MIXED, 3, (0.3, 2.0), (0.3, 2.0), (0.45, 3.0))
CHAINS = {
    "whitening": {},
    "by channel": {"center_by_channel": True},
    "LDA": {"lda": 6},
    "VBx": {"lda": 6, "whiten": False, "length_norm": "twice"},
    "VBx by channel": {"lda": 6, "whiten": False, "length_norm": "twice", "center_by_channel": True},
    "no lengths": {"length_norm": False},
    "PLDA": {"whiten": False, "length_norm": False},
}


def of_kinds(model, n_speakers, seed, sessions=(2, 4), prefix=""):
    """Each session through all three kinds of channels."""
    rng = np.random.default_rng(seed)
    per_speaker = rng.integers(sessions[0], sessions[1] + 1, n_speakers)
    kind = np.tile(np.arange(3), per_speaker.sum())
    X, speaker, session = sample(model, rng, per_speaker, np.full(per_speaker.sum(), 3), kind)
    order = rng.permutation(len(X))
    speaker, session = (np.char.mod(f"{prefix}{letter}%d", c) for letter, c in (("p", speaker), ("s", session)))
    return X[order], speaker[order], session[order], KINDS[kind[order]]


@pytest.fixture(scope="module")
def chains():
    data = of_kinds(MIXED, 80, 31)
    return {name: Backend(**options, plda=clone(QUICK)).fit(*data) for name, options in CHAINS.items()}


ELSE = of_kinds(ELSEWHERE, 30, 32, prefix="t")
OTHERS = of_kinds(ELSEWHERE, 40, 33, (4, 4), prefix="f")
TOLD = {
    "known": lambda kind: kind,
    "unknown names": lambda kind: np.char.add("my ", kind),
    "none": lambda kind: None,
    "of another type": lambda kind: np.unique(kind, return_inverse=True)[1],
}


@pytest.mark.parametrize(
    ("chain", "told"), [*((c, "known") for c in CHAINS), *(("by channel", t) for t in TOLD), ("PLDA", "none")]
)
def test_kinds_and_chains(chains, chain, told):
    source = chains[chain]
    X, speaker, session, kind = ELSE
    channel, tested = TOLD[told](kind), (OTHERS[:3], TOLD[told](OTHERS[3]))
    adapted = source.adapt(X, speaker, session, channel)
    assert_sound(adapted)
    assert model_of(adapted).kinds.tolist() == KINDS.tolist()
    assert "scale" in adapted.adapted_["calibration"]
    assert cllr(adapted, *tested) < 0.8 * cllr(source, *tested)
    centred = source.adapt(X, speaker, session, channel, method="centre", centre=1)
    steps = list(centred.steps_)
    for name in (name for name in steps if name.startswith("center")):  # what comes before leads to its mean
        so_far = {key: centred.steps_[key] for key in steps[: steps.index(name) + 1]}
        np.testing.assert_allclose(through(so_far, X, channel).mean(axis=0), 0, atol=1e-9)
    for method in ("total", "sessions", "kaldi"):
        options = {"weights": (0.5, 0.2)} if method == "sessions" else {}
        assert_sound(source.adapt(X, None, session, channel, method=method, **options))


@pytest.mark.parametrize(("chain", "told"), [("by channel", "known"), ("VBx", "none")])
def test_clusters_of_kinds_and_chains(chains, chain, told):
    X, _, session, kind = ELSE
    tested = OTHERS[:3], TOLD[told](OTHERS[3])
    adapted = chains[chain].adapt(X, session=session, channel=TOLD[told](kind))
    assert_sound(adapted)
    assert adapted.adapted_["target"]["clusters"] > 8
    assert cllr(adapted, *tested) < 0.9 * cllr(chains[chain], *tested)


def test_centring_by_kinds(chains):
    """Each kind that the target has goes to its own mean, the others as all do; half of the way, where that is said."""
    source, there = chains["by channel"], ELSE[3] != "room"
    X, speaker, session, kind = (c[there] for c in ELSE)
    old = source.steps_["center"]
    for k in (1.0, 0.5):
        new = source.adapt(X, speaker, session, kind, method="centre", centre=k).steps_["center"]
        for at, name in enumerate(new.channels_.tolist()):
            own = old.channel_means_[at]
            wanted = X[kind == name].mean(axis=0) if name != "room" else own + X.mean(axis=0) - old.mean_
            np.testing.assert_allclose(new.channel_means_[at], (1 - k) * own + k * wanted, rtol=1e-11)
        np.testing.assert_allclose(new.mean_, (1 - k) * old.mean_ + k * X.mean(axis=0), rtol=1e-11)


@pytest.mark.parametrize("missing", KINDS)
def test_a_kind_that_is_missing(chains, missing):
    source, there = chains["whitening"], ELSE[3] != missing
    adapted, whole = source.adapt(*(c[there] for c in ELSE)), source.adapt(*ELSE)
    assert_sound(adapted)
    assert cllr(adapted, OTHERS[:3], OTHERS[3]) < 0.8 * cllr(source, OTHERS[:3], OTHERS[3])
    for a, b in zip(np.linalg.inv(model_of(adapted).W), np.linalg.inv(model_of(whole).W), strict=True):
        assert np.linalg.norm(a - b) < 0.4 * np.linalg.norm(b)  # differences between kinds stay


def test_a_plda_alone_is_as_a_chain_of_it(plda, adapted, by_labels):
    chain = Backend.from_plda(plda).adapt(*ADAPT)
    assert_same_model(chain, by_labels)
    assert chain.adapted_ == by_labels.adapted_
    X, _, session = ADAPT
    assert_same_model(Backend.from_plda(plda).adapt(X, session=session), adapted("plda", "sessions"))


def test_tensors(well):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X, speaker, session = clear()
    codes = [torch.asarray(np.unique(c, return_inverse=True)[1]) for c in (speaker, session)]
    there, training = torch.asarray(X), drawn(WELL, 60, 6, (2, 4), (2, 2))[:3]
    plda, of_tensors = (clone(QUICK).fit(rows, *training[1:]) for rows in (training[0], torch.asarray(training[0])))
    for source, like in ((well, well), (plda, plda), (of_tensors, plda)):
        for given in ((speaker, session), (None, session), (None, None)):
            wanted = like.adapt(X, *given)
            for rows in (there, X):
                found = source.adapt(rows, *given)
                assert_same_model(found, wanted, 1e-7)
                assert found.adapted_["shares"] == pytest.approx(wanted.adapted_["shares"])
            assert_same_model(source.adapt(X, *given, device="cpu"), wanted, 1e-7)
    names = [code.numpy() for code in codes]  # names decide who is left out together
    assert_same_model(well.adapt(there, *codes), well.adapt(X, *names), 1e-7)


# -- what is kept


@pytest.mark.parametrize("what", ["backend", "plda"])
def test_files_keep_the_story(tmp_path, what, adapted, request):
    source = request.getfixturevalue(what)
    for known in ("speakers", "sessions", "nothing"):
        new, path = adapted(what, known), tmp_path / f"{known}.safetensors"
        new.save(path)
        again = type(source).load(path)
        assert again.adapted_ == new.adapted_
        np.testing.assert_array_equal(trials(again)[0], trials(new)[0])
    source.save(tmp_path / "source.safetensors")
    assert type(source).load(tmp_path / "source.safetensors").adapted_ is None


def test_the_story_of_the_first_adaptation_is_kept(adapted, tmp_path):
    first = adapted("backend", "speakers")
    second = first.adapt(FRESH[0][:200] + 1, *(c[:200] for c in FRESH[1:]))
    assert second.adapted_["before"] == first.adapted_
    assert "before" not in first.adapted_
    second.save(tmp_path / "second.safetensors")
    assert Backend.load(tmp_path / "second.safetensors").adapted_ == second.adapted_
    assert second.summary()["adapted"] == second.adapted_


def test_a_clone_and_a_new_training_know_nothing_of_it(backend, adapted, by_labels):
    new = adapted("backend", "speakers")
    assert not hasattr(clone(new), "plda_")
    assert clone(by_labels).adapted_ is None
    again = pickle.loads(pickle.dumps(new))
    assert again.adapted_ == new.adapted_
    assert again.fit(*TRAIN).adapted_ is None
    np.testing.assert_array_equal(trials(again)[0], trials(backend)[0])
    refitted = pickle.loads(pickle.dumps(by_labels)).fit(*TRAIN)
    assert refitted.adapted_ is None
    assert refitted.calibration_ is None


def test_what_is_remembered_is_not_computed(well):
    X, _, session = clear()
    kept = Kept()
    first = well.adapt(X, session=session, observer=kept)
    again = Kept(kept.stages)
    assert_same(first, well.adapt(X, session=session, observer=again), 0)
    assert kept.computed
    assert not again.computed


# -- real speech


def load(name):
    with np.load(SHARED / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


@pytest.fixture(scope="module")
def of_so762():
    if not SHARED.is_dir():
        pytest.skip("needs ../shared/data")
    data = load("so762_campp_train")
    plda = PLDA(shrinkage=(0.1, 0.1, 0.02), tol=1e-4)
    return Backend(plda=plda).fit(data["embeddings"], data["speaker"], session=data["session_id"])


def halves(name):
    """What to adapt to: even speakers, then odd ones."""
    public = load(f"{name}_campp_public")
    even = np.unique(public["speaker"], return_inverse=True)[1] % 2 == 0
    return public, [even, ~even]


def errors(model, public, trials, tested):
    """EER in % and Cllr of all conditions together, of trials between speakers who are tested."""
    rows = trials["model_rows"]
    keep = tested[rows[trials["trial_model"], 0]] & tested[trials["trial_test_row"]]
    which, test = trials["trial_model"][keep], trials["trial_test_row"][keep]
    used, place = np.unique(which, return_inverse=True)
    at = [rows[m][rows[m] >= 0] for m in used]
    ids, at = np.repeat(np.arange(len(used)), [len(own) for own in at]), np.concatenate(at)
    tests, column = np.unique(test, return_inverse=True)
    X, session = public["embeddings"], public["session_id"]
    enrolled = model.enroll(X[at], ids, session[at])
    scores = model.llr(enrolled, model.enroll(X[tests], np.arange(len(tests))), np.c_[place, column])
    label = trials["trial_label"][keep].astype(bool)
    return 100 * metrics.eer(scores, label), metrics.cllr(scores, label)


@pytest.mark.filterwarnings("ignore::duoplda.DomainWarning")
def test_german_from_english(of_so762):
    """So762 adapted to the even speakers of cvau: at least 3 points of EER and 1.5 bits less on the odd ones."""
    public, (even, odd) = halves("cvau")
    trials = load("cvau_trials_cross_public")
    before = errors(of_so762, public, trials, odd)
    third = even & (public["session_id"] % 3 == 0)
    for own, known in ((even, "speakers"), (third, "sessions")):  # clusters of a third of the utterances: it is quicker
        X, speaker, session = (public[name][own] for name in ("embeddings", "speaker", "session_id"))
        adapted = of_so762.adapt(X, speaker if known == "speakers" else None, session)
        eer, bits = errors(adapted, public, trials, odd)
        assert eer < before[0] - 3
        assert bits < before[1] - 1.5
        assert bits < 0.5


@pytest.mark.filterwarnings("ignore::duoplda.DomainWarning")
@pytest.mark.parametrize(("which", "known"), [(0, "sessions"), (1, "speakers")])
def test_more_of_the_same_is_never_worse(of_so762, which, known):
    """So762 adapted to half of its public speakers: trials between the others are at least as good, to .05 points."""
    public, parts = halves("so762")
    trials, own = load("so762_trials_public"), parts[which]
    before = errors(of_so762, public, trials, ~own)
    X, speaker, session = (public[name][own] for name in ("embeddings", "speaker", "session_id"))
    adapted = of_so762.adapt(X, speaker if known == "speakers" else None, session)
    eer, bits = errors(adapted, public, trials, ~own)
    assert eer < before[0] + 0.05
    assert bits < before[1] + 0.003
