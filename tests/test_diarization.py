"""Who speaks when: conversations drawn from a model, what happens at the wrong level, and VBx's own example."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import multivariate_normal

from duoplda import PLDA, Backend, Recordings
from duoplda.diarization import (
    Segments,
    Turns,
    as_turns,
    der,
    diarize,
    diarize_chunks,
    link_speakers,
    new_share,
    read_rttm,
    read_segments,
)
from duoplda.diarization.known import known_voices
from duoplda.diarization.number import OFFSET, merges, number_posterior
from duoplda.errors import DuopldaError, MissingIds
from duoplda.io import Coded, read_embeddings, read_model
from duoplda.model.shrinkage import Scales

VBX = Path(__file__).parents[2] / "shared" / "data" / "diarization" / "vbx"
needs_shared = pytest.mark.skipif(not VBX.is_dir(), reason="the shared data are not here")
CONVERSATIONS = VBX.parent / "conversations"
needs_conversations = pytest.mark.skipif(not CONVERSATIONS.is_dir(), reason="the shared data are not here")
TRUE = {"Fa": 1.0, "Fb": 1.0}  # the scales of independent windows


def two_levels(seed=0, d=24, speaker=3.0, session=2.0):
    """A PLDA whose speakers and sessions differ in directions of their own, and by noise of variance 1."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return PLDA.from_parameters(rng.normal(size=d), speaker * Q[:, : d // 2], session * Q[:, d // 2 :], np.eye(d))


def windows(n, file="f", length=1.0, hop=1.0):
    start = hop * np.arange(n)
    return Segments(np.array([f"{file}{i:04}" for i in range(n)]), Coded.of([file] * n), start, start + length)


def joined(*parts):
    columns = [
        np.concatenate([np.asarray(getattr(p, name)) for p in parts]) for name in ("ids", "file", "start", "end")
    ]
    return Segments(columns[0], Coded.of(columns[1]), *columns[2:])


def talk(plda, who, level="sessions", seed=0, y=None):
    """(T, d) windows of a file with these speakers (T,): x is drawn for each window, or for each speaker."""
    rng = np.random.default_rng(seed)
    V, U, W = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_
    y = rng.normal(size=(max(who) + 1, V.shape[1])) if y is None else y
    x = rng.normal(size=(len(who) if level == "sessions" else max(who) + 1, U.shape[1]))
    noise = np.linalg.solve(np.linalg.cholesky(W).T, rng.normal(size=(len(plda.mean_), len(who)))).T
    return plda.mean_ + y[who] @ V.T + (x if level == "sessions" else x[who]) @ U.T + noise


def turn_order(rng, n_speakers, n_turns, longest=12):
    """(T,) speakers of windows; no turn follows another one of the same speaker, and everyone speaks."""
    who = [k % n_speakers for k in range(n_turns)]
    return np.repeat(who, rng.integers(4, longest, n_turns))


def error(found, segments, who):
    return der(found, as_turns(segments, [f"true{k}" for k in who])).rate


def people(turns):
    return len(set(turns.speaker.values.tolist()))


# -- drawn conversations


@pytest.mark.parametrize("level", ["sessions", "recordings"])
@pytest.mark.parametrize("refine", ["vbx", "gmm", None])
@pytest.mark.parametrize("n_speakers", [1, 2, 5])
def test_drawn_conversations(level, refine, n_speakers):
    rng = np.random.default_rng(n_speakers)
    plda, who = two_levels(), turn_order(rng, n_speakers, 15)
    X, segments = talk(plda, who, level, seed=n_speakers), windows(len(who))
    found = diarize(plda, X, segments, refine=refine, segments_are=level, **TRUE)
    assert people(found) == n_speakers or refine is None  # first labels may leave a single window apart
    assert error(found, segments, who) < 0.02


def test_the_wrong_level_is_much_worse():
    """Directions in which only sessions differ tell speakers apart within a file, if files were the sessions."""
    for level, other, speaker in (("sessions", "recordings", 2.0), ("recordings", "sessions", 0.5)):
        plda = two_levels(speaker=speaker, session=4.0)
        for seed in range(3):
            who = turn_order(np.random.default_rng(seed), 4, 12)
            X, segments = talk(plda, who, level, seed), windows(len(who))
            right, wrong = (diarize(plda, X, segments, segments_are=a, **TRUE) for a in (level, other))
            assert error(right, segments, who) < 0.05
            assert error(wrong, segments, who) > 0.4


def overlapping(plda, who, times, seed):
    """Windows of `times` steps, one for each step; a window is the mean of its steps, whose noise is independent.

    The noise of one window is as the model says, and neighbours have most of it in common.
    """
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(len(who) + times - 1, len(plda.mean_))) * np.sqrt(times)
    noise = np.stack([steps[t : t + times].mean(axis=0) for t in range(len(who))])
    y = rng.normal(size=(max(who) + 1, plda.speaker_loadings_.shape[1]))
    return plda.mean_ + y[who] @ plda.speaker_loadings_.T + noise


def test_windows_that_overlap_are_discounted():
    """Taken for independent, they make speakers of what neighbours have in common."""
    plda = PLDA.from_parameters(np.zeros(16), 2 * np.eye(16), None, np.eye(16))
    who = np.repeat([0, 1, 0, 2, 1, 2], 40)
    X, segments = overlapping(plda, who, 6, seed=3), windows(len(who), length=6.0)
    assert new_share(segments.start, segments.end) == pytest.approx(1 / 6, rel=0.05)
    found = {rho: diarize(plda, X, segments, refine=None, discount=rho) for rho in (None, 1.0)}
    assert people(found[None]) == 3
    assert people(found[1.0]) > 6
    assert error(found[None], segments, who) < 0.05


def slow_merge(rows, phi, rho, prior, n=None):
    """Merge the best pair of all down to one cluster; keep the partition on this path with the highest posterior.

    Every ratio is computed from the covariance of all windows, each of which has a noise of I / rho: rho windows x with
    noise I say about y what one with noise I / rho does. n: that many clusters must be left.
    """

    def ln(cluster):
        S = np.kron(np.ones((len(cluster),) * 2), np.diag(phi)) + np.eye(len(cluster) * len(phi)) / rho
        x = rows[cluster].reshape(-1)
        return -0.5 * (x @ np.linalg.solve(S, x) + np.linalg.slogdet(S)[1])

    def gain(a, b):
        m = gammaln(len(a) + len(b)) - gammaln(len(a)) - gammaln(len(b))
        return ln(a + b) - ln(a) - ln(b) + rho * (m - np.log((1 - prior) / prior))

    clusters = [[t] for t in range(len(rows))]
    path = [(0.0, {frozenset(c) for c in clusters})]
    while len(clusters) > 1:
        pairs = list(itertools.combinations(range(len(clusters)), 2))
        gains = [gain(clusters[a], clusters[b]) for a, b in pairs]
        a, b = pairs[int(np.argmax(gains))]
        clusters[a] += clusters.pop(b)
        path.append((path[-1][0] + max(gains), {frozenset(c) for c in clusters}))
    allowed = [step for step in path if n is None or len(step[1]) == n]
    return max(allowed, key=lambda step: step[0])[1]


@pytest.mark.parametrize("rho", [1.0, 0.3])
@pytest.mark.parametrize("prior", [0.01, 0.25])
@pytest.mark.parametrize("n", [None, 2])
def test_first_labels_are_those_of_a_slow_merge(rho, prior, n):
    phi = np.array([6.0, 3.0, 1.0])
    plda, sizes = PLDA.from_parameters(np.zeros(3), np.diag(np.sqrt(phi)), None, np.eye(3)), set()
    for seed in range(4):
        X = talk(plda, np.repeat([0, 1, 2], 4), seed=seed)
        options = {"refine": None, "discount": rho, "prior": prior, "n_speakers": n}
        turns = diarize(plda, X, windows(12, hop=2.0), **options)  # a turn for each window
        found = {frozenset(np.flatnonzero(turns.speaker.values == k).tolist()) for k in turns.speaker.names}
        assert found == slow_merge(X - X.mean(axis=0), phi, rho, prior, n)
        sizes.add(len(found))
    assert n is None or sizes == {n}


def test_too_many_groups_are_merged_whole():
    """Sixteen first speakers, of four people: all windows of a first speaker stay together."""
    plda, who = two_levels(), np.arange(4).repeat(16)
    first = np.arange(16).repeat(4)
    found = diarize(plda, talk(plda, who), windows(64, hop=2.0), start=first, refine=None, n_speakers=4)
    pairs = set(zip(found.speaker.values.tolist(), who.tolist(), strict=True))
    assert len(pairs) == 4


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_the_new_share_counts_every_second_once(spans):
    covered = {t for start, length in spans for t in range(start, start + length)}
    start, length = np.array(spans).T
    assert new_share(start, start + length) == pytest.approx(len(covered) / length.sum())


@pytest.mark.parametrize("start", ["ratios", "vbx", "pyannote"])
@pytest.mark.parametrize("refine", ["vbx", "gmm", None])
def test_the_number_of_speakers_is_as_asked(start, refine):
    plda, who = two_levels(), turn_order(np.random.default_rng(0), 4, 12)
    X, segments = talk(plda, who), windows(len(who))
    for n in (1, 2, 4, 7):
        assert people(diarize(plda, X, segments, start=start, refine=refine, n_speakers=n)) == n
    found = diarize(plda, X, segments, start=start, refine=refine, n_speakers=4)
    assert error(found, segments, who) < 0.1
    assert people(diarize(plda, X, segments, start=start, refine=refine, min_speakers=6)) >= 6
    assert people(diarize(plda, X, segments, start=start, refine=refine, max_speakers=2, **TRUE)) <= 2


def test_a_costly_speaker_is_kept_where_there_must_be_so_many():
    """A cost that leaves one speaker is halved until the HMM leaves three, not replaced by the first labels."""
    plda, who = two_levels(speaker=1.5), turn_order(np.random.default_rng(1), 3, 12)
    X, segments = talk(plda, who), windows(len(who))
    costly = {"Fa": 0.3, "Fb": 500.0}
    noisy = np.where(np.arange(len(who)) % 4 == 0, 0, who)
    assert people(diarize(plda, X, segments, start=noisy, **costly)) == 1
    found = diarize(plda, X, segments, start=noisy, n_speakers=3, **costly)
    assert people(found) == 3
    assert error(found, segments, who) < 0.05 < error(as_turns(segments, noisy), segments, who)


def test_given_labels_are_the_start():
    plda, who = two_levels(), turn_order(np.random.default_rng(2), 3, 9)
    X, segments = talk(plda, who), windows(len(who))
    names = np.array(["c", "a", "b"])[who]
    assert error(diarize(plda, X, segments, start=names, refine=None), segments, who) == 0
    noisy = np.where(np.arange(len(who)) % 5 == 0, "a", names)
    assert error(diarize(plda, X, segments, start=noisy, **TRUE), segments, who) < 0.02
    with pytest.raises(DuopldaError, match="2 start labels for"):
        diarize(plda, X, segments, start=["a", "b"])


# -- files


def test_files_do_not_know_of_each_other():
    """What is found in a file is the same alone and among others, in any order of segments and of embeddings."""
    plda, rng = two_levels(), np.random.default_rng(4)
    parts = {name: turn_order(rng, k, 8) for name, k in (("one", 2), ("two", 3), ("solo", 1))}
    X = {name: talk(plda, who, seed=len(name)) for name, who in parts.items()}
    segments = {name: windows(len(who), name) for name, who in parts.items()}
    every, order = joined(*segments.values()), rng.permutation(sum(map(len, parts.values())))
    mixed = Segments(every.ids[order], every.file[order], every.start[order], every.end[order])
    data = Recordings.from_arrays(np.concatenate([*X.values()]), ids=every.ids)
    found = diarize(plda, data, mixed, **TRUE)
    for name in parts:
        alone = diarize(plda, X[name], segments[name], **TRUE)
        here = found[np.asarray(found.file) == name]
        assert [(*t,) for t in zip(here.start, here.end, here.speaker.values, strict=True)] == [
            (*t,) for t in zip(alone.start, alone.end, alone.speaker.values, strict=True)
        ]
        assert error(here, segments[name], parts[name]) < 0.02
        assert here.speaker.values[0] == f"{name}-1"


@pytest.mark.parametrize("link", [False, True])
def test_a_turn_has_the_posterior_of_its_speaker(link):
    """It is the mean over the turn's windows; the second is the best of all others, linked ones taken together."""
    plda, rng = two_levels(), np.random.default_rng(7)
    who = turn_order(rng, 3, 8)
    X, segments = talk(plda, who, seed=7), windows(len(who))
    told = {}
    found = diarize(plda, X, segments, Fa=0.05, Fb=0.2, link=link, told=told.__setitem__)
    labels, gamma = told["f"].labels, told["f"].posterior
    assert len(found) > 3
    assert (found.posterior < 0.999).any()
    person = {}
    for turn in range(len(found)):
        for t in np.flatnonzero((segments.start >= found.start[turn]) & (segments.end <= found.end[turn])):
            person[int(labels[t])] = str(found.speaker.values[turn])
    for turn in range(len(found)):
        inside = (segments.start >= found.start[turn]) & (segments.end <= found.end[turn])
        shares = dict.fromkeys(person.values(), 0.0)
        for k, name in person.items():
            shares[name] += gamma[inside, k].mean()
        assert found.posterior[turn] == pytest.approx(shares.pop(str(found.speaker.values[turn])))
        assert found.second.values[turn] == max(shares, key=shares.get)
        assert found.second_posterior[turn] == pytest.approx(max(shares.values()))
    assert found[:2].posterior.tolist() == found.posterior[:2].tolist()


def test_one_speaker_has_no_second():
    plda = two_levels()
    found = diarize(plda, talk(plda, np.zeros(5, int)), windows(5), n_speakers=1)
    assert (found.posterior.tolist(), found.second.values.tolist(), found.second_posterior.tolist()) == ([1], [""], [0])


def test_a_chain_is_applied_first():
    plda = two_levels()
    V, U, W = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_
    X, speaker, session = PLDA.from_parameters(plda.mean_, V, U, W).sample(200, 4, 3, random_state=0)
    chain = Backend(plda=PLDA(12, 12, shrinkage=0.1)).fit(X, speaker, session=session)
    who = turn_order(np.random.default_rng(5), 3, 12)
    rows, segments = talk(plda, who), windows(len(who))
    assert error(diarize(chain, rows, segments, **TRUE), segments, who) < 0.05


@pytest.mark.parametrize("start", ["ratios", "vbx", "pyannote"])
def test_one_segment(start):
    plda = two_levels()
    for refine in ("vbx", "gmm", None):
        found = diarize(plda, talk(plda, [0]), windows(1), start=start, refine=refine)
        assert (found.start.tolist(), found.end.tolist(), found.speaker.values.tolist()) == ([0.0], [1.0], ["f-1"])


@pytest.mark.parametrize("start", ["ratios", "vbx", "pyannote"])
def test_equal_segments_are_one_speaker(start):
    plda = two_levels()
    found = diarize(plda, np.repeat(talk(plda, [0]), 30, axis=0), windows(30), start=start)
    assert (found.start.tolist(), found.end.tolist()) == ([0.0], [30.0])


def test_dimensions_with_the_most_variance_are_used():
    """All but two dimensions have so little variance between speakers that they say nothing."""
    phi = np.append([25.0, 25.0], np.full(10, 1e-6))
    plda = PLDA.from_parameters(np.zeros(12), np.diag(np.sqrt(phi)), None, np.eye(12))
    who = turn_order(np.random.default_rng(6), 3, 9)
    X, segments = talk(plda, who, seed=1), windows(len(who))
    two, more = (diarize(plda, X, segments, n_dimensions=n, **TRUE) for n in (2, None))
    assert two.start.tolist() == more.start.tolist()
    assert error(two, segments, who) < 0.1
    with pytest.raises(DuopldaError, match="file f: n_dimensions=13 must lie between 1 and 12"):
        diarize(plda, X, segments, n_dimensions=13)


# -- linking


@pytest.fixture(scope="module", params=["sessions", "recordings"])
def three_files(request):
    """Five people, of whom each file has three, drawn at a level."""
    plda, rng, level = two_levels(), np.random.default_rng(7), request.param
    y = rng.normal(size=(5, 12))
    cast = {"monday": [0, 1, 2], "tuesday": [2, 3, 0], "friday": [4, 2, 1]}
    parts, X, who = [], [], []
    for seed, (name, own) in enumerate(cast.items()):
        local = turn_order(rng, 3, 9)
        parts.append(windows(len(local), name))
        X.append(talk(plda, local, level, seed=seed, y=y[own]))
        who.append(np.array(own)[local])
    return level, plda, np.concatenate(X), joined(*parts), np.concatenate(who)


@pytest.mark.parametrize("apart", [False, True])
def test_the_same_people_are_found_across_files(three_files, apart):
    level, plda, X, segments, who = three_files
    found = diarize(plda, X, segments, segments_are=level, link=True, cannot_link_within=apart, **TRUE)
    assert sorted(set(found.speaker.values.tolist())) == [f"spk{k}" for k in range(1, 6)]
    # as one long file, in which a person must have one name throughout
    long = np.asarray(segments.file) == "tuesday", np.asarray(segments.file) == "friday"
    shift = 1000.0 * (long[0] + 2 * long[1])
    one = Segments(segments.ids, Coded.of(["all"] * len(who)), segments.start + shift, segments.end + shift)
    days = {"monday": 0.0, "tuesday": 1000.0, "friday": 2000.0}
    start = found.start + [days[f] for f in found.file.values.tolist()]
    flat = Turns.of(["all"] * len(found), start, found.duration, found.speaker.values)
    assert error(flat, one, who) < 0.03
    assert people(diarize(plda, X, segments, segments_are=level, **TRUE)) == 9  # without a link


def test_speakers_of_one_file_stay_apart_only_if_asked():
    """One person, whom the first labels split in two."""
    plda = two_levels()
    X = talk(plda, np.zeros(20, int))
    local, file = np.repeat(["f-1", "f-2"], 10), np.zeros(20, int)
    assert len(set(link_speakers(plda, X, local))) == 1
    assert len(set(link_speakers(plda, X, local, file=file))) == 2
    assert len(set(link_speakers(plda, X, local, file=np.arange(20) // 10))) == 1
    options = {"start": local, "refine": None, "link": True}
    assert [people(diarize(plda, X, windows(20), cannot_link_within=apart, **options)) for apart in (False, True)] == [
        1,
        2,
    ]


@pytest.mark.parametrize("level", ["sessions", "recordings"])
def test_links_are_decided_by_the_ratio_of_the_sums(level):
    """Two speakers of n segments each, discounted: linked where the ratio of the whole exceeds the prior odds.

    The direct computation is that of a joint Gaussian of all recordings, of which rho n are left, at their mean.
    """
    rng, linked = np.random.default_rng(9), []
    plda = PLDA.from_parameters(rng.normal(size=4), 1.5 * rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.eye(4))
    plda.scales_ = Scales(3.0, 0.2)  # of trials; partitions have nothing to do with them
    for seed in range(20):
        y = rng.normal(size=(2, 3))[[0, seed % 2]]  # of one person, every other time
        X = talk(plda, np.repeat([0, 1], 6), level, seed, y)
        rows = np.concatenate([np.tile(X[:6].mean(axis=0), (3, 1)), np.tile(X[6:].mean(axis=0), (3, 1))])
        session = np.arange(6) if level == "sessions" else np.repeat([0, 1], 3)
        ratio = joint(plda, rows, np.zeros(6), session) - joint(plda, rows, np.repeat([0, 1], 3), session)
        for prior in (0.001, 0.02, 0.3, 0.9):
            names = link_speakers(plda, X, np.repeat(["a", "b"], 6), discount=0.5, segments_are=level, prior=prior)
            linked.append(len(set(names)) == 1)
            assert linked[-1] == (ratio > np.log((1 - prior) / prior))
    assert 5 < sum(linked) < len(linked) - 5


def joint(plda, rows, speaker, session):
    """ln density of recordings, from the covariance of all of them."""
    n = len(rows)
    same = [(a[:, None] == a).astype(float) for a in (np.asarray(speaker), np.asarray(session), np.arange(n))]
    V, U, W = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_
    S = sum(np.kron(a, b) for a, b in zip(same, (V @ V.T, U @ U.T, np.linalg.inv(W)), strict=True))
    x = (rows - plda.mean_).reshape(-1)
    return -0.5 * (x @ np.linalg.solve(S, x) + np.linalg.slogdet(2 * np.pi * S)[1])


def test_kinds_of_channels_are_linked():
    """Each segment's kind is inferred, and each kind has its mean and noise."""
    rng = np.random.default_rng(8)
    means = np.array([np.zeros(12), np.full(12, 20.0)])
    plda = PLDA.from_parameters(
        means, 3 * np.eye(12), 0.5 * np.eye(12), np.array([np.eye(12), np.eye(12) / 4]), ["a", "b"]
    )
    y = 3 * rng.normal(size=(3, 12))
    who, kind = np.array([0, 1, 0, 2]).repeat(10), np.array([0, 0, 1, 1]).repeat(10)
    X = means[kind] + y[who] + rng.normal(size=(40, 12)) * (1 + kind[:, None])
    local = np.array(["f-1", "f-2", "g-1", "g-2"]).repeat(10)
    for level in ("sessions", "recordings"):
        names = link_speakers(plda, X, local, segments_are=level)
        assert names[0] == names[20]
        assert len(set(names.tolist())) == 3


# -- what is wrong is named


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "kmeans"}, "start='kmeans' must be one of 'ratios', 'vbx', 'pyannote'"),
        ({"refine": "hmm"}, "refine='hmm' must be one of 'vbx', 'gmm', None"),
        ({"segments_are": "files"}, "segments_are='files' must be one of 'sessions', 'recordings'"),
        ({"loop": 1.5}, "loop=1.5 must be a probability"),
        ({"discount": 0.0}, "discount=0.0 must be greater than 0 and at most 1"),
        ({"discount": float("nan")}, "discount=nan must be"),
        ({"prior": 1.0}, "file f: prior=1.0 must be a number between 0 and 1"),
        ({"Fa": -1.0}, "file f: Fa=-1.0 must be a positive number"),
        ({"n_speakers": 2, "max_speakers": 3}, "give either n_speakers, or min_speakers and max_speakers"),
        ({"min_speakers": 3, "max_speakers": 2}, "at least 3 and at most 2 speakers"),
        ({"n_speakers": 0}, "at least 0 and at most 0 speakers"),
        ({"cannot_link_within": True}, "has an effect only with link=True"),
        ({"n_speakers": 9}, "file f: at least 9 speakers are asked for"),
    ],
)
def test_wrong_options_are_named(options, message):
    plda = two_levels()
    with pytest.raises(DuopldaError) as caught:
        diarize(plda, talk(plda, [0, 0, 1, 1]), windows(4), **options)
    assert message in str(caught.value)


def test_wrong_data_are_named():
    plda = two_levels()
    X, segments = talk(plda, np.repeat([0, 1], 4)), windows(8)
    bad = X.copy()
    bad[3, 2] = np.nan
    cases = [
        (bad, segments, "NaN or infinity in 1 of 8 rows: 3"),
        (Recordings.from_arrays(bad, ids=segments.ids), segments, "1 segments have NaN or infinity in them: 'f0003'"),
        (X[:7], segments, "7 embeddings for 8 segments"),
        (X[:, :5], segments, "5"),
        (X[:0], windows(0), "there are no segments"),
        (Recordings.from_arrays(X), segments, "have no ids"),
        (Recordings.from_arrays(X, ids=np.arange(8)), segments, "have no ids, or numbers as ids"),
        (Recordings.from_arrays(X, ids=[f"g{i}" for i in range(8)]), segments, "segments have no embedding: 'f0000'"),
        (
            Recordings.from_arrays(np.tile(X, (2, 1)), ids=np.tile(segments.ids, 2)),
            segments,
            "two embeddings have the same id: 'f0000'",
        ),
    ]
    for rows, given_, message in cases:
        with pytest.raises(DuopldaError) as caught:
            diarize(plda, rows, given_)
        assert message in str(caught.value)
    nested = Segments(segments.ids, segments.file, segments.start, np.append(segments.end[:-1], 9.0))
    nested.end[2] = 6.5
    with pytest.raises(DuopldaError, match="file f: segments lie within others: 'f0003'"):
        diarize(plda, X, nested)
    flat = PLDA.from_parameters(np.zeros(24), np.zeros((24, 1)), None, np.eye(24))
    with pytest.raises(DuopldaError, match="file f: the model has no variance between speakers"):
        diarize(flat, X, segments)
    with pytest.raises(DuopldaError, match="segments_are='files' must be"):
        link_speakers(plda, X, segments.ids, segments_are="files")


def test_missing_ids_are_an_error_or_are_left_out():
    plda = two_levels()
    who = np.repeat([0, 1], 5)
    X, segments = talk(plda, who), windows(10)
    ids = np.append(segments.ids[1:], "strange")
    data = Recordings.from_arrays(np.concatenate([X[1:], X[:1]]), ids=ids)
    with pytest.raises(MissingIds, match="1 segments have no embedding: 'f0000'"):
        diarize(plda, data, segments)
    with pytest.raises(MissingIds, match="1 embeddings have no segment: 'strange'"):
        diarize(plda, data, Segments(*(a[1:] for a in (segments.ids, segments.file, segments.start, segments.end))))
    absent, unlisted = [], []
    left_out = {"absent": absent.extend, "unlisted": unlisted.extend}
    found = diarize(plda, data, segments, start=who, refine=None, **left_out)
    assert (absent, unlisted) == (["f0000"], ["strange"])
    assert (found.start.tolist(), found.end.tolist()) == ([1.0, 5.0], [5.0, 10.0])


def test_turns_of_no_segments():
    assert len(as_turns(windows(0), [])) == 0


# -- how many people speak


def test_the_number_of_speakers_has_a_posterior():
    """Every number that merging leads to is compared with a direct computation, which integrates over the offset."""
    rng = np.random.default_rng(3)
    n, mean, phi = np.array([2.0, 3.0, 1.5]), rng.normal(size=(3, 2)), np.array([4.0, 0.5])

    def ln(speaker):
        same = np.equal.outer(speaker, speaker).astype(float)
        return sum(
            multivariate_normal(np.zeros(3), OFFSET + p * same + np.diag(1 / n)).logpdf(m)
            for p, m in zip(phi, mean.T, strict=True)
        )

    steps = merges(n, mean, phi, prior=0.2)
    for step in steps:
        expected = ln(step.speaker) - ln(np.arange(3)) - (3 - len(set(step.speaker))) * np.log(0.2)
        assert step.log_posterior == pytest.approx(expected)
    pairs = [ln(np.array(labels)) for labels in ([0, 0, 2], [0, 1, 0], [0, 1, 1])]
    assert steps[1].log_posterior == pytest.approx(max(pairs) - ln(np.arange(3)) - np.log(0.2))
    numbers = number_posterior(steps, 1, np.inf)
    assert list(numbers) == [1, 2, 3]
    assert sum(numbers.values()) == pytest.approx(1)


def test_a_file_that_collapses_to_one_speaker_is_told():
    plda = two_levels()
    X = talk(plda, np.zeros(24, int))
    with pytest.warns(UserWarning, match="file f: 6 first speakers became one; if there are more, give their number"):
        diarize(plda, X, windows(24), start=np.arange(24) // 4, Fb=500.0)


@needs_conversations
def test_conversations_have_their_speakers():
    """A model of half of the training data; two of the eight conversations, whole, without the number of speakers."""
    with np.load(CONVERSATIONS / "windows.npz") as data:
        W = dict(data)
    with np.load(CONVERSATIONS.parents[1] / "so762_campp_train.npz") as data:
        X, speaker, session = (data[name] for name in ("embeddings", "speaker", "session_id"))
    chain = Backend(plda=PLDA(shrinkage=0.3)).fit(X[::2], speaker[::2], session=session[::2])
    truth = read_rttm(CONVERSATIONS / "reference.rttm")
    rows = np.flatnonzero(np.isin(W["recording"], ["pub1_so4", "pub4_cv2"]))
    segments = Segments(W["ids"][rows], Coded.of(W["recording"][rows]), W["start"][rows], W["end"][rows])
    reference = truth[np.isin(truth.file.values, ["pub1_so4", "pub4_cv2"])]
    found = diarize(chain, W["embeddings"][rows], segments)
    assert sorted(set(found.speaker.values)) == sorted(
        [*(f"pub1_so4-{k}" for k in range(1, 5)), "pub4_cv2-1", "pub4_cv2-2"]
    )
    assert der(found, reference, collar=0.25).rate < 0.025


# -- embeddings of other windows


def talk_of_two(n, seed=0, d=12):
    """A model, and n windows of four steps of noise each; the voice changes every 40 windows."""
    rng = np.random.default_rng(seed)
    plda = PLDA.from_parameters(np.full(d, 3.0), 2 * np.eye(d), None, np.eye(d))
    steps = rng.normal(size=(n + 3, d))
    noise = sum(steps[k : n + k] for k in range(4)) / 2
    begin = 0.5 * np.arange(n)
    segments = Segments(np.arange(n).astype(str), Coded.of(["f"] * n), begin, begin + 2.0)
    return plda, 3 + 2 * rng.normal(size=(2, d))[np.arange(n) // 40 % 2] + noise, segments


@pytest.mark.parametrize("n", [50, 400])
def test_embeddings_in_another_order_are_noticed(n):
    plda, X, segments = talk_of_two(n)
    diarize(plda, X, segments)  # warnings are errors
    shuffled = X[np.random.default_rng(1).permutation(n)]
    with pytest.warns(UserWarning, match=r"file f: neighbouring windows share 75 % of their time, but .* hardly alike"):
        diarize(plda, shuffled, segments)


def test_few_windows_allow_no_statement_on_their_order():
    plda, X, segments = talk_of_two(12)
    diarize(plda, X[np.random.default_rng(1).permutation(12)], segments)
    apart = Segments(segments.ids, segments.file, 4 * segments.start, 4 * segments.start + 2.0)
    diarize(plda, X, apart)


# -- known voices


@pytest.mark.parametrize("N_heard", [1, 9])
@pytest.mark.parametrize("kinds", [1, 2])
def test_names_are_those_of_dense_gaussians(kinds, N_heard):
    """Sets of N sessions count as m: the ratio of two sets is that of their means, with the noise of m sessions."""
    rng = np.random.default_rng(kinds)
    d, N_enrolled, rho = 4, 5, 0.4
    V, mu = rng.normal(size=(d, 3)), 5 + rng.normal(size=(kinds, d))
    W = np.array([np.diag(1.0 + rng.random(d)) for _ in range(kinds)])
    more = {"channels": np.arange(2), "channel_priors": [0.5, 0.5]} if kinds == 2 else {}
    chain = Backend.from_plda(
        PLDA.from_parameters(mu if kinds == 2 else mu[0], V, None, W if kinds == 2 else W[0], **more)
    )
    kind = lambda n: np.zeros(n, int) if kinds == 2 else None  # noqa: E731
    of_enrolled, of_heard = 5 + rng.normal(size=(2 * N_enrolled, d)), 5 + rng.normal(size=(2 * N_heard, d))
    known = chain.enroll(of_enrolled, ["ann", "bob"] * N_enrolled, None, kind(2 * N_enrolled))
    heard = chain.enroll(of_heard, ["f-1", "f-2"] * N_heard, None, kind(2 * N_heard))
    names = known_voices(chain, heard, known, None, discount=rho, prior=0.6)
    counts = [n / (1 + (n - 1) * 0.2) for n in (N_enrolled, max(rho * N_heard, 1))]  # who is heard counts 1 or more
    noise = [np.linalg.inv(W[0]) / m for m in counts]
    for s in range(2):
        ratio = []
        for k in range(2):
            pair = np.concatenate([of_enrolled[k::2].mean(axis=0), of_heard[s::2].mean(axis=0)]) - np.tile(mu[0], 2)
            apart = np.kron(np.eye(2), V @ V.T) + np.block([[noise[0], 0 * noise[0]], [0 * noise[0], noise[1]]])
            together = apart + np.kron([[0, 1], [1, 0]], V @ V.T)
            ratio.append(multivariate_normal(cov=together).logpdf(pair) - multivariate_normal(cov=apart).logpdf(pair))
        posterior = 0.3 * np.exp(ratio) / (0.4 + 0.3 * np.exp(ratio).sum())
        assert names.posterior[s] == pytest.approx(posterior.max())
        assert names.voice[s] == ["ann", "bob"][posterior.argmax()]


def test_the_room_is_not_taken_for_a_voice():
    """All speakers of a file are shifted alike: the enrolled are found, and the others are nobody."""
    plda, rng = two_levels(session=1.0), np.random.default_rng(5)
    chain, y = Backend.from_plda(plda), rng.normal(size=(6, 12))
    enrolled = talk(plda, np.repeat(np.arange(4), 6), y=y)
    known = chain.enroll(enrolled, np.repeat([f"v{k}" for k in range(4)], 6))
    who = np.tile(np.arange(6), 4).repeat(8)
    X = talk(plda, who, y=y, seed=3) + 12 * rng.normal(size=len(plda.mean_)) / len(plda.mean_) ** 0.5
    found = diarize(chain, X, windows(len(who)), known=known, **TRUE)
    truth = as_turns(windows(len(who)), [f"v{k}" if k < 4 else f"f-{k + 1}" for k in who])
    assert found.speaker.values.tolist() == truth.speaker.values.tolist()
    assert (found.voice_posterior[np.char.startswith(found.speaker.values.astype(str), "v")] > 0.5).all()
    assert (found.voice_posterior[np.char.startswith(found.speaker.values.astype(str), "f")] < 0.5).all()


def test_nobody_gets_the_name_of_a_voice_by_chance():
    plda = two_levels()
    known = Backend.from_plda(plda).enroll(talk(plda, np.zeros(6, int)), ["f-1"] * 6)
    X = talk(plda, np.repeat([0, 1], 12), seed=9)
    found = diarize(plda, X, windows(24), known=known, **TRUE)
    assert {*found.speaker.values} == {"f-1-", "f-2"}
    nobody = diarize(plda, X, windows(24), known=known.select([]), **TRUE)
    assert {*nobody.speaker.values} == {"f-1", "f-2"}
    with pytest.raises(DuopldaError, match="known_prior=1"):
        diarize(plda, X, windows(24), known=known, known_prior=1, **TRUE)


# -- VBx's own example


@needs_shared
def test_ratios_before_the_hmm_on_one_real_file():
    """The discount is what the windows say. The bounds are loose: this is no claim about other files."""
    chain = Backend.from_foreign(read_model(VBX / "plda", VBX / "transform.h5"))
    ids, X = read_embeddings(VBX / "ES2005a.ark").load()
    segments, truth = read_segments(VBX / "ES2005a.seg"), read_rttm(VBX / "ES2005a.reference.rttm")
    assert segments.ids.tolist() == ids.tolist()
    assert new_share(segments.start, segments.end) == pytest.approx(0.24 / 1.44, abs=0.03)
    rates = {
        name: der(diarize(chain, X, segments, **options), truth, collar=0.25, skip_overlap=True).rate
        for name, options in {
            "default": {},
            "vbx": {"start": "vbx"},
            "four": {"start": "vbx", "n_speakers": 4},
            "told": {"n_speakers": 4},
        }.items()
    }
    assert 0.0705 <= rates["vbx"] < 0.07065
    assert rates["default"] < 0.065
    assert rates["four"] < rates["vbx"]
    assert rates["told"] < rates["default"]
    levels = [diarize(chain, X, segments, segments_are=a).start.tolist() for a in ("sessions", "recordings")]
    assert levels[0] == levels[1]  # the pair has no sessions


# -- local speakers of chunks


def test_local_speakers_of_chunks():
    """Two people who overlap for two seconds, in chunks of 10 s every 5 s whose local speakers are in any order."""
    plda, rng = two_levels(session=0.3), np.random.default_rng(2)
    y = rng.normal(size=(2, 12))
    frames = np.arange(40) * 0.25 + 0.125
    X, A = np.full((5, 3, 24), np.nan), np.zeros((5, 40, 3))
    for c in range(5):
        for s, k in enumerate(rng.permutation(2)):
            t = 5.0 * c + frames
            A[c, :, s] = t < 16 if k == 0 else t > 14
            if A[c, :, s].any():
                X[c, s] = talk(plda, np.array([k]), y=y, seed=10 * c + s)[0]
    turns = diarize_chunks(plda, X, A, step=5.0, duration=10.0, file="f", start="vbx", **TRUE)
    assert turns.start.tolist() == [0.0, 14.0]
    assert turns.end.tolist() == [16.0, 30.0]
    assert turns.speaker.values.tolist() == ["f-1", "f-2"]
    with pytest.raises(DuopldaError, match="no local speaker is active"):
        diarize_chunks(plda, X, 0 * A, step=5.0, duration=10.0)
    with pytest.raises(DuopldaError, match="give"):
        diarize_chunks(plda, X, A[:, :, :1], step=5.0, duration=10.0)
