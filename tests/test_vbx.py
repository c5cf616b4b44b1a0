"""VBx: sums over all paths of small chains, the lower bound by its definition, and what VBx and pyannote computed."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.special import softmax

from duoplda.diarization import (
    Segments,
    as_turns,
    centroid_labels,
    cosine_labels,
    latent,
    posterior,
    smoothed,
    threshold_between,
    vb_hmm,
)
from duoplda.errors import DuopldaError
from duoplda.io import Coded, DiagonalModel, read_embeddings
from duoplda.io.kaldi_plda import read_kaldi_plda
from duoplda.io.vbx import read_vbx

SHARED = Path(__file__).parents[2] / "shared" / "data" / "diarization"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
RECORDINGS = ["01_dialogue", "02_pyannote_sample", "05_four_speaker"]


# -- oracles: every path of the chain by itself


def paths(evidence, priors, loop):
    """All sequences of states, ln p(z), and the sum of their evidence."""
    T, S = evidence.shape
    every = np.array(list(itertools.product(range(S), repeat=T)))
    move = loop * np.eye(S) + (1 - loop) * priors
    with np.errstate(divide="ignore"):
        prior = np.log(priors[every[:, 0]]) + np.log(move[every[:, :-1], every[:, 1:]]).sum(axis=1)
    return every, prior, evidence[np.arange(T), every].sum(axis=1)


def path_posterior(evidence, priors, loop):
    """(paths,) q(z)."""
    _, prior, given = paths(evidence, priors, loop)
    return softmax(prior + given)


def draws(evidence, priors, loop):
    """Expected draws from the priors, with the draw of each step as a variable of its own (stayed, or drawn)."""
    T, S = evidence.shape
    out, total = np.zeros(S), 0.0
    for z in itertools.product(range(S), repeat=T):
        for stayed in itertools.product([True, False], repeat=T - 1):
            weight, drawn = priors[z[0]] * np.exp(evidence[0, z[0]]), [z[0]]
            for t in range(1, T):
                weight *= np.exp(evidence[t, z[t]])
                if stayed[t - 1]:
                    weight *= loop * (z[t] == z[t - 1])
                else:
                    weight *= (1 - loop) * priors[z[t]]
                    drawn.append(z[t])
            np.add.at(out, drawn, weight)
            total += weight
    return out / total


def bound(X, phi, Fa, Fb, loop, priors, responsibilities, q, every):
    """E by its definition: expectations under q(z) q(y), y's best factor of these responsibilities."""
    d = X.shape[1]
    v = 1 / (1 + Fa / Fb * responsibilities.sum(axis=0)[:, None] * phi)
    a = Fa / Fb * v * (responsibilities.T @ (X * np.sqrt(phi)))
    expected = np.empty((len(X), len(a)))  # E[ln N(x_t; phi^1/2 y_s, I)]
    for t, s in np.ndindex(expected.shape):
        error = X[t] - np.sqrt(phi) * a[s]
        expected[t, s] = -0.5 * (d * np.log(2 * np.pi) + error @ error + phi @ v[s])
    _, prior, given = paths(Fa * expected, priors, loop)
    live = q > 0
    divergence = 0.5 * (v + a**2 - 1 - np.log(v)).sum()  # of q(y) from N(0, I)
    return (q[live] * (given[live] + prior[live] - np.log(q[live]))).sum() - Fb * divergence


@st.composite
def chains(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    T, S = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    loop = draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    priors = rng.dirichlet(np.ones(S))
    if S > 1 and draw(st.booleans()):
        priors[0] = 0
        priors /= priors.sum()
    return rng.normal(scale=draw(st.sampled_from([0.1, 3.0, 40.0])), size=(T, S)), priors, loop


@given(chains())
@settings(max_examples=60, deadline=None)
def test_forward_backward_is_the_sum_over_all_paths(chain):
    evidence, priors, loop = chain
    g, drawn, total = posterior(evidence, priors, loop)
    every, prior, given_ = paths(evidence, priors, loop)
    q = path_posterior(evidence, priors, loop)
    for s in range(len(priors)):
        np.testing.assert_allclose(g[:, s], q @ (every == s), atol=1e-12)
    np.testing.assert_allclose(total, np.logaddexp.reduce(prior + given_), rtol=1e-12)
    np.testing.assert_allclose(drawn, draws(evidence, priors, loop), atol=1e-12)


@pytest.mark.parametrize("loop", [0.0, 0.7])
def test_the_bound_is_that_of_the_definition(loop):
    rng = np.random.default_rng(3)
    X, phi, start = rng.normal(size=(5, 2)), np.array([4.0, 0.5]), rng.dirichlet(np.ones(2), 5)
    options = {"Fa": 0.6, "Fb": 1.7, "loop": loop, "tol": 0.0}
    priors, responsibilities = np.full(2, 0.5), start
    for n in range(1, 5):
        found = vb_hmm(X, phi, start, max_iter=n, **options)
        assert len(found.elbo) == n
        v = 1 / (1 + 0.6 / 1.7 * responsibilities.sum(axis=0)[:, None] * phi)
        a = 0.6 / 1.7 * v * (responsibilities.T @ (X * np.sqrt(phi)))
        np.testing.assert_allclose(found.means, a * np.sqrt(phi), rtol=1e-10)
        own = X[:, None, :] - found.means
        evidence = -0.3 * ((own**2).sum(axis=2) + v @ phi + 2 * np.log(2 * np.pi))
        q = path_posterior(evidence, priors, loop)
        every = paths(evidence, priors, loop)[0]
        expected = bound(X, phi, 0.6, 1.7, loop, priors, responsibilities, q, every)
        np.testing.assert_allclose(found.elbo[-1], expected, rtol=1e-10)
        drawn = draws(evidence, priors, loop)
        priors, responsibilities = drawn / drawn.sum(), found.responsibilities
        np.testing.assert_allclose(found.priors, priors, rtol=1e-10)


@given(
    st.integers(0, 10**6), st.sampled_from([None, 0.5, 0.99]), st.sampled_from([(0.3, 17.0), (1.0, 1.0), (0.1, 0.5)])
)
@settings(max_examples=40, deadline=None)
def test_no_iteration_lowers_the_bound(seed, loop, scales):
    rng = np.random.default_rng(seed)
    T, d, S = 60, 4, 6
    phi = rng.gamma(1.0, 5.0, d)
    X = (rng.normal(size=(3, d)) * np.sqrt(phi))[np.repeat(rng.integers(0, 3, 12), 5)] + rng.normal(size=(T, d))
    found = vb_hmm(X, phi, rng.dirichlet(np.ones(S), T), Fa=scales[0], Fb=scales[1], loop=loop, max_iter=30, tol=0)
    assert (np.diff(found.elbo) >= -1e-9 * np.abs(found.elbo[0])).all()
    np.testing.assert_allclose(found.responsibilities.sum(axis=1), 1, atol=1e-9)
    np.testing.assert_allclose(found.priors.sum(), 1)


def test_the_order_of_speakers_does_not_matter():
    rng = np.random.default_rng(1)
    X, phi, start = rng.normal(size=(30, 3)) * 3, np.array([5.0, 2.0, 1.0]), rng.dirichlet(np.ones(4), 30)
    turned = [2, 0, 3, 1]
    one, other = vb_hmm(X, phi, start, Fa=1, Fb=1), vb_hmm(X, phi, start[:, turned], Fa=1, Fb=1)
    np.testing.assert_allclose(other.responsibilities, one.responsibilities[:, turned], atol=1e-8)
    np.testing.assert_allclose(other.priors, one.priors[turned], atol=1e-8)


def test_rows_far_apart_do_not_underflow():
    """Evidence of thousands of nats between speakers, and a chain that never leaves its state."""
    X = np.repeat([[200.0], [-200.0]], 50, axis=0)
    found = vb_hmm(X, [4e4], smoothed(np.arange(100) // 50), Fa=1, Fb=1)
    assert np.isfinite(found.elbo).all()
    assert found.labels.tolist() == [0] * 50 + [1] * 50
    assert np.isfinite(vb_hmm(X, [4e4], smoothed(np.arange(100) // 50), Fa=1, Fb=1, loop=1.0).elbo).all()


def test_it_stops_where_the_bound_no_longer_rises():
    rng = np.random.default_rng(0)
    X, start = rng.normal(size=(50, 2)), rng.dirichlet(np.ones(3), 50)
    found = vb_hmm(X, [2.0, 1.0], start, max_iter=200, tol=1e-3)
    rises = np.diff(found.elbo)
    assert found.converged
    assert (rises[:-1] >= 1e-3).all()
    assert rises[-1] < 1e-3
    short = vb_hmm(X, [2.0, 1.0], start, max_iter=2, tol=0)
    assert (len(short.elbo), short.converged) == (2, False)


def test_a_long_recording_is_fast():
    """Ten iterations over 10,000 rows and 30 speakers take about a second."""
    rng = np.random.default_rng(0)
    X, start = rng.normal(size=(10_000, 8)), rng.dirichlet(np.ones(30), 10_000)
    began = time.process_time()
    vb_hmm(X, np.ones(8), start, max_iter=10, tol=0)
    assert time.process_time() - began < 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": [[0.0, np.nan], [1.0, 2.0]]}, r"NaN or infinity in 1 of 2 rows: 0"),
        ({"X": [1.0, 2.0]}, "must be a matrix"),
        ({"phi": [1.0]}, r"phi must have 2 between-class variances"),
        ({"phi": [1.0, -1.0]}, r"0 or more.*-1\.0"),
        ({"start": np.ones((3, 1))}, r"a row for each of the 2 rows of X, but has shape \(3, 1\)"),
        ({"start": [[0.5, 0.5], [0.5, 0.6]]}, "sum to 1; rows 1 do not"),
        ({"start": [[0.5, 0.5], [np.nan, 0.6]]}, "sum to 1; rows 1 do not"),
        ({"Fa": 0}, "Fa=0 must be a positive number"),
        ({"Fb": float("nan")}, "Fb=nan must be a positive number"),
        ({"loop": 1.5}, r"loop=1\.5 must be a probability"),
        ({"max_iter": 0}, "max_iter=0"),
        ({"tol": -1.0}, r"tol=-1\.0"),
    ],
)
def test_wrong_input_is_named(change, message):
    given_ = {"X": [[0.0, 1.0], [1.0, 2.0]], "phi": [2.0, 1.0], "start": [[0.5, 0.5], [1.0, 0.0]], **change}
    with pytest.raises(DuopldaError, match=message):
        vb_hmm(**given_)


# -- where to start


def test_smoothed_labels():
    given_ = smoothed(["b", "a", "b"], 2.0)
    own, other = np.exp(2) / (np.exp(2) + 1), 1 / (np.exp(2) + 1)
    np.testing.assert_allclose(given_, [[other, own], [own, other], [other, own]])
    np.testing.assert_allclose(smoothed([3, 3], 5.0), np.ones((2, 1)))
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(DuopldaError, match="amount"):
            smoothed([0, 1], wrong)
    with pytest.raises(DuopldaError, match="labels must be a list"):
        smoothed([])


def slow_threshold(matrix, n_iter):
    """EM of two Gaussians with one variance over every entry of a matrix, and the crossing by bisection."""
    s = matrix.ravel()
    w, m, var = np.array([0.5, 0.5]), s.mean() + s.std() * np.array([-1, 1]), s.var()
    for _ in range(n_iter):
        g = softmax(np.log(w) - 0.5 * (s[:, None] - m) ** 2 / var, axis=1)
        w, m = g.mean(axis=0), (g * s[:, None]).sum(axis=0) / g.sum(axis=0)
        var = (g * (s[:, None] - m) ** 2).sum() / len(s)
    low, high = m
    for _ in range(200):
        middle = (low + high) / 2
        density = np.log(w) - 0.5 * (middle - m) ** 2 / var
        low, high = (middle, high) if density[0] > density[1] else (low, middle)
    return low


def test_the_threshold_separates_two_gaussians():
    rng = np.random.default_rng(5)
    X = np.repeat(rng.normal(size=(4, 10)), 12, axis=0) + 0.4 * rng.normal(size=(48, 10))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    pairs = (X @ X.T)[np.triu_indices(48, 1)]
    np.testing.assert_allclose(threshold_between(pairs, 48), slow_threshold(X @ X.T, 20), atol=1e-9)
    with pytest.raises(DuopldaError, match="48 rows have 1128 pairs"):
        threshold_between(pairs[1:], 48)


def test_cosine_labels_find_separate_speakers():
    rng = np.random.default_rng(6)
    truth = rng.integers(0, 4, 60)
    X = np.eye(8)[truth] * 10 + rng.normal(size=(60, 8)) * rng.uniform(0.5, 1.5, (60, 1))
    X *= rng.uniform(0.1, 9, (60, 1))  # lengths do not matter
    found = cosine_labels(X)
    assert len(set(zip(found.tolist(), truth.tolist(), strict=True))) == len(set(found.tolist())) == 4
    assert [found.tolist().index(k) for k in range(4)] == sorted(found.tolist().index(k) for k in range(4))
    assert len(set(cosine_labels(X, bias=2.0).tolist())) == 60
    assert set(cosine_labels(X, bias=-3.0).tolist()) == {0}


def test_clustering_of_few_or_equal_rows():
    for labels in (cosine_labels, lambda X: centroid_labels(X, 0.6)):
        assert labels([[1.0, 2.0]]).tolist() == [0]
        assert labels(np.ones((5, 3))).tolist() == [0] * 5
        with pytest.raises(DuopldaError, match="rows of length 0 have no direction: 1"):
            labels([[1.0, 2.0], [0.0, 0.0]])
        with pytest.raises(DuopldaError, match="NaN"):
            labels([[1.0, np.inf], [0.0, 1.0]])
    assert len(cosine_labels([[1.0, 0.0], [0.0, 1.0]])) == 2
    with pytest.raises(DuopldaError, match="threshold"):
        centroid_labels(np.eye(3), float("nan"))
    with pytest.raises(DuopldaError, match="bias"):
        cosine_labels(np.eye(3), float("nan"))


def test_latent_space_has_the_covariances_that_it_promises():
    rng = np.random.default_rng(2)
    model = DiagonalModel(rng.normal(size=3), rng.normal(size=(3, 3)), np.array([0.5, 3.0, 1.0]))
    X = rng.normal(size=(4, 3))
    rows, phi = latent(X, model, 2)
    assert phi.tolist() == [3.0, 1.0]
    np.testing.assert_allclose(rows, ((X - model.mean) @ model.transform.T)[:, [1, 2]])
    with pytest.raises(DuopldaError, match="2 dimensions, the model 3"):
        latent(X[:, :2], model)
    with pytest.raises(DuopldaError, match="n_dimensions=4"):
        latent(X, model, 4)


# -- turns


def turns(start, end, label):
    """The turns of windows of one file."""
    ids = np.array([f"w{i}" for i in range(len(start))], dtype=str)
    return as_turns(Segments(ids, Coded.of(["f"] * len(ids)), np.asarray(start), np.asarray(end)), label)


def frame_owner(start, end, label, at):
    """Labels of the windows over an instant."""
    return {k for s, e, k in zip(start, end, label, strict=True) if s <= at < e}


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=25), st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_turns_cover_what_windows_cover(steps, seed):
    """Each instant of a window belongs to one turn, whose label is that of some window there."""
    start = np.cumsum([s for s, _ in steps]) / 10
    end, label = start + 1.44, np.array([k for _, k in steps])
    order = np.random.default_rng(seed).permutation(len(start))
    found = turns(start[order], end[order], np.array(list("abc"))[label[order]])
    assert (found.start < found.end).all()
    assert (found.end[:-1] <= found.start[1:] + 1e-12).all()
    touching = found.start[1:] - found.end[:-1] < 1e-9
    who = found.speaker.values
    assert (who[1:] != who[:-1])[touching].all()
    for at in np.arange(0, end[-1] + 1, 0.0437):
        windows = {"abc"[k] for k in frame_owner(start, end, label, at)}
        owners = frame_owner(found.start, found.end, who, at)
        assert len(owners) == bool(windows)
        assert owners <= windows


def test_overlaps_are_cut_in_the_middle_and_pauses_stay():
    found = turns([0.0, 0.24, 0.48, 5.0, 6.44], [1.44, 1.68, 1.92, 6.44, 7.0], ["a", "b", "b", "b", "b"])
    np.testing.assert_allclose(found.start, [0, 0.84, 5.0])
    np.testing.assert_allclose(found.end, [0.84, 1.92, 7.0])
    assert found.speaker.values.tolist() == ["a", "b", "b"]
    assert len(turns([], [], [])) == 0
    with pytest.raises(DuopldaError, match="segments lie within others: 'w1'"):
        turns([0.0, 1.0], [5.0, 2.0], [0, 1])
    with pytest.raises(DuopldaError, match="do not end after they start, at rows 1"):
        turns([0.0, 3.0], [5.0, 2.0], [0, 1])
    with pytest.raises(DuopldaError, match="2 speaker labels for 1"):
        turns([0.0], [5.0], [0, 1])


# -- what VBx and pyannote computed


def partition(labels):
    """Labels by the order in which they first come."""
    seen: dict[object, int] = {}
    return [seen.setdefault(k, len(seen)) for k in np.asarray(labels).tolist()]


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@needs_shared
def test_vbx_finds_the_turns_of_its_own_example():
    import h5py

    ids, X = read_embeddings(SHARED / "vbx" / "ES2005a.ark").load()
    with h5py.File(SHARED / "vbx" / "transform.h5") as f:
        mean1, lda, mean2 = (f[name][()] for name in ("mean1", "lda", "mean2"))
    X = unit(unit(X - mean1) @ lda - mean2)
    rows, phi = latent(X, read_kaldi_plda(SHARED / "vbx" / "plda"), 128)
    found = vb_hmm(rows, phi, smoothed(cosine_labels(X, bias=-0.015), 5.0), Fa=0.3, Fb=17, loop=0.99)
    segments = [line.split() for line in (SHARED / "vbx" / "ES2005a.seg").read_text().splitlines()]
    assert [s[0] for s in segments] == ids.tolist()
    times = np.array([[float(t) for t in s[2:]] for s in segments])
    ours = turns(times[:, 0], times[:, 1], found.labels)
    theirs = [line.split() for line in (SHARED / "vbx" / "ES2005a.vbx-output.rttm").read_text().splitlines()]
    assert len(theirs) == len(ours)
    np.testing.assert_allclose(ours.start, [float(t[3]) for t in theirs], atol=1e-6)
    np.testing.assert_allclose(ours.duration, [float(t[4]) for t in theirs], atol=1e-6)
    assert partition(ours.speaker.values) == partition([t[7] for t in theirs])
    assert (np.diff(found.elbo) > 0).all()


@needs_shared
@pytest.mark.parametrize("name", RECORDINGS)
def test_pyannote_computes_the_same(name):
    folder = SHARED / "pyannote"
    raw = np.load(folder / name / "raw_embeddings.npz")["embeddings"]
    stages, state = np.load(folder / name / "plda_embeddings.npz"), np.load(folder / name / "vbx_state.npz")
    X = raw[stages["train_chunk_idx"], stages["train_speaker_idx"]]
    steps = np.load(folder / "xvec_transform.npz")
    once = np.sqrt(256) * unit(X - steps["mean1"]) @ steps["lda"]
    twice = np.sqrt(128) * unit(once - steps["mean2"])
    np.testing.assert_allclose(twice, stages["post_xvec"], atol=1e-10)
    rows, phi = latent(twice, read_vbx(folder / "plda.npz"))
    np.testing.assert_allclose(phi, stages["phi"], atol=1e-10)
    signs = np.sign((rows * stages["post_plda"]).sum(axis=0))  # an eigenvector has none of its own
    np.testing.assert_allclose(rows * signs, stages["post_plda"], atol=1e-10)

    labels = centroid_labels(X, float(np.load(folder / name / "ahc_state.npz")["threshold"]))
    first = np.load(folder / name / "ahc_init_labels.npy")
    assert partition(labels) == partition(first)
    start = smoothed(first, 7.0)
    np.testing.assert_allclose(start, state["qinit"], atol=1e-12)
    scales = {"Fa": float(state["fa"]), "Fb": float(state["fb"]), "max_iter": int(state["max_iters"])}
    found = vb_hmm(rows, phi, start, loop=None, tol=1e-4, **scales)
    np.testing.assert_allclose(found.responsibilities, state["q_final"], atol=1e-6)
    np.testing.assert_allclose(found.priors, state["sp_final"], atol=1e-6)
    # they add 1e-8 to each prior, which moves the sum of a row by about 1e-8 for each speaker
    np.testing.assert_allclose(found.elbo, state["elbo_trajectory"], atol=1e-7 * start.size, rtol=0)

    final = np.load(folder / name / "clustering.npz")
    W = found.responsibilities[:, found.priors > 1e-7]
    centroids = W.T @ X / W.sum(axis=0)[:, None]
    np.testing.assert_allclose(centroids, final["centroids"], atol=1e-5)
    assert (assigned(raw, centroids, final["soft_clusters"]) == final["hard_clusters"]).all()


def assigned(raw, centroids, theirs):
    """Speakers of a chunk get clusters of their own, where there are enough; theirs says which were silent."""
    soft = 2 - cdist(raw.reshape(-1, raw.shape[2]), centroids, "cosine").reshape(*raw.shape[:2], -1)
    silent = (theirs == theirs.min()).all(axis=2)
    np.testing.assert_allclose(soft[~silent], theirs[~silent], atol=1e-5)
    soft[silent] = theirs.min()
    out = np.full(raw.shape[:2], -2)
    for c, scores in enumerate(soft):
        out[c][linear_sum_assignment(-scores)[0]] = linear_sum_assignment(-scores)[1]
    return out
