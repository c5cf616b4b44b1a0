# ruff: noqa: E402
"""Tensors of torch: labels beside them, host arrays streamed through a device; on CUDA too, where there is one."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test-torch` runs these tests with it")

from duoplda import PLDA, Backend, Statistics
from duoplda.arrays import streamed, to_numpy
from duoplda.datasets import make_recordings
from duoplda.errors import DuopldaError
from test_statistics import assert_equal_statistics


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA here")
    return request.param


def data(seed=0, kinds=False):
    """In random order, far from 0."""
    made = make_recordings(30, (1, 5), (1, 9), n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=seed)
    order = np.random.default_rng(seed).permutation(len(made.X))
    channel = np.random.default_rng(1).integers(0, 3, len(order)) if kinds else None
    return made.X[order] + 50, made.speaker[order], made.session[order], channel


def host(stats):
    """Statistics with all arrays on the host."""
    from dataclasses import replace

    blocks = tuple(replace(b, A=to_numpy(b.A), scatter=to_numpy(b.scatter)) for b in stats.blocks)
    folds = tuple(host(f) for f in stats.folds)
    return replace(stats, offset=to_numpy(stats.offset), within=to_numpy(stats.within), blocks=blocks, folds=folds)


def equal(a, b, rtol=1e-12):
    assert_equal_statistics(host(a), b, rtol)
    for x, y in zip(a.folds, b.folds, strict=True):
        assert_equal_statistics(host(x), y, rtol)


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize("n_folds", [0, 3])
@pytest.mark.parametrize("labels", ["text", "numbers", "there"])
def test_labels_of_any_kind_beside_tensors(device, kinds, n_folds, labels):
    X, speaker, session, channel = data(kinds=kinds)
    if labels != "text":
        speaker, session = (np.unique(c, return_inverse=True)[1] * 10**6 - 3 for c in (speaker, session))
    whole = Statistics.from_arrays(X, speaker, session, channel, n_folds=n_folds, seed=2)
    given = [speaker, session, channel]
    if labels == "there":
        given = [None if c is None else torch.asarray(c, device=device) for c in given]
    equal(Statistics.from_arrays(torch.asarray(X, device=device), *given, n_folds=n_folds, seed=2), whole)


def test_no_sessions(device):
    X, speaker, _, _ = data()
    equal(Statistics.from_arrays(torch.asarray(X, device=device), speaker), Statistics.from_arrays(X, speaker))


def test_a_torn_session_is_named(device):
    X = torch.zeros((3, 2), dtype=torch.float64, device=device)
    there = [torch.asarray(c, device=device) for c in ([7, 7, 9], [1, 2, 2])]
    with pytest.raises(DuopldaError, match=r"session 2 belongs to 2 speakers \(7, 9; rows 1, 2\)"):
        Statistics.from_arrays(X, *there)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_of_the_host_arrive_in_their_order(device, dtype, ordered):
    X = np.random.default_rng(0).standard_normal((1000, 3)).astype(dtype)
    X.flags.writeable = False
    index = np.arange(1000) if ordered else np.random.default_rng(1).permutation(1000)
    parts = [slice(a, min(a + 64, 1000)) for a in range(0, 1000, 64)]
    like = torch.zeros(1, device=device)
    blocks = streamed(X, parts if ordered else [index[p] for p in parts], like)
    got = [to_numpy(b).copy() for b in blocks]
    assert len(got) == len(parts)
    np.testing.assert_array_equal(np.concatenate(got), X[index])


@pytest.mark.parametrize("n_folds", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_host_arrays_stream_through_a_device(device, monkeypatch, n_folds, dtype):
    monkeypatch.setattr("duoplda.model.accumulate.STREAM_BYTES", 8)  # 256 rows at a time
    monkeypatch.setattr("duoplda.model.statistics.on_device", lambda X, device: torch.asarray(X, device=device))
    made = make_recordings(60, (1, 5), (1, 9), n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=3)
    order = np.random.default_rng(0).permutation(len(made.X))
    X, speaker, session = made.X[order].astype(dtype), made.speaker[order], made.session[order]
    assert len(X) > 600
    whole = Statistics.from_arrays(X, speaker, session, n_folds=n_folds)
    there = Statistics.from_arrays(X, speaker, session, n_folds=n_folds, device=device)
    assert there.within.device.type == device
    equal(there, whole)


def test_a_device_that_is_not_there():
    X, speaker, session, _ = data()
    with pytest.raises(DuopldaError, match="device 'cuda:99' cannot be used"):
        Statistics.from_arrays(X, speaker, session, device="cuda:99")


def test_single_precision_there(device):
    X, speaker, session, _ = data()
    X = X.astype(np.float32)
    whole = Statistics.from_arrays(X, speaker, session)
    fast = Statistics.from_arrays(torch.asarray(X, device=device), speaker, session, precision="single")
    equal(fast, whole, 1e-5)


def test_the_chain_on_a_device(device):
    X, speaker, session, _ = data()
    here = Backend(lda=4).fit(X, speaker, session)
    there = Backend(lda=4).fit(X if device == "cuda" else torch.asarray(X), speaker, session, device=device)
    np.testing.assert_allclose(there.plda_.log_likelihoods_, here.plda_.log_likelihoods_, rtol=1e-8)
    np.testing.assert_allclose(there.plda_.noise_precision_, here.plda_.noise_precision_, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"model": "auto"}, {"n_channels": 2}, {"n_speaker_factors": "auto"}])
def test_held_out_trials_choose_the_same(device, options):
    made = make_recordings(40, (2, 5), (2, 4), n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=0)
    channel = None if "n_channels" in options else np.arange(len(made.X)) % 2
    labels = {"session": made.session, "channel": channel}
    one = PLDA(shrinkage="auto", **options).fit(made.X, made.speaker, **labels)
    two = PLDA(shrinkage="auto", **options).fit(torch.asarray(made.X, device=device), made.speaker, **labels)
    three = PLDA(shrinkage="auto", **options).fit(made.X, made.speaker, **labels, device=device)
    for other in (two, three):
        assert (other.shrinkage_, other.scales_) == (one.shrinkage_, one.scales_)
        assert list(other.model_costs_) == list(one.model_costs_)
        assert other.calibration_.offset_ == pytest.approx(one.calibration_.offset_, abs=1e-6)
        assert other.to_host().speaker_loadings_.shape == one.speaker_loadings_.shape


def test_scores_agree(device):
    X, speaker, session, _ = data()
    plda = PLDA(4, 3).fit(X, speaker, session=session)
    there = PLDA(4, 3).fit(torch.asarray(X, device=device), speaker, session=session)
    sides = plda.enroll(X, speaker, session), there.enroll(torch.asarray(X, device=device), speaker, session)
    ones = plda.enroll(X[:40], np.arange(40)), there.enroll(torch.asarray(X[:40], device=device), np.arange(40))
    expected = plda.llr(sides[0], ones[0])
    np.testing.assert_allclose(to_numpy(there.llr(sides[1], ones[1])), expected, rtol=1e-8, atol=1e-8)
    for to_host in (False, True):
        blocks = list(there.llr_blocks(sides[1], ones[1], cells=100, host=to_host))
        assert len(blocks) > 3
        np.testing.assert_allclose(
            np.concatenate([to_numpy(b) for _, b in blocks], axis=1), expected, rtol=1e-8, atol=1e-8
        )
    if device == "cuda":  # recordings of the host, streamed
        streams = plda.enroll(X, speaker, session, device=device), plda.enroll(X[:40], np.arange(40), device=device)
        assert all(s.gamma.is_cuda for s in streams)
        np.testing.assert_allclose(to_numpy(plda.llr(*streams)), expected, rtol=1e-8, atol=1e-8)
    rows, scores = there.top(sides[1], ones[1], 3)
    want, values = plda.top(sides[0], ones[0], 3)
    np.testing.assert_array_equal(to_numpy(rows), want)
    np.testing.assert_allclose(to_numpy(scores), values, rtol=1e-8, atol=1e-8)


def test_the_command_line_on_a_device(device, tmp_path):
    """Model and scores as the processor gives them."""
    from importlib.metadata import PackageNotFoundError, version

    from cli_cases import done, lines, recordings

    try:
        version("duoplda")
    except PackageNotFoundError:
        pytest.skip("the command line needs duoplda to be installed")

    recordings(tmp_path)
    ids = [line[0] for line in lines(tmp_path / "utt2spk")]
    (tmp_path / "enroll").write_text("".join(f"m{i % 3} {u}\n" for i, u in enumerate(ids[:12])))
    embeddings = ["--embeddings", next(tmp_path.glob("*.npz"))]
    scores = []
    for where in ("cpu", device):
        model = tmp_path / f"{where}.safetensors"
        labels = ["--speakers", tmp_path / "utt2spk", "--sessions", tmp_path / "utt2sess"]
        done("train", *embeddings, *labels, "--out", model, "--device", where, "--force")
        found = []
        for what in (["--matrix"], ["--top", "2"]):
            out = tmp_path / f"{where}{what[0]}.txt"
            options = ["--enroll", tmp_path / "enroll", *what, "--device", where, "--force"]
            done("score", "--model", model, *embeddings, *options, "--out", out)
            found += lines(out)
        scores.append(found)
    assert [s[:2] for s in scores[0]] == [s[:2] for s in scores[1]]
    np.testing.assert_allclose(*([float(s[2]) for s in found] for found in scores), rtol=1e-6, atol=1e-6)
