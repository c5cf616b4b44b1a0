"""The whole chain: the same as its steps by hand, from memory or from chunks, and back from its file."""

import json
from contextlib import suppress

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from duoplda import PLDA, DuopldaError
from duoplda.data.labels import encode
from duoplda.datasets import make_recordings
from duoplda.estimators.backend import Backend
from duoplda.estimators.preprocessing import LDA, Center, LengthNorm, Whiten

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
    return Backend(lda=6, shrinkage="auto", tol=1e-5).fit(X, speaker, session=session)


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
        Z = Whiten().fit_transform(Z)
    return LengthNorm().fit_transform(Z) if chain["length_norm"] else Z


@pytest.mark.parametrize("chain", CHAINS)
def test_the_chain_is_its_steps(data, chain):
    X, speaker, session, channel = data
    backend = Backend(**QUICK, **chain).fit(X, speaker, session=session, channel=channel)
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

    whole = Backend(**QUICK, **chain).fit(X, speaker, session=session, channel=channel)
    labels = {"speaker": speaker, "session": session, "channel": channel}
    parts = Backend(**QUICK, **chain).fit_chunks(chunks, labels)
    assert passes == (2 if chain.get("length_norm", True) else 1)
    np.testing.assert_allclose(scores(parts, data), scores(whole, data), atol=1e-6)
    assert parts.counts_ == whole.counts_ == {"speakers": 60, "sessions": len(set(session)), "recordings": len(X)}


def test_labels_may_come_after_the_first_pass(data):
    X, speaker, session, _ = data
    events = []

    def chunks():
        events.append("pass")
        yield from (X[:50], X[50:])

    def labels():
        events.append("labels")
        return encode(speaker, session)

    Backend(**QUICK).fit_chunks(chunks, labels)
    assert events == ["pass", "labels", "pass"]
    events.clear()
    Backend(lda=5, **QUICK).fit_chunks(chunks, labels)
    assert events == ["labels", "pass", "pass"]


def test_pipeline_is_a_scikit_learn_pipeline(data):
    X, speaker, session, _ = data
    backend = Backend(lda=6, **QUICK)
    assert [name for name, _ in backend.pipeline.steps] == ["center", "lda", "whiten", "length_norm", "plda"]
    backend.fit(X, speaker, session=session)
    fitted = backend.pipeline
    np.testing.assert_array_equal(fitted.transform(X), backend.plda_.transform(backend.transform(X)))
    other = clone(backend).pipeline.fit(X, speaker, lda__session=session, plda__session=session)
    np.testing.assert_allclose(other[:-1].transform(X), backend.transform(X), atol=1e-8)
    np.testing.assert_allclose(other["plda"].log_likelihoods_, backend.plda_.log_likelihoods_, rtol=1e-9)


def test_clone_keeps_parameters():
    given = {"lda": 3, "shrinkage": (0.1, 0.2, 0.3), "max_iter": 7, "center_by_channel": True}
    copy = clone(Backend(**given))
    assert {k: v for k, v in copy.get_params().items() if k in given} == given
    assert not hasattr(copy, "plda_")


def test_kinds_can_be_learnt_in_memory_only(data):
    X, speaker, session, _ = data
    backend = Backend(n_channels=2, center_by_channel=False, **QUICK).fit(X, speaker, session=session)
    assert len(backend.plda_.channels_) == 2
    for chain in ({}, {"length_norm": False}):
        with pytest.raises(DuopldaError, match="n_channels=2 without channel labels needs the recordings in memory"):
            Backend(n_channels=2, **chain).fit_chunks(lambda: [X], (speaker, session))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"center_by_channel": True}, "center_by_channel=True needs channel"),
        ({"lda": 99}, "n_components=99 must lie between 1 and 10"),
        ({"tol": -1}, "tol=-1 must be"),
        ({"shrinkage": "much"}, "shrinkage='much' must be"),
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
            Backend(**QUICK, **chain).fit(bad, speaker, session=session)
    with pytest.raises(DuopldaError, match=r"brought 50 rows, \d+ have labels"):
        Backend(**QUICK).fit_chunks(lambda: [X[:50]], (speaker, session))
    try:
        import torch  # noqa: F401
    except ImportError:
        with pytest.raises(DuopldaError, match="needs torch"):
            Backend(**QUICK).fit_chunks(lambda: [X], (speaker, session), device="cuda")


def test_training_goes_on_from_where_it_stopped(data):
    X, speaker, session, _ = data
    tight = {"shrinkage": None, "tol": 1e-9, "max_iter": 400}
    whole = Backend(**tight).fit(X, speaker, session=session)
    kept = {}

    def stop(iteration, value, model):
        kept["model"] = model
        kept.setdefault("trace", [float("nan")]).append(value)
        return iteration == 3

    Backend(**tight, callback=stop).fit(X, speaker, session=session)
    assert len(kept["trace"]) == 4
    args = {"start": kept["model"], "trace": kept["trace"]}
    resumed = Backend(**tight).fit_chunks(lambda: [X], (speaker, session), **args)
    trace, reference = resumed.plda_.log_likelihoods_, whole.plda_.log_likelihoods_
    np.testing.assert_allclose(trace[:4], reference[:4], rtol=1e-10)
    assert abs(trace[-1] - reference[-1]) < 1e-6 * len(X)
    assert (np.diff(trace) >= -1e-6).all()
    assert resumed.plda_.n_iter_ == len(trace) - 1 >= 4
    np.testing.assert_allclose(scores(resumed, data), scores(whole, data), atol=0.02)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        Backend(**{**tight, "max_iter": 4}).fit_chunks(lambda: [X], (speaker, session), **args)
    with pytest.raises(DuopldaError, match="start has other sizes"):
        Backend(n_speaker_factors=2, **tight).fit_chunks(lambda: [X], (speaker, session), **args)


# -- calibration and files


def test_calibrated_values(data, backend):
    own = clone(backend)
    own.__dict__.update(backend.__dict__)
    raw = scores(own, data)
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
    backend = Backend(**QUICK, **chain).fit(X, speaker, session=session, channel=channel)
    if method:
        raw = scores(backend, data).reshape(-1)
        backend.calibrate(raw, np.random.default_rng(0).random(raw.size) < 1 / (1 + np.exp(-raw)), method=method)
    backend.save(tmp_path / "a", command="duoplda train ...", inputs={"x.ark": "ab12"})
    loaded = Backend.load(tmp_path / "a")
    np.testing.assert_array_equal(scores(loaded, data), scores(backend, data))
    np.testing.assert_array_equal(loaded.transform(X, channel), backend.transform(X, channel))
    summary = loaded.summary()
    assert summary["provenance"]["command"] == "duoplda train ..."
    assert summary["provenance"]["inputs"] == {"x.ark": "ab12"}
    assert summary["provenance"]["seed"] == 0
    assert set(summary["provenance"]["versions"]) == {"duoplda", "numpy", "scipy", "scikit-learn", "python"}
    assert summary["training"]["log_likelihoods"] == backend.plda_.log_likelihoods_.tolist()
    assert {k: v for k, v in summary.items() if k not in ("provenance", "parameters")} == {
        k: v for k, v in backend.summary().items() if k not in ("provenance", "parameters")
    }
    assert json.loads(json.dumps(summary)) == summary
    loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_training_twice_gives_the_same_bytes(data, tmp_path):
    X, speaker, session, _ = data
    for name in "ab":
        Backend(lda=6, tol=1e-4).fit(X, speaker, session=session).save(tmp_path / name)
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
    from duoplda.estimators.files import FORMAT, read_parts
    from duoplda.io import container as modelfile

    backend.save(tmp_path / "m")
    arrays, header = read_parts(tmp_path / "m", (FORMAT,))
    changes = [
        ({"lda.matrix_": np.ones((3, 3))}, {}),
        ({"center.mean_": np.ones(3)}, {}),
        ({"lda.matrix_": np.full_like(arrays["lda.matrix_"], np.nan)}, {}),
        ({"plda.speaker_loadings_": np.ones((4, 2))}, {}),
        ({}, {"steps": {"exec": {}}}),
        ({}, {"steps": {"center": {"nonsense": 1}}}),
        ({}, {"parameters": {"callback": 1, "eval": 2}}),
        ({}, {"calibration": "Popen"}),
        ({}, {"version": 99}),
        ({}, {"format": "other"}),
        ({}, {"counts": 3}),
    ]
    for some, other in changes:
        modelfile.write(tmp_path / "n", {**arrays, **some}, {**header, **other})
        with pytest.raises(DuopldaError):
            Backend.load(tmp_path / "n")


def test_no_half_file_where_writing_fails(backend, tmp_path):
    with pytest.raises(DuopldaError, match="its folder does not exist"):
        backend.save(tmp_path / "no" / "folder")
    assert not list(tmp_path.iterdir())
