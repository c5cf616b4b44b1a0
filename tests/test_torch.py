# ruff: noqa: E402
"""Tensors of torch: labels beside them, host arrays streamed through a device; on CUDA too, where there is one."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: `make test-torch` runs these tests with it")

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from duoplda import PLDA, Backend, Recordings, Statistics
from duoplda.arrays import Arriving, add_segments, streamed, to_numpy
from duoplda.datasets import make_recordings
from duoplda.errors import DuopldaError
from duoplda.estimators.preprocessing import through
from duoplda.trials import blocks
from test_statistics import assert_equal_statistics, exhaust


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


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ">f4", "int32", "backwards"])
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_of_the_host_arrive_in_their_order(device, dtype, ordered):
    X = np.random.default_rng(0).standard_normal((1000, 3))
    X = X[::-1] if dtype == "backwards" else (100 * X).astype(dtype)
    X.flags.writeable = False
    index = np.arange(1000) if ordered else np.random.default_rng(1).permutation(1000)
    parts = [slice(a, min(a + 64, 1000)) for a in range(0, 1000, 64)]
    like = torch.zeros(1, device=device)
    blocks = streamed(X, parts if ordered else [index[p] for p in parts], like)
    got = [to_numpy(b).copy() for b in blocks]
    assert len(got) == len(parts)
    np.testing.assert_array_equal(np.concatenate(got), X[index])


def test_a_stream_may_be_left(device):
    X = np.random.default_rng(0).standard_normal((1000, 3))
    stream = streamed(X, [slice(a, a + 100) for a in range(0, 1000, 100)], torch.zeros(1, device=device))
    np.testing.assert_array_equal(to_numpy(next(stream)), X[:100])
    stream.close()


@pytest.mark.parametrize("pinned", [False, True])
def test_an_array_arrives_while_other_work_is_done(device, pinned):
    if pinned and device == "cpu":
        pytest.skip("memory is pinned for a GPU")
    X = np.random.default_rng(0).standard_normal((3000, 3)).astype(np.float32)
    X = torch.asarray(X).pin_memory().numpy() if pinned else X
    coming = Arriving(X, torch.zeros(1, device=device), 1)  # 256 rows at a time
    for part in (slice(2900, 3000), slice(100, 700), slice(0, 3000)):
        np.testing.assert_array_equal(to_numpy(coming.rows(part)), X[part])
    coming.end()
    Arriving(X, torch.zeros(1, device=device), 1).end()  # nobody wanted it


@pytest.fixture
def moving(monkeypatch):
    """Host arrays are moved to any device, the CPU included: it stands for a GPU where there is none."""
    monkeypatch.setattr("duoplda.model.statistics.on_device", moved)


def moved(X, device):
    return X if device is None else torch.asarray(X, device=device)


def without_memory(device, monkeypatch):
    """A GPU that has no room for all recordings."""
    if device == "cpu":
        pytest.skip("memory is counted on a GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))


@pytest.mark.parametrize("n_folds", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_host_arrays_stream_through_a_device(device, moving, monkeypatch, n_folds, dtype, fits, ordered):
    if not fits:
        without_memory(device, monkeypatch)
    counts = (1, 9) if not ordered else 4
    made = make_recordings(60, (1, 5), counts, n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=3)
    order = np.random.default_rng(0).permutation(len(made.X)) if not ordered else np.arange(len(made.X))
    X, speaker, session = made.X[order].astype(dtype), made.speaker[order], made.session[order]
    assert len(X) > 600
    whole = Statistics.from_arrays(X, speaker, session, n_folds=n_folds)
    there = Statistics.from_arrays(X, speaker, session, n_folds=n_folds, device=device)
    assert there.within.device.type == device
    equal(there, whole)


@pytest.mark.parametrize("fits", [True, False])
def test_many_recordings_stream_through_a_device_in_several_blocks(device, moving, monkeypatch, fits):
    if not fits:
        without_memory(device, monkeypatch)
    n = 6_000_000  # 144 MB: more than is moved at a time
    X = np.random.default_rng(0).standard_normal((n, 3))
    speaker, session = np.arange(n) // 3000, np.arange(n) // 3
    X += speaker[:, None] % 7
    there = Statistics.from_arrays(X, speaker, session, device=device)
    equal(there, Statistics.from_arrays(X, speaker, session), 1e-10)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("source", ["array", "too large", "chunks", "tensor"])
def test_preprocessing_on_a_device(device, moving, monkeypatch, by_channel, source):
    """Recordings are moved first, and transformed where they are then."""
    if source == "too large":
        without_memory(device, monkeypatch)
    X, speaker, session, channel = data(kinds=True)
    chain = Backend(lda=4, center_by_channel=by_channel, plda=PLDA(2, 2)).fit(X, speaker, session, channel)
    places = set()

    def transform(rows, kinds):
        places.add("host" if isinstance(rows, np.ndarray) else rows.device.type)
        return through(chain.steps_, rows, kinds)

    if source == "tensor":
        recordings = Recordings.from_arrays(torch.asarray(X, device=device), speaker, session, channel)
    elif source == "chunks":
        parts = [X[a : a + 100] for a in range(0, len(X), 100)]
        recordings = Recordings.from_chunks(lambda: parts, speaker, session, channel)
    else:
        recordings = Recordings.from_arrays(X, speaker, session, channel)
    there = Statistics.of(recordings, transform, device=device, n_folds=2)
    assert places == {device}
    assert there.within.device.type == device
    equal(there, Statistics.of(Recordings.from_arrays(X, speaker, session, channel), transform, n_folds=2), 1e-10)
    plain = Statistics.unlabelled(recordings, partial(through, chain.steps_), device=device)
    assert plain.within.device.type == device
    equal(plain, Statistics.unlabelled(Recordings.from_arrays(X), partial(through, chain.steps_)), 1e-10)


@pytest.mark.parametrize(("bad", "said"), [(np.nan, "NaN or infinity in .*rows: 77"), (0.0, "of length 0 .* rows 77")])
def test_a_recording_that_preprocessing_cannot_take_is_named(device, moving, bad, said):
    """By its row in the input, though rows are sorted on the way."""
    X, speaker, session, _ = data()
    chain = Backend(whiten=False, plda=PLDA(2, 2)).fit(X, speaker, session)
    X[77] = bad if bad else chain.steps_["center"].mean_
    with pytest.raises(DuopldaError, match=said):
        Statistics.from_arrays(X, speaker, session, transform=partial(through, chain.steps_), device=device)


@pytest.mark.parametrize("runs", [[5], [3, 1, 2], [900], [300, 1, 700], [1] * 50, [70] * 20])
def test_sums_of_runs(device, runs):
    index = np.repeat(np.arange(len(runs)) * 2, runs)
    rows = np.random.default_rng(0).standard_normal((len(index), 3))
    expected = np.ones((2 * len(runs), 3))
    np.add.at(expected, index, rows)
    for there in (index, torch.asarray(index, device=device)):
        found = torch.ones((2 * len(runs), 3), dtype=torch.float64, device=device)
        add_segments(found, there, torch.asarray(rows, device=device))
        np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-12)


def test_a_device_that_is_not_there():
    X, speaker, session, _ = data()
    with pytest.raises(DuopldaError, match="device 'cuda:99' cannot be used"):
        Statistics.from_arrays(X, speaker, session, device="cuda:99")


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


@exhaust
@given(st.integers(1, 900), st.integers(1, 5), st.integers(1, 12), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_the_highest_of_a_tensor_with_ties(n, m, k, values, seed):
    """Of equal values those of the lower rows come, in their order; few values make nearly all groups candidates."""
    block = np.random.default_rng(seed).integers(0, values, (n, m)).astype(float)
    expected = np.argsort(-block, axis=0, kind="stable")[: min(k, n)]
    for where in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        rows, found = blocks.best(torch.asarray(block, device=where), min(k, n))
        np.testing.assert_array_equal(rows, expected.T)
        np.testing.assert_array_equal(found, np.take_along_axis(block, expected, axis=0).T)


@pytest.mark.parametrize("k", [1, 10, 40])
def test_the_highest_of_a_block_without_ties(device, k):
    block = torch.randn((5000, 30), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    rows, values = blocks.best(block, k)
    np.testing.assert_array_equal(rows, np.argsort(-to_numpy(block), axis=0)[:k].T)
    np.testing.assert_array_equal(values, -np.sort(-to_numpy(block), axis=0)[:k].T)


def test_the_highest_of_equal_sides(device):
    """The same recording enrolled under many names: the first names win."""
    X, speaker, session, _ = data()
    plda = PLDA(4, 3).fit(torch.asarray(X, device=device), speaker, session=session)
    rows = torch.asarray(np.repeat(X[:2], 300, axis=0), device=device)
    tests = torch.asarray(np.tile(X, (8, 1))[:700], device=device)
    found, ratios = plda.top(plda.enroll(rows, np.arange(600)), plda.enroll(tests, np.arange(700)), 4)
    assert found.device.type == device
    assert {tuple(r) for r in found.tolist()} == {(0, 1, 2, 3), (300, 301, 302, 303)}
    assert ratios.shape == (700, 4)


@pytest.mark.parametrize("patterns", ["few", "many", "uneven"])
def test_ragged_sets_agree(device, patterns):
    """Sets of one to five sessions of one to three recordings, against single recordings and against each other.

    Uneven: most sets have the same pattern.
    """
    rng = np.random.default_rng(0)
    n, most = (60, 2) if patterns == "few" else (300, 5)
    sessions = np.where(rng.random(n) < 0.95, 1, most) if patterns == "uneven" else rng.integers(1, most + 1, n)
    side = np.repeat(np.arange(n), sessions)
    size = np.where((patterns == "uneven") & (sessions[side] == 1), 1, rng.integers(1, 4, len(side)))
    side, session = np.repeat(side, size), np.repeat(np.arange(len(side)), size)
    made = make_recordings(20, 3, 3, n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=0)
    X, Y = rng.standard_normal((len(side), 6)), made.X[:50]
    here = PLDA(4, 3).fit(made.X, made.speaker, session=made.session)
    names = ("mean_", "speaker_loadings_", "session_loadings_", "noise_precision_")
    there = PLDA.from_parameters(*(torch.asarray(np.array(getattr(here, name)), device=device) for name in names))
    scores = []
    for plda, put in ((here, np.asarray), (there, partial(torch.asarray, device=device))):
        sets, ones = plda.enroll(put(X), side, session), plda.enroll(put(Y), np.arange(50))
        scores.append([to_numpy(plda.llr(*pair)) for pair in ((sets, ones), (ones, sets), (sets, sets))])
    for mine, theirs in zip(*scores, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-9, atol=1e-9)


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


def test_a_registry_answers_from_a_device(device, monkeypatch, tmp_path):
    """Whatever has changed since the last question, on both ways the answers are the same."""
    pytest.importorskip("sqlalchemy", reason="needs the extra voices")
    from duoplda.voices import Registry

    monkeypatch.setattr("duoplda.voices.gallery.on_device", moved)
    X, speaker, session, model = make_recordings(
        8, 3, 2, n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=5
    )
    speaker = np.unique(speaker, return_inverse=True)[1]
    plda = PLDA.from_parameters(model.mu[0], model.V, model.U, model.W[0])
    with Registry.create(tmp_path / "voices.db", plda) as host:
        for i in range(6):
            host.add(f"voice {i}", X[speaker == i], session[speaker == i])
        with Registry.open(tmp_path / "voices.db", plda, device=device) as there:

            def alike():
                for x in X[::5]:
                    one, other = (registry.identify(x[None], k=3) for registry in (host, there))
                    assert [c.name for c in one.candidates] == [c.name for c in other.candidates]
                    np.testing.assert_allclose(
                        [c.llr for c in other.candidates], [c.llr for c in one.candidates], rtol=1e-9, atol=1e-9
                    )
                    assert other.someone_else == pytest.approx(one.someone_else)

            alike()
            host.add("voice 6", X[speaker == 6], session[speaker == 6])
            alike()
            host.remove("voice 2")
            alike()
            there.add("voice 0", X[speaker == 7], session[speaker == 7])
            alike()
