"""Sessions of one occasion: the likelihood of each of m counts to the power of 1 / (1 + (m - 1) kappa).

The oracle multiplies dense likelihoods of sessions, each to its power, and integrates over the speaker.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from cli_cases import done, duoplda, make_folder, scoring, training
from duoplda import PLDA, Backend, DuopldaError, Recordings, Statistics
from duoplda.datasets import make_recordings
from duoplda.io import LabelColumns, read_labels, read_scores, write_labels, write_map
from duoplda.metrics import cllr
from duoplda.model.parameters import Model
from duoplda.trials.blocks import Scorer
from duoplda.trials.ranking import FEWEST
from duoplda.trials.sides import enroll
from test_llr import MODELS, each_pair, share, two_sides

near = {"rtol": 1e-10, "atol": 1e-10}
KAPPA = 0.3


def occasions_of(data, rng, n=2):
    """Each session of a speaker is of one of n occasions, whose names occur with all speakers."""
    names = np.unique(data.session)
    return np.array([f"day {d}" for d in rng.integers(0, n, len(names))])[np.searchsorted(names, data.session)]


def enrolled(p, data, occasion=None, named=True, kappa=KAPPA):
    model = Model(p.mu, p.V, p.U, p.W, np.arange(len(p.mu)))
    return enroll(model, data.X, data.speaker, data.session if named else None, data.kind, occasion, kappa)


def weights(data, occasion, kappa=KAPPA):
    """The power of each recording's session."""
    days = {}
    for person, session, day in zip(data.speaker, data.session, occasion, strict=True):
        days.setdefault((person, day), set()).add(session)
    m = np.array([len(days[key]) for key in zip(data.speaker, occasion, strict=True)])
    return 1 / (1 + (m - 1) * kappa)


def ln_evidence(p, parts):
    """ln of the integral over y of N(y; 0, I) and the likelihoods of sets of one session (X, kind), to powers."""
    ny = p.V.shape[1]
    Lambda = np.eye(ny)
    gamma = np.zeros(ny)
    constant = 0.0
    for X, kind, power in parts:
        one = np.zeros(len(X), int)
        alone = oracle.Params(p.mu, 0 * p.V, p.U, p.W)
        mean, covariance = oracle.mean_and_covariance(alone, one, one, kind)
        A = np.tile(p.V, (len(X), 1))
        inverse = np.linalg.inv(covariance)
        e = X.ravel() - mean
        Lambda += power * A.T @ inverse @ A
        gamma += power * A.T @ inverse @ e
        constant += power * oracle.ln_gaussian(e, 0 * e, covariance)
    return constant + (gamma @ np.linalg.solve(Lambda, gamma) - np.linalg.slogdet(Lambda)[1]) / 2


def sessions_of(data, rho, person):
    """{session: (X, kind, power)} of one side."""
    out = {}
    for name in np.unique(data.session[data.speaker == person]).tolist():
        rows = np.flatnonzero((data.speaker == person) & (data.session == name))
        out[name] = (data.X[rows], data.kind[rows], rho[rows[0]])
    return out


def together(a, b):
    """The sessions of both sides; two parts of one session meet as far as both count."""
    parts = [part for side, other in ((a, b), (b, a)) for name, part in side.items() if name not in other]
    for name in a.keys() & b.keys():
        (Xa, ka, wa), (Xb, kb, wb) = a[name], b[name]
        w = min(wa, wb)
        parts += [(np.concatenate([Xa, Xb]), np.concatenate([ka, kb]), w), (Xa, ka, wa - w), (Xb, kb, wb - w)]
    return parts


def expected_ratios(p, a, b, rho_a, rho_b):
    out = []
    for i in np.unique(a.speaker):
        for j in np.unique(b.speaker):
            first, second = sessions_of(a, rho_a, i), sessions_of(b, rho_b, j)
            alone = ln_evidence(p, first.values()) + ln_evidence(p, second.values())
            out.append(ln_evidence(p, together(first, second)) - alone)
    return np.reshape(out, (len(np.unique(a.speaker)), -1))


def assert_ratios(A, B, expected):
    np.testing.assert_allclose(Scorer(A).columns(B), expected, **near)
    np.testing.assert_allclose(Scorer(B).columns(A), expected.T, **near)
    np.testing.assert_allclose(Scorer(A).pairs(B, each_pair(A, B)), expected.ravel(), **near)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shared", [False, True])
def test_ratios_are_those_of_likelihoods_to_powers(name, shared):
    p, a, b = two_sides(name)
    rng = np.random.default_rng(5)
    if shared:
        b = share(rng, a, b)
    both = oracle.Data(*(np.concatenate([x, y]) for x, y in zip(vars(a).values(), vars(b).values(), strict=True)))
    days = occasions_of(both, rng)  # a session that both sides share is of one occasion
    of_a, of_b = days[: len(a)], days[len(a) :]
    expected = expected_ratios(p, a, b, weights(a, of_a), weights(b, of_b))
    assert_ratios(enrolled(p, a, of_a), enrolled(p, b, of_b), expected)


def test_a_side_is_one_gaussian_with_wider_sessions():
    """Without shared sessions, a power rho of a likelihood is a within-session covariance divided by rho."""
    p, a, b = two_sides("kinds")
    a, b = (data.rows(np.flatnonzero(data.speaker == np.unique(data.speaker)[3])) for data in (a, b))
    days = np.full(len(a), "monday")
    rho = float(weights(a, days)[0])
    assert len(np.unique(a.session)) > 1
    wide = replace(p, U=p.U / rho**0.5, W=p.W * rho)
    X = np.concatenate([a.X, b.X])

    def ln(same):
        means, blocks = [], []
        for q, data in ((wide, a), (p, b)):
            mean, covariance = oracle.mean_and_covariance(q, data.speaker, data.session, data.kind)
            means.append(mean)
            blocks.append(covariance)
        n, m = map(len, blocks)
        C = np.zeros((n + m, n + m))
        C[:n, :n], C[n:, n:] = blocks
        if same:
            C[:n, n:] = np.tile(p.V @ p.V.T, (len(a), len(b)))
            C[n:, :n] = C[:n, n:].T
        return oracle.ln_gaussian(X.ravel(), np.concatenate(means), C)

    assert_ratios(enrolled(p, a, days), enrolled(p, b), np.array([[ln(True) - ln(False)]]))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_adding_sides_is_enrolling_at_once(seed):
    p, a, _ = two_sides("kinds", seed)
    rng = np.random.default_rng(seed)
    days = occasions_of(a, rng)
    order = rng.permutation(len(a))
    cuts = np.sort(rng.integers(1, len(a), 2))
    parts = [rows for rows in np.split(order, cuts) if len(rows)]
    sides = [enrolled(p, a.rows(rows), days[rows]) for rows in parts]
    whole = sides[0]
    for part in sides[1:]:
        whole.add(part)
    whole = whole.select(np.argsort(whole.ids))
    once = enrolled(p, a, days)
    tests = enrolled(p, a.rows(np.arange(3)), named=False)
    np.testing.assert_allclose(Scorer(whole).columns(tests), Scorer(once).columns(tests), **near)
    np.testing.assert_allclose(whole.weighed.counts.sum(axis=1), once.weighed.counts.sum(axis=1), **near)
    some = rng.permutation(len(once))[:3]
    np.testing.assert_allclose(
        Scorer(whole.select(some)).columns(once), Scorer(once).columns(once)[some], **near
    )  # selected sides know the occasions of their sessions


def test_a_copy_has_occasions_of_its_own():
    p, a, b = two_sides("low rank")
    days = occasions_of(a, np.random.default_rng(1))
    for first in (None, days):
        sides = enrolled(p, a, first)
        before = Scorer(sides).columns(enrolled(p, b))
        copy(sides).add(enrolled(p, b, occasions_of(b, np.random.default_rng(2))))
        assert np.array_equal(Scorer(sides).columns(enrolled(p, b)), before)
        assert len(sides.occasions) == (0 if first is None else len({*zip(a.speaker, days, strict=True)}))


def test_one_session_of_each_occasion_changes_nothing_bit_for_bit():
    p, a, b = two_sides("kinds")
    plain = Scorer(enrolled(p, a)).columns(enrolled(p, b))
    alone = Scorer(enrolled(p, a, a.session)).columns(enrolled(p, b, b.session))
    nothing_in_common = Scorer(enrolled(p, a, occasions_of(a, np.random.default_rng(0)), kappa=0.0))
    assert np.array_equal(plain, alone)
    assert np.array_equal(plain, nothing_in_common.columns(enrolled(p, b)))


def test_sides_without_names_of_sessions_have_occasions_too():
    p, a, b = two_sides("low rank", recordings=(1, 1))
    days = occasions_of(a, np.random.default_rng(1))
    expected = expected_ratios(p, a, b, weights(a, days), np.ones(len(b)))
    assert_ratios(enrolled(p, a, days, named=False), enrolled(p, b, named=False), expected)


def test_the_highest_scoring_of_many_sides():
    """Single precision finds them where sides are many; their ratios are those of the matrix."""
    rng = np.random.default_rng(4)
    model = Model(np.zeros((1, 4)), rng.normal(size=(4, 4)), np.zeros((4, 0)), np.eye(4)[None], np.arange(1))
    n = 3 * FEWEST
    day = np.repeat(np.arange(n // 3), 3)
    sides = enroll(model, rng.normal(size=(n, 4)), day, None, None, day % 7, KAPPA)
    tests = enroll(model, rng.normal(size=(6, 4)), [0, 0, 1, 1, 2, 3], None, None, ["mo"] * 6, KAPPA)
    rows, ratios = Scorer(sides).top(tests, 3)
    matrix = Scorer(sides).columns(tests)
    np.testing.assert_array_equal(rows, np.argsort(-matrix, axis=0)[:3].T)
    np.testing.assert_allclose(ratios, -np.sort(-matrix, axis=0)[:3].T, **near)


def test_ragged_sides_and_guesses():
    """Where each side has counts of its own, all ways to compute ratios agree, and guesses are near."""
    p, a, b = two_sides("full rank", n=(90, 80), recordings=(1, 1))
    rng = np.random.default_rng(3)
    A, B = enrolled(p, a, occasions_of(a, rng, 3)), enrolled(p, b, occasions_of(b, rng, 3))
    exact = Scorer(A).columns(B)
    np.testing.assert_allclose(Scorer(A).pairs(B, each_pair(A, B)).reshape(exact.shape), exact, **near)
    np.testing.assert_allclose(Scorer(A).guesses(B), exact, rtol=1e-2, atol=1.0)


def test_a_file_has_the_occasions(tmp_path):
    X, speaker, session, _ = make_recordings(20, 4, 2, seed=0)
    plda = PLDA().fit(X, speaker, session=session)
    plda.occasion_correlation_ = 0.25
    day = np.array([int(name.split("-")[-1]) // 2 for name in session.tolist()])
    sides = plda.enroll(X, speaker, session, occasion=day)
    sides.save(tmp_path / "voices.safetensors")
    again = plda.load_sides(tmp_path / "voices.safetensors")
    assert np.array_equal(plda.llr(again, X[:9]), plda.llr(sides, X[:9]))
    more = X[:3] + 1, speaker[:3], ["new"] * 3
    sides.add(plda.enroll(*more, occasion=[0] * 3))
    again.add(plda.enroll(*more, occasion=[0] * 3))
    assert np.array_equal(plda.llr(again, X[:9]), plda.llr(sides, X[:9]))


def test_a_session_lies_in_one_occasion():
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    with pytest.raises(DuopldaError, match=r"session s is of 2 occasions \('mo', 'tu'; rows 0, 1\)"):
        plda.enroll([[1.0], [2.0]], ["a", "a"], ["s", "s"], occasion=["mo", "tu"])
    with pytest.raises(DuopldaError, match="session s is of 2 occasions"):
        Recordings.from_arrays([[1.0], [2.0]], ["a", "a"], ["s", "s"], occasion=["mo", "tu"]).labels()
    sides = plda.enroll([[1.0]], ["a"], ["s"], occasion=["mo"])
    ratio = plda.llr(sides, [[1.0]])
    with pytest.raises(DuopldaError, match="session s is of 2 occasions"):
        sides.add(plda.enroll([[2.0]], ["a"], ["s"], occasion=["tu"]))
    with pytest.raises(DuopldaError, match="session s is with and without an occasion"):
        sides.add(plda.enroll([[2.0]], ["a"], ["s"]))
    assert np.array_equal(plda.llr(sides, [[1.0]]), ratio)  # what was refused has changed nothing


# -- what sessions of one occasion have in common is learned by trials across occasions


def drawn(n_speakers, share, seed, days=3, sessions=6, d=6, shift=0.0):
    """One recording of each session; a share of what differs from session to session is that of its occasion."""
    rng = np.random.default_rng(seed)
    speaker = np.repeat(np.arange(n_speakers), days * sessions)
    day = np.repeat(np.arange(n_speakers * days), sessions)
    common = rng.normal(size=(day.max() + 1, d))[day]
    noise = share**0.5 * common + (1 - share) ** 0.5 * rng.normal(size=(len(day), d))
    return rng.normal(size=(n_speakers, d))[speaker] + 1.5 * noise + shift, speaker, day


@pytest.fixture(scope="module")
def source():
    """A model that knows nothing of occasions."""
    X, speaker, _ = drawn(60, 0.0, 0)
    return PLDA(shrinkage="auto", random_state=0).fit(X, speaker)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.06), (0.4, 0.2, 0.5)])
def test_training_learns_the_correlation_of_occasions(share, low, high):
    X, speaker, day = drawn(60, share, 1)
    plain = PLDA(shrinkage="auto", random_state=0).fit(X, speaker)
    plda = PLDA(shrinkage="auto", random_state=0).fit(X, speaker, occasion=day)
    assert low <= plda.occasion_correlation_ <= high
    assert plain.occasion_correlation_ is None
    # All else is as it is without occasions, bit for bit.
    assert plda.calibration_.get_state() == plain.calibration_.get_state()
    assert np.array_equal(plda.speaker_loadings_, plain.speaker_loadings_)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.1), (0.4, 0.2, 0.5)])
def test_adaptation_learns_the_correlation_of_occasions(source, share, low, high):
    X, speaker, day = drawn(20, share, 2, shift=1.0)
    plain = source.adapt(X, speaker)
    adapted = source.adapt(X, speaker, occasion=day)
    assert low <= adapted.occasion_correlation_ <= high
    assert plain.occasion_correlation_ is None
    assert adapted.adapted_["chosen"] == plain.adapted_["chosen"]
    assert adapted.adapted_["calibration"] == plain.adapted_["calibration"]


def test_it_makes_large_sets_of_one_occasion_less_sure(source):
    X, speaker, day = drawn(40, 0.4, 3)
    first = day % 3 == 0
    tests = source.enroll(X[~first], np.arange((~first).sum()))
    target = np.unique(speaker)[:, None] == speaker[~first]
    raw = [
        source.llr(source.enroll(X[first], speaker[first], occasion=occasion), tests, calibrated=False)
        for occasion in (None, day[first])
    ]
    without, with_occasions = (cllr(ratios.ravel(), target.ravel()) for ratios in raw)
    assert with_occasions < 0.95 * without


def test_too_few_speakers_of_two_occasions_tell_nothing():
    X, speaker, day = drawn(30, 0.4, 1)
    day = np.where(speaker < 4, day, speaker + 1000)
    plda = PLDA(shrinkage="auto", random_state=0).fit(X, speaker, occasion=day)
    assert plda.occasion_correlation_ is None


def test_parts_of_the_data_keep_the_occasions():
    X, speaker, day = drawn(20, 0.4, 1)
    once = Statistics.of(Recordings.from_arrays(X, speaker, np.arange(len(X)), occasion=day), n_folds=4)
    order = np.random.default_rng(0).permutation(len(X))
    chunks = Recordings.from_chunks(
        lambda: np.array_split(X[order], 5), speaker[order], order, occasion=day[order].astype(str)
    )
    again = Statistics.of(chunks, n_folds=4)
    for a, b in zip(once.folds, again.folds, strict=True):
        assert np.array_equal(a.sample.occasion, b.sample.occasion)
        assert np.array_equal(a.sample.X, b.sample.X)


# -- clusters


def test_clusters_of_sides_have_the_evidence_of_their_occasions():
    p, a, _ = two_sides("low rank", n=(8, 8))
    days = occasions_of(a, np.random.default_rng(2))
    plda = PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0])
    plda.occasion_correlation_ = KAPPA
    half = np.array(["first", "second"])[(np.unique(a.session, return_inverse=True)[1] % 2)]
    ids = np.char.add(a.speaker, half)
    split = oracle.Data(a.X, ids, a.session, a.kind)
    rho = weights(split, days)
    sides = plda.enroll(a.X, ids, a.session, occasion=days)
    clusters = plda.cluster(sides, prior=0.2)
    joined = [c for c in range(len(clusters)) if (clusters.labels == c).sum() > 1]
    assert joined
    for c in joined:
        parts = [sessions_of(split, rho, name) for name in clusters.ids[clusters.labels == c].tolist()]
        together = ln_evidence(p, [part for side in parts for part in side.values()])
        np.testing.assert_allclose(
            clusters.support[c], together - sum(ln_evidence(p, s.values()) for s in parts), **near
        )
        assert clusters.sessions[c] == sum(map(len, parts))
    alone = plda.cluster(plda.enroll(a.X, ids, a.session, occasion=a.session), prior=0.2)
    plain = plda.cluster(plda.enroll(a.X, ids, a.session), prior=0.2)
    assert alone.log_posterior == plain.log_posterior


# -- files and the command line


def test_tables_and_lists_name_occasions(tmp_path):
    ids = np.array(["a", "b", "c"])
    labels = LabelColumns(ids, ids, np.array(["s", "t", "u"]), occasion=np.array(["mo", "mo", "tu"]))
    write_labels(tmp_path / "table.csv", labels)
    assert read_labels(tmp_path / "table.csv").occasion.tolist() == ["mo", "mo", "tu"]
    assert read_labels(tmp_path / "table.csv")[[2, 0]].occasion.tolist() == ["tu", "mo"]
    (tmp_path / "other.csv").write_text("id,speaker,session,sitting_id,when\na,ann,s,1,x\nb,bob,t,2,y\n")
    assert read_labels(tmp_path / "other.csv").occasion.tolist() == ["1", "2"]
    named = read_labels(tmp_path / "other.csv", columns={"occasion": "when"})
    assert named.occasion.tolist() == ["x", "y"]
    write_map(tmp_path / "utt2spk", ids, ids)
    write_map(tmp_path / "utt2occasion", ids, ["1", "1", "2"])
    lists = read_labels(tmp_path / "utt2spk", occasions=tmp_path / "utt2occasion")
    assert lists.occasion.tolist() == ["1", "1", "2"]
    assert read_labels(tmp_path / "utt2spk").occasion is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("occasions")
    make_folder(at)
    sessions = dict(line.split() for line in (at / "utt2sess").read_text().splitlines())
    write_map(at / "utt2occasion", [*sessions], [f"day{int(name[-1]) // 3}" for name in sessions.values()])
    return at


def test_commands_take_occasions(tmp_path, folder):
    sessions = ["--sessions", folder / "utt2sess"]
    days = ["--occasions", folder / "utt2occasion"]
    done(*training(folder), *sessions, *days, "--lda", "6", "--out", tmp_path / "model")
    kappa = Backend.load(tmp_path / "model").plda_.occasion_correlation_
    assert kappa is not None
    told = done("info", tmp_path / "model").output
    assert f"sessions of one occasion: a correlation of {kappa:g}, so that 12 of them count as" in told
    model = ["--model", folder / "model.safetensors", "--embeddings", folder / "x.npz"]
    enrolment = ["--enroll", folder / "enroll", *sessions]
    done("enroll", *model, *enrolment, *days, "--out", tmp_path / "voices")
    done(*scoring(folder), *enrolment, *days, "--trials", folder / "trials", "--out", tmp_path / "a.tsv")
    voices = ["--enrolled", tmp_path / "voices", *sessions]
    done(*scoring(folder), *voices, "--trials", folder / "trials", "--out", tmp_path / "b.tsv")
    done(*scoring(folder), *enrolment, "--trials", folder / "trials", "--out", tmp_path / "c.tsv")
    a, b, c = (read_scores(tmp_path / name).score for name in ("a.tsv", "b.tsv", "c.tsv"))
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert np.abs(a - c).max() > 0.01
    done("adapt", *model, "--speakers", folder / "utt2spk", *sessions, *days, "--out", tmp_path / "adapted")
    assert Backend.load(tmp_path / "adapted").plda_.occasion_correlation_ is not None
    refused = duoplda(*scoring(folder), "--enrolled", tmp_path / "voices", *days, "--top", "1")
    assert refused.exit_code == 2
    assert "--occasions" in refused.output
    refused = duoplda("adapt", *model, *sessions, *days, "--out", tmp_path / "none")
    assert refused.exit_code == 2
