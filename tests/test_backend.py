"""The whole chain: the same as its steps by hand, from memory or from chunks, and back from its file."""

import copy
import json
import pickle
from contextlib import suppress

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from duoplda import PLDA, Backend, DuopldaError, Recordings
from duoplda.calibration import AffineCalibration
from duoplda.data.labels import encode
from duoplda.datasets import make_recordings
from duoplda.estimators.preprocessing import LDA, Center, LengthNorm, Whiten
from duoplda.io import read_container, write_container
from duoplda.model.em import State
from duoplda.observer import Observer

SIZES = {"n_dimensions": 10, "n_speaker_factors": 6, "n_session_factors": 4}
QUICK = {"shrinkage": (0.1, 0.1, 0.1), "tol": 1e-5}
CHAINS = [
    {},
    {"lda": 6},
    {"whiten": False},
    {"length_norm": False},
    {"lda": 6, "length_norm": False},
    {"center_by_channel": True},
    {"center_by_channel": True, "lda": 6, "length_norm": False},
]


@pytest.fixture(scope="module")
def data():
    X, speaker, session, _ = make_recordings(60, (2, 5), (1, 4), seed=5, **SIZES)
    channel = np.array(["mic", "phone"])[np.random.default_rng(1).integers(2, size=len(X))]
    return (X + np.where(channel == "mic", 3.0, 0.0)[:, None]).astype(np.float32), speaker, session, channel


@pytest.fixture(scope="module")
def backend(data):
    X, speaker, session, _ = data
    return Backend(lda=6, plda=PLDA(shrinkage="auto", tol=1e-5)).fit(X, speaker, session=session)


def quick(**chain):
    return Backend(plda=PLDA(**QUICK), **chain)


def scores(backend, data, **kwargs):
    X, speaker, session, channel = data
    a, b = slice(0, 60), slice(60, 100)
    enrolled = backend.enroll(X[a], speaker[a], session[a], channel[a])
    return backend.llr(enrolled, backend.enroll(X[b], range(40), None, channel[b]), **kwargs)


def by_hand(data, chain):
    """The same chain, step after step."""
    X, speaker, session, channel = data
    chain = {"lda": None, "whiten": True, "length_norm": True, "center_by_channel": False, **chain}
    by = chain["center_by_channel"]
    Z = Center(by).fit(X, channel=channel).transform(X, channel)
    if chain["lda"]:  # kinds are known to the statistics in every case; not centred, they are nuisance
        Z = LDA(chain["lda"], by_channel=by).fit(Z, speaker, session=session, channel=channel).transform(Z)
    if chain["whiten"]:
        Z = Whiten(by_channel=by).fit(Z, channel=channel).transform(Z)
    return LengthNorm().fit_transform(Z) if chain["length_norm"] else Z


@pytest.mark.parametrize("chain", CHAINS)
def test_the_chain_is_its_steps(data, chain):
    X, speaker, session, channel = data
    backend = quick(**chain).fit(X, speaker, session=session, channel=channel)
    Z = by_hand(data, chain)
    np.testing.assert_allclose(backend.transform(X, channel), Z, atol=1e-8)
    plda = PLDA(**QUICK).fit(Z, speaker, session=session, channel=channel)
    assert plda.n_iter_ == backend.plda_.n_iter_
    np.testing.assert_allclose(backend.plda_.log_likelihoods_, plda.log_likelihoods_, rtol=1e-9)
    a, b = slice(0, 60), slice(60, 100)
    sides = plda.enroll(Z[a], speaker[a], session[a], channel[a]), plda.enroll(Z[b], range(40), None, channel[b])
    np.testing.assert_allclose(scores(backend, data), plda.llr(*sides), atol=1e-6)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("rows", [7, 1000])
def test_chunks_are_read_as_often_as_needed(data, chain, rows):
    X, speaker, session, channel = data
    passes = 0

    def chunks():
        nonlocal passes
        passes += 1
        return (X[i : i + rows] for i in range(0, len(X), rows))

    whole = quick(**chain).fit(X, speaker, session=session, channel=channel)
    parts = quick(**chain).fit(Recordings.from_chunks(chunks, speaker, session, channel))
    assert passes == (2 if chain.get("length_norm", True) else 1)
    np.testing.assert_allclose(scores(parts, data), scores(whole, data), atol=1e-6)
    assert parts.counts_ == whole.counts_ == {"speakers": 60, "sessions": len(set(session)), "recordings": len(X)}
    assert parts.n_features_in_ == whole.n_features_in_ == 10


def test_labels_are_asked_for_when_they_are_needed(data):
    """Files learn their labels while vectors are read: without LDA the first pass must not ask for them."""
    X, speaker, session, _ = data
    events = []

    class Late(Recordings):
        def labels(self):
            events.append("labels")
            return encode(speaker, session)

        def chunks(self, rows=4096):
            events.append("pass")
            return Recordings.from_arrays(X).chunks(rows)

    for chain, first in (({}, "pass"), ({"lda": 5}, "labels"), ({"length_norm": False}, "labels")):
        events.clear()
        quick(**chain).fit(Late())
        assert events[0] == first
        assert events.count("pass") == (2 if chain.get("length_norm", True) else 1)


class InParts(Recordings):
    """As a cluster does it: whatever is sent to a part is pickled, and so is what comes back."""

    def __init__(self, parts):
        self.parts = parts

    def labels(self):
        raise AssertionError("the labels are inside the parts")

    chunks = labels

    def reduce(self, make, join, tie, n=1):
        made = [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(make))(part))) for part in self.parts]
        results = [join(list(same)) for same in zip(*(results for results, _ in made), strict=True)]
        assert not any(loose for _, loose in made)
        return results


@pytest.mark.parametrize("chain", CHAINS)
def test_parts_elsewhere_give_the_same_model(data, chain):
    X, speaker, session, channel = data
    cut = np.searchsorted(np.unique(speaker), speaker) % 3
    parts = [Recordings.from_arrays(*(a[cut == i] for a in data)) for i in range(3)]
    whole = quick(**chain).fit(X, speaker, session=session, channel=channel)
    np.testing.assert_allclose(scores(quick(**chain).fit(InParts(parts)), data), scores(whole, data), atol=1e-6)


def test_pipeline_is_a_scikit_learn_pipeline(data):
    X, speaker, session, _ = data
    backend = quick(lda=6)
    assert [name for name, _ in backend.pipeline.steps] == ["center", "lda", "whiten", "length_norm", "plda"]
    backend.fit(X, speaker, session=session)
    fitted = backend.pipeline
    np.testing.assert_array_equal(fitted.transform(X), backend.plda_.transform(backend.transform(X)))
    other = clone(backend).pipeline.fit(X, speaker, lda__session=session, plda__session=session)
    np.testing.assert_allclose(other[:-1].transform(X), backend.transform(X), atol=1e-8)
    np.testing.assert_allclose(other["plda"].log_likelihoods_, backend.plda_.log_likelihoods_, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")  # the checks have two speakers: too few to hold some out
@parametrize_with_checks([Backend(), Backend(length_norm=False, plda=PLDA())])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_parameters_of_the_plda_are_parameters():
    plda = PLDA(shrinkage=(0.1, 0.2, 0.3), max_iter=7)
    backend = Backend(lda=3, center_by_channel=True, plda=plda)
    given = backend.get_params()
    assert (given["lda"], given["plda"], given["plda__max_iter"], given["plda__tol"]) == (3, plda, 7, 1e-6)
    copy = clone(backend).set_params(plda__max_iter=3)
    assert (copy.plda.max_iter, copy.plda.shrinkage, copy.lda, plda.max_iter) == (3, (0.1, 0.2, 0.3), 3, 7)
    assert not hasattr(copy, "plda_")


def test_a_chain_shrinks_unless_told_otherwise(data):
    X, speaker, session, _ = data
    default = Backend().fit(X, speaker, session=session).plda_.get_params()
    assert {k: v for k, v in default.items() if v != PLDA().get_params()[k]} == {"shrinkage": "auto", "random_state": 0}


def test_training_leaves_the_given_plda_alone(data):
    X, speaker, session, _ = data
    plda = PLDA(**QUICK)
    backend = Backend(plda=plda).fit(X, speaker, session=session)
    assert backend.plda is plda
    assert not hasattr(plda, "model_")
    assert backend.plda_ is not plda
    assert backend.plda_.get_params() == plda.get_params()


def test_the_callback_is_the_one_that_was_given(data):
    class Count:
        n = 0

        def __call__(self, iteration, value, model):
            self.n = iteration

    X, speaker, session, _ = data
    callback = Count()
    backend = Backend(plda=PLDA(**QUICK, callback=callback)).fit(X, speaker, session=session)
    assert callback.n == backend.plda_.n_iter_ > 0


def test_kinds_are_learnt_from_arrays_and_from_chunks_alike(data):
    X, speaker, session, channel = data
    learn = PLDA(n_channels=2, **QUICK)
    for chain in ({}, {"lda": 6}, {"length_norm": False}):
        backend = Backend(plda=learn, **chain).fit(X, speaker, session=session)
        assert backend.plda_.channels_.tolist() == [0, 1]
        chunked = Backend(plda=learn, **chain).fit(Recordings.from_chunks(lambda: [X[:50], X[50:]], speaker, session))
        np.testing.assert_allclose(chunked.plda_.noise_precision_, backend.plda_.noise_precision_, rtol=1e-8)
    again = Backend(plda=learn, **chain).fit(Recordings.from_arrays(X, speaker, session))
    np.testing.assert_array_equal(again.plda_.noise_precision_, backend.plda_.noise_precision_)
    labelled = Backend(plda=learn).fit(X, speaker, session=session, channel=channel)
    assert labelled.plda_.channels_.tolist() == ["mic", "phone"]  # labels that are given are not learnt again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"center_by_channel": True}, "center_by_channel=True needs channel"),
        ({"lda": 99}, "n_components=99 must lie between 1 and 10"),
        ({"plda": PLDA(tol=-1)}, "tol=-1 must be"),
        ({"plda": PLDA(shrinkage="much")}, "shrinkage='much' must be"),
        ({"plda": "PLDA"}, "plda='PLDA' must be a PLDA, or None"),
        ({"plda": PLDA}, "must be a PLDA, or None"),
    ],
)
def test_wrong_parameters(data, change, message):
    with pytest.raises(DuopldaError, match=message):
        Backend(**change).fit(data[0], data[1], session=data[2])


def test_wrong_data(data):
    X, speaker, session, _ = data
    with pytest.raises(DuopldaError, match="requires y"):
        Backend().fit(X)
    bad = X.copy()
    bad[70, 2] = np.nan
    for chain in ({}, {"lda": 4}):
        with pytest.raises(DuopldaError, match=r"NaN.*(70|spk)"):
            quick(**chain).fit(bad, speaker, session=session)
    with pytest.raises(DuopldaError, match=r"brought 50 rows, \d+ have labels"):
        quick().fit(Recordings.from_chunks(lambda: [X[:50]], speaker, session))
    with pytest.raises(DuopldaError, match="recordings bring their own labels"):
        quick().fit(Recordings.from_arrays(X, speaker, session), speaker)


def usable(device):
    try:
        import torch

        return bool(torch.zeros(1, dtype=torch.float64, device=device).cpu() == 0)
    except Exception:
        return False


@pytest.mark.parametrize("device", ["cuda", "mps", "banana", "cuda:99", "meta"])
def test_devices_that_cannot_be_used(data, backend, device):
    """Without torch the message says what to install; with it, what torch says of the device."""
    if usable(device):
        pytest.skip("this device is here")
    X, speaker, session, _ = data
    for call in (
        lambda: quick().fit(X, speaker, session=session, device=device),
        lambda: PLDA(**QUICK).fit(X, speaker, session=session, device=device),
        lambda: backend.transform(X, device=device),
        lambda: backend.enroll(X, speaker, device=device),
        lambda: backend.plda_.enroll(backend.transform(X), speaker, device=device),
    ):
        with pytest.raises(DuopldaError, match=r"^device .*(needs torch: pip install|cannot be used: )"):
            call()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_devices_of_the_host(data, device):
    X, speaker, session, _ = data
    backend = quick().fit(X, speaker, session=session, device=device)
    np.testing.assert_array_equal(backend.transform(X, device=device), quick().fit(X, speaker, session).transform(X))
    assert type(backend.enroll(X, speaker, device=device).gamma) is np.ndarray


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tensors(data, device):
    """They go through the chain on their own device; what is learnt is on the host."""
    torch = pytest.importorskip("torch")
    if not usable(device):
        pytest.skip(f"no {device} here")
    X, speaker, session, channel = data
    expected = quick(lda=6, center_by_channel=True).fit(X, speaker, session, channel)
    there = torch.tensor(X, device=device)
    backend = quick(lda=6, center_by_channel=True).fit(there, speaker, session, channel)
    streamed = quick(lda=6, center_by_channel=True).fit(X, speaker, session, channel, device=device)
    for other in (backend, streamed):
        assert type(other.plda_.noise_precision_) is type(other.steps_["lda"].matrix_) is np.ndarray
        np.testing.assert_allclose(other.plda_.log_likelihoods_, expected.plda_.log_likelihoods_, rtol=1e-8)
    rows = expected.transform(there, channel)
    assert rows.device == there.device
    np.testing.assert_allclose(rows.cpu().numpy(), expected.transform(X, channel), rtol=1e-6, atol=1e-8)
    moved = expected.enroll(X, speaker, session, channel, device=None if device == "cpu" else device)
    sides = expected.enroll(there, speaker, session, channel)
    assert sides.gamma.device == there.device
    ratios = expected.llr(sides, sides).cpu().numpy()
    host = expected.enroll(X, speaker, session, channel)
    np.testing.assert_allclose(ratios, expected.llr(host, host), rtol=1e-5, atol=1e-5)
    if device != "cpu":
        np.testing.assert_allclose(expected.llr(moved, sides).cpu().numpy(), ratios, rtol=1e-5, atol=1e-5)
        with pytest.raises(DuopldaError, match="different array libraries or on different devices"):
            expected.llr(host, sides)
    plda = PLDA(**QUICK).fit(there, speaker, session)
    before = plda.enroll(there, speaker, session)
    plda.noise_precision_ *= 5  # an assignment, too
    with pytest.raises(DuopldaError, match="different models"):
        plda.llr(before, before)


@pytest.mark.parametrize("chain", [{}, {"length_norm": False}])
@pytest.mark.parametrize("accelerate", [True, False])
def test_training_goes_on_from_where_it_stopped(data, chain, accelerate):
    """To the same bits, from a state that went through a file."""

    class Stop(Observer):
        def iteration(self, iteration, value, model):
            return iteration == 5

        def state(self, state):
            arrays = {k: np.copy(a) for k, a in state.arrays().items()}
            self.kept = State.from_arrays(arrays, state.model.kinds.tolist())

    X, speaker, session, channel = data
    given = {"shrinkage": None, "tol": 1e-9, "max_iter": 12, "accelerate": accelerate}
    stop, labels = Stop(), {"session": session, "channel": channel}
    with pytest.warns(ConvergenceWarning):
        whole = Backend(plda=PLDA(**given), **chain).fit(X, speaker, **labels)
    first = Backend(plda=PLDA(**given), **chain).fit(X, speaker, **labels, observer=stop)
    assert first.plda_.n_iter_ == 5

    class GoOn(Observer):
        def training_begins(self):
            return stop.kept

    for resume in ({"state": stop.kept}, {"observer": GoOn()}):
        with pytest.warns(ConvergenceWarning):
            resumed = Backend(plda=PLDA(**given), **chain).fit(X, speaker, **labels, **resume)
        np.testing.assert_array_equal(resumed.plda_.log_likelihoods_, whole.plda_.log_likelihoods_)
        np.testing.assert_array_equal(resumed.plda_.noise_precision_, whole.plda_.noise_precision_)
        assert resumed.plda_.n_evaluations_ == whole.plda_.n_evaluations_
        np.testing.assert_array_equal(scores(resumed, data), scores(whole, data))
    with pytest.raises(DuopldaError, match="the state is of another training"):
        Backend(plda=PLDA(2, **given), **chain).fit(X, speaker, **labels, state=stop.kept)


# -- calibration and files


def test_calibrated_values(data, backend):
    own = copy.deepcopy(backend)
    raw = scores(own, data, calibrated=False)
    labels = np.random.default_rng(0).random(raw.size) < 1 / (1 + np.exp(-raw.reshape(-1) / 3))
    own.calibrate(raw.reshape(-1), labels)
    c = own.calibration_
    np.testing.assert_allclose(scores(own, data), c.scale_ * raw + c.offset_)
    np.testing.assert_array_equal(scores(own, data, calibrated=False), raw)
    assert own.summary()["calibration"] == "AffineCalibration"
    assert own.summary()["steps"][-1] == "calibration"
    with pytest.raises(DuopldaError, match="method='magic' must be one of affine, pav"):
        own.calibrate(raw.reshape(-1), labels, method="magic")


@pytest.mark.parametrize("method", [None, "affine", "pav"])
@pytest.mark.parametrize("chain", [{}, {"lda": 6, "whiten": False}, {"center_by_channel": True}])
def test_file_keeps_everything(data, tmp_path, chain, method):
    X, speaker, session, channel = data
    backend = quick(**chain).fit(X, speaker, session=session, channel=channel)
    if method:
        raw = scores(backend, data).reshape(-1)
        backend.calibrate(raw, np.random.default_rng(0).random(raw.size) < 1 / (1 + np.exp(-raw)), method=method)
    before = copy.deepcopy(vars(backend)), backend.summary()
    backend.save(tmp_path / "a", provenance={"command": "duoplda train ...", "sha256": {"x.ark": "ab12"}})
    assert backend.provenance_ == {}  # saving changes nothing
    assert (set(vars(backend)), backend.summary()) == (set(before[0]), before[1])
    loaded = Backend.load(tmp_path / "a")
    np.testing.assert_array_equal(scores(loaded, data), scores(backend, data))
    np.testing.assert_array_equal(loaded.transform(X, channel), backend.transform(X, channel))
    summary = loaded.summary()
    assert summary["provenance"] == loaded.provenance_
    assert summary["provenance"]["command"] == "duoplda train ..."
    assert summary["provenance"]["sha256"] == {"x.ark": "ab12"}
    assert set(summary["provenance"]["versions"]) == {"duoplda", "numpy", "scipy", "scikit-learn", "python"}
    assert summary["training"]["log_likelihoods"] == backend.plda_.log_likelihoods_.tolist()
    assert {k: v for k, v in summary.items() if k != "provenance"} == {
        k: v for k, v in backend.summary().items() if k != "provenance"
    }
    assert {k: v for k, v in loaded.get_params().items() if k != "plda"} == {
        k: v for k, v in backend.get_params().items() if k != "plda"
    }
    assert json.loads(json.dumps(summary)) == summary
    loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_training_twice_gives_the_same_bytes(data, tmp_path):
    X, speaker, session, _ = data
    for name in "ab":
        Backend(lda=6).set_params(plda=PLDA(shrinkage="auto", tol=1e-4)).fit(X, speaker, session=session).save(
            tmp_path / name
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_plda_alone_is_a_chain_too(data, tmp_path):
    X, speaker, session, _ = data
    plda = PLDA(**QUICK).fit(X, speaker, session=session)
    plda.save(tmp_path / "plda")
    loaded = Backend.load(tmp_path / "plda")
    np.testing.assert_array_equal(loaded.transform(X[:5]), X[:5])
    np.testing.assert_allclose(scores(loaded, data), scores(Backend.from_plda(plda), data))
    loaded.save(tmp_path / "chain")
    np.testing.assert_array_equal(scores(Backend.load(tmp_path / "chain"), data), scores(loaded, data))
    again = PLDA.load(tmp_path / "chain")
    np.testing.assert_array_equal(again.transform(X), plda.transform(X))
    assert again.get_params() == {**plda.get_params(), "random_state": None}
    with pytest.raises(NotFittedError):
        Backend.from_plda(PLDA())


def test_a_chain_is_no_plda(backend, tmp_path):
    backend.save(tmp_path / "m")
    with pytest.raises(DuopldaError, match=r"more than a PLDA \(center, lda, whiten, length_norm\): .*Backend\.load"):
        PLDA.load(tmp_path / "m")


def test_a_plda_has_a_calibration_of_its_own(tmp_path):
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    sides = plda.enroll([[-1.0], [0.0], [2.0]], ["a", "b", "c"])
    raw = plda.llr(sides, sides)
    plda.calibrate([-3.0, 1.0, -1.0, 3.0], [False, False, True, True]).save(tmp_path / "n")
    c = plda.calibration_
    for model in (plda, PLDA.load(tmp_path / "n"), Backend.load(tmp_path / "n"), Backend.from_plda(plda)):
        np.testing.assert_array_equal(model.llr(sides, sides), c.offset_ + c.scale_ * raw)
        np.testing.assert_array_equal(model.llr(sides, sides, calibrated=False), raw)
        np.testing.assert_array_equal(model.top(sides, sides, 1)[1][:, 0], c.offset_ + c.scale_ * raw.max(axis=0))
        ((_, block),) = model.llr_blocks(sides, sides)
        np.testing.assert_array_equal(block, c.offset_ + c.scale_ * raw)


@pytest.mark.parametrize("criterion", ["decision", "likelihood"])
def test_skops_keeps_a_back_end(data, criterion):
    """skops stores estimators without pickle; keys of dictionaries that are tuples are beyond it."""
    skops_io = pytest.importorskip("skops.io")
    X, speaker, session, _ = data
    backend = Backend(plda=PLDA(3, 2, shrinkage="auto", criterion=criterion, tol=1e-3)).fit(X, speaker, session)
    stored = skops_io.dumps(backend)
    types = skops_io.get_untrusted_types(data=stored)
    assert all(name.startswith("duoplda.") for name in types)
    again = skops_io.loads(stored, trusted=types)
    np.testing.assert_array_equal(again.llr(X[:20], X[20:]), backend.llr(X[:20], X[20:]))
    assert again.plda_.shrinkage_path_ == backend.plda_.shrinkage_path_
    assert again.summary() == backend.summary()


@pytest.mark.parametrize("criterion", ["decision", "likelihood"])
def test_what_a_pickle_or_skops_keeps_has_texts_for_keys(data, criterion):
    X, speaker, session, _ = data
    backend = Backend(plda=PLDA(3, 2, shrinkage="auto", criterion=criterion, tol=1e-3)).fit(X, speaker, session)
    states = [backend.__getstate__(), backend.plda_.__getstate__()]
    dictionaries = [value for state in states for value in [state, *state.values()] if isinstance(value, dict)]
    assert all(isinstance(key, (str, int)) for entries in dictionaries for key in entries)
    assert backend.plda_.shrinkage_path_
    for again in (copy.copy(backend.plda_), pickle.loads(pickle.dumps(backend.plda_))):
        assert again.shrinkage_path_ == backend.plda_.shrinkage_path_


def test_no_file_is_overwritten_without_force(data, backend, tmp_path):
    calibration = AffineCalibration().fit([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])
    for thing in (backend, backend.plda_, backend.enroll(data[0], data[1]), calibration):
        (tmp_path / "file").write_text("precious")
        with pytest.raises(DuopldaError, match=r"exists already.*force=True"):
            thing.save(tmp_path / "file")
        assert (tmp_path / "file").read_text() == "precious"
        thing.save(tmp_path / "file", force=True)
        assert (tmp_path / "file").read_bytes()[:9] != b"precious"


def test_shares_and_counts(data, backend):
    shares = backend.summary()["variance_shares"]
    assert abs(sum(shares.values()) - 1) < 1e-12
    V, U, W = backend.plda_.speaker_loadings_, backend.plda_.session_loadings_, backend.plda_.noise_precision_
    traces = [np.trace(V @ V.T), np.trace(U @ U.T), np.trace(np.linalg.inv(W))]
    np.testing.assert_allclose(list(shares.values()), np.array(traces) / sum(traces))
    assert backend.summary()["data"]["recordings"] == len(data[0])
    assert set(backend.summary()["shrinkage"]) == {"speaker", "session", "noise"}


def test_damaged_files_are_our_error(backend, tmp_path):
    path = tmp_path / "model"
    backend.save(path)
    whole = path.read_bytes()
    for n in (0, 1, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:n])
        with pytest.raises(DuopldaError, match="model"):
            Backend.load(path)
    rng = np.random.default_rng(0)
    path.write_bytes(rng.bytes(1000))
    with pytest.raises(DuopldaError, match="not a model of duoplda"):
        Backend.load(path)
    for at in rng.integers(0, 4000, 60):  # a byte of the header is changed: refused, or still a whole model
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with suppress(DuopldaError):
            assert Backend.load(path).plda_.n_features_in_ == 6
    with pytest.raises(DuopldaError, match="cannot read the model"):
        Backend.load(tmp_path / "nothing")


def test_parts_that_do_not_fit_are_refused(backend, tmp_path):
    backend.save(tmp_path / "m")
    arrays, header = read_container(tmp_path / "m", ["duoplda-backend"])
    changes = [
        ({"lda.matrix_": np.ones((3, 3))}, {}),
        ({"center.mean_": np.ones(3)}, {}),
        ({"center.mean_": np.full(10, np.inf)}, {}),
        ({"lda.matrix_": np.full_like(arrays["lda.matrix_"], np.nan)}, {}),
        ({"plda.speaker_loadings_": np.ones((4, 2))}, {}),
        ({"plda.channel_priors_": np.ones(2)}, {}),
        ({"plda.channel_priors_": -np.ones(1)}, {}),
        ({}, {"steps": {"exec": {}}}),
        ({}, {"steps": {"center": {"nonsense": 1}}}),
        ({}, {"steps": {}, "n_features_in": 3, "chain": {"nonsense": 1}}),
        ({}, {"plda": {"callback": 1, "eval": 2}}),
        ({}, {"plda": None}),
        ({}, {"calibration": "Popen"}),
        ({}, {"counts": 3}),
    ]
    for some, other in changes:
        write_container(tmp_path / "n", "duoplda-backend", {**arrays, **some}, {**header, **other}, force=True)
        with pytest.raises(DuopldaError, match=r"^\S+/n is damaged: "):
            Backend.load(tmp_path / "n")


def test_no_half_file_where_writing_fails(backend, tmp_path):
    with pytest.raises(DuopldaError, match="its folder does not exist"):
        backend.save(tmp_path / "no" / "folder")
    assert not list(tmp_path.iterdir())
