"""The distance between what is scored and what a chain was trained on, and the warning where it is too large."""

import itertools
import json
import pickle
import re
import warnings
from copy import copy
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from cli_cases import done, duoplda, lines, make_folder, scoring
from duoplda import PLDA, Backend, DomainWarning, DuopldaError, Recordings, enroll_recordings, score
from duoplda.datasets import make_recordings
from duoplda.diarization import Segments, diarize
from duoplda.estimators import domain
from duoplda.estimators.domain import Seen
from duoplda.estimators.preprocessing import Center
from duoplda.io import Coded, read_container, write_container, write_embeddings, write_map
from duoplda.trials.scatter import number_by_scatter
from duoplda.trials.sides import Sides
from test_scoring import Parts

SHARED = Path(__file__).parents[2] / "shared" / "data"
SIZES = {"n_dimensions": 20, "n_speaker_factors": 8, "n_session_factors": 6}
FAR = 1e3  # the mean of the data: nothing may rest on its being near 0
TRAIN = make_recordings(80, (1, 5), (1, 4), seed=0, **SIZES)
TEST = make_recordings(30, (1, 5), (1, 4), seed=1, model=TRAIN.model)
X, N = TEST.X + FAR, len(TEST.X)
CHANNEL = np.array(["mic", "tel"])[np.arange(len(TRAIN.X)) % 2]
KINDS = np.array(["mic", "tel", "other"])[np.arange(N) % 3]  # one of them is not known to the model
IDS = np.array([f"r{i:03}" for i in range(N)])
QUICK = PLDA(6, 4, tol=1e-4)
CHAINS = {
    "whitening": {},
    "LDA": {"lda": 9},
    "no lengths": {"length_norm": False},
    "by channel": {"center_by_channel": True},
    "LDA alone": {"lda": 9, "whiten": False},
    "VBx": {"lda": 9, "whiten": False, "length_norm": "twice"},
    "a length before whitening": {"length_norm": "twice"},
    "PLDA": {"whiten": False, "length_norm": False},
    "PLDA of kinds": {"whiten": False, "length_norm": False},
}


@pytest.fixture(scope="module")
def chains():
    """Trained on what `TEST` is drawn from too; the kinds of channels lie apart where the chain takes them."""
    found = {}
    for name, options in CHAINS.items():
        kinds = CHANNEL if name in ("by channel", "PLDA of kinds") else None
        shift = 0 if kinds is None else 0.3 * (CHANNEL == "tel")[:, None]
        given = TRAIN.X + FAR + shift, TRAIN.speaker, TRAIN.session, kinds
        found[name] = Backend(**options, plda=QUICK).fit(*given)
    found["from a PLDA"] = Backend.from_plda(clone(QUICK).fit(TRAIN.X + FAR, TRAIN.speaker, TRAIN.session))
    return found


@pytest.fixture
def chain(chains):
    """A copy, which has not warned of anything yet."""
    return copy(chains["whitening"])


def direct(chain, X, channel=None):
    """D recording by recording, through the very steps of the chain; and the dimensions."""
    rows, names = X, list(chain.steps_)
    if "whiten" in names and "length_norm" not in names[: names.index("whiten")]:
        for name in names[: names.index("whiten") + 1]:
            step = chain.steps_[name]
            rows = step.transform(rows, channel) if isinstance(step, Center) else step.transform(rows)
        mean = sum(rows) / len(rows)
        return float(sum(mean**2)), rows.shape[1]
    p, rows = chain.plda_, chain.transform(X, channel)
    W, priors = np.reshape(p.noise_precision_, (-1, p.n_features_in_, p.n_features_in_)), p.channel_priors_
    T = p.speaker_loadings_ @ p.speaker_loadings_.T + p.session_loadings_ @ p.session_loadings_.T
    T = T + sum(prior * np.linalg.inv(own) for prior, own in zip(priors, W, strict=True))
    T = T + np.cov(p.channel_means_.T, aweights=priors, bias=True)
    mu = sum(prior * mean for prior, mean in zip(priors, p.channel_means_, strict=True))
    mean = sum(rows) / len(rows) - mu
    return float(mean @ np.linalg.inv(T) @ mean), rows.shape[1]


def usual(chain, n_speakers, n_sessions, n_recordings):
    """The limit, from covariances that are set up one by one, and draws in the place of the gamma distribution."""
    p = chain.plda_
    W, priors = np.reshape(p.noise_precision_, (-1, p.n_features_in_, p.n_features_in_)), p.channel_priors_
    B, S = p.speaker_loadings_ @ p.speaker_loadings_.T, p.session_loadings_ @ p.session_loadings_.T
    N = sum(prior * np.linalg.inv(own) for prior, own in zip(priors, W, strict=True))
    T = B + S + N + np.cov(p.channel_means_.T, aweights=priors, bias=True)
    M = chain.counts_.get("speakers", np.inf)
    # The mean of the training data scatters, too, and new speakers lie farther off than those of the training.
    B = B * (1 + n_speakers / M) / (1 - np.trace(np.linalg.solve(T, B)) / M)
    C = np.cov(p.channel_means_.T, aweights=priors, bias=True)  # all recordings may be of one kind
    A = np.linalg.solve(T, B / n_speakers + S / n_sessions + N / n_recordings + C)
    scatter = np.linalg.eigvals(A).real.clip(0)
    draws = np.random.default_rng(0).normal(0.06**0.5, np.sqrt(scatter), (20000, len(A)))  # about a mean at .06 d
    return np.quantile((draws**2).sum(axis=1), 0.99)


def silent(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args, **options)


def warned(function, *args, **options):
    """Runs a function that must warn exactly once, and returns the message."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **options)
    (one,) = caught
    assert one.category is DomainWarning
    assert one.filename == __file__
    return str(one.message)


# -- the distance ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CHAINS, "from a PLDA"])
def test_it_is_the_distance_of_the_mean(chains, name, library):
    chain = chains[name]
    channel = KINDS if chain.center_by_channel else None
    for shift in (0.0, 0.7):
        D, d = direct(chain, X + shift, channel)
        sides = chain.enroll(library.put(X + shift), TEST.speaker, TEST.session, channel)
        found = domain.measure(chain, sides.seen, len(sides))
        np.testing.assert_allclose(found.distance, D, rtol=1e-10)
        assert found[2:] == (d, N, 30)
        # With kinds, one direction in which they differ outweighs the others: a gamma distribution is less skewed.
        np.testing.assert_allclose(found.limit, usual(chain, 30, N, N), rtol=0.15 if "kinds" in name else 0.03)
        assert found.within is (shift == 0)
        whole, ids = domain.look(chain, Recordings.from_arrays(X + shift, ids=IDS))
        assert ids.tolist() == IDS.tolist()
        if channel is None:
            np.testing.assert_allclose(domain.distance(chain, whole), D, rtol=1e-10)


def test_single_precision_is_summed_up_in_double(chain):
    D, _ = direct(chain, X.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(domain.distance(chain, domain.see(chain, X.astype(np.float32))), D, rtol=1e-10)


def test_the_centre_of_the_kind_is_what_counts(chains):
    """Recordings of one kind alone are at no distance if the kind is known, and at one if it is not."""
    by, tel = chains["by channel"], CHANNEL == "tel"
    rows = (TRAIN.X + FAR + 0.3)[tel]
    assert domain.distance(by, domain.see(by, rows, channel=CHANNEL[tel])) < 1e-10
    assert domain.distance(by, domain.see(by, rows)) > 0.1


def test_recordings_that_are_wanted(chain):
    seen, ids = domain.look(chain, Recordings.from_arrays(X, ids=IDS), [*IDS[5:9], "nobody"])
    assert ids.tolist() == IDS[5:9].tolist()
    np.testing.assert_allclose(domain.distance(chain, seen), direct(chain, X[5:9])[0], rtol=1e-10)
    assert domain.look(chain, Recordings.from_arrays(X, ids=IDS), ["nobody"])[0].n == 0
    with pytest.raises(DuopldaError, match=r"NaN or infinity in 1 recordings: 'r001'"):
        domain.look(chain, Recordings.from_arrays(np.where(np.arange(N)[:, None] == 1, np.nan, X), ids=IDS))
    with pytest.raises(DuopldaError, match="vectors have 3 dimensions, the model takes 20"):
        domain.look(chain, Recordings.from_arrays(X[:, :3], ids=IDS))


def test_numbers_too_large_to_add_up_are_not_judged(chain):
    """Lengths are normalised without overflow; the sum is not finite, and nothing is said of it."""
    many = 2000
    sides = chain.enroll(np.concatenate([X, np.full((many, 20), 1e305)]), np.arange(N + many))
    assert sides.seen is None
    silent(chain.llr, sides, sides)


# -- sides -------------------------------------------------------------------------------------------------------------


def assert_seen(seen, rows, mean):
    assert seen.n == len(rows)
    np.testing.assert_allclose(seen.sum, (rows - mean).sum(axis=0), rtol=1e-9, atol=1e-9)


def test_sides_know_what_came_in(tmp_path, chain):
    mean, half = chain.steps_["center"].mean_, N // 2
    a, b = (chain.enroll(X[part], TEST.speaker[part]) for part in (slice(half), slice(half, N)))
    a.add(b)
    assert_seen(a.seen, X, mean)
    assert_seen(Sides.empty(a.model).add(b).seen, X[half:], mean)
    assert_seen(a.select([0, 1]).seen, X, mean)
    assert_seen(pickle.loads(pickle.dumps(a)).seen, X, mean)
    assert_seen(a.remove(a.ids[:2]).seen, X, mean)
    a.save(tmp_path / "voices")
    assert_seen(chain.load_sides(tmp_path / "voices").seen, X, mean)
    plain = chain.plda_.enroll(chain.transform(X[:5]), range(5))
    assert plain.seen.inside
    plain.save(tmp_path / "plain")
    assert chain.load_sides(tmp_path / "plain").seen.inside
    assert a.add(plain).seen is None  # sums of other vectors


def test_sides_of_other_chains_do_not_mix(chains):
    """Two chains may have one PLDA, and take other vectors: then nothing is known."""
    chain = chains["LDA"]
    bare = Backend.from_plda(chain.plda_)
    a, b = chain.enroll(X + 5, TEST.speaker), bare.enroll(chain.transform(X), TEST.speaker)
    silent(chain.llr, b, b)
    silent(chain.llr, a, b)
    silent(lambda: list(score(chain, b, X + 5)))
    assert a.add(b).seen is None


def test_files_of_old_and_damaged_files(tmp_path, chain):
    chain.enroll(X + 5, TEST.speaker).save(tmp_path / "voices")
    arrays, header = read_container(tmp_path / "voices", ["duoplda-sides"])
    bad = {"seen": [np.zeros((2, 20)), np.full(20, np.nan), np.zeros(20, np.float32), np.zeros(0)]}
    bad["n_seen"] = [np.array([-1]), np.array([1, 2]), np.array([1.5]), np.arange(100)]
    of = {"model": header["model"]}
    for name, values in bad.items():
        for value in values:
            write_container(tmp_path / "bad", "duoplda-sides", arrays | {name: value}, of, force=True)
            with pytest.raises(DuopldaError, match=rf"bad: is damaged: {name} is "):
                chain.load_sides(tmp_path / "bad")
    del arrays["n_seen"]
    write_container(tmp_path / "bad", "duoplda-sides", arrays, of, force=True)
    with pytest.raises(DuopldaError, match="bad: is damaged"):
        chain.load_sides(tmp_path / "bad")
    del arrays["seen"]
    write_container(tmp_path / "old", "duoplda-sides", arrays, of)
    old = chain.load_sides(tmp_path / "old")
    assert old.seen is None
    silent(chain.llr, old, old)
    warned(chain.llr, *[chain.load_sides(tmp_path / "voices")] * 2)


# -- the warning -------------------------------------------------------------------------------------------------------


def calls(chain, a, b, rows):
    """All that warns, where clusters are told how many there are: far recordings are like one another."""
    return {
        "llr": lambda: chain.llr(a, b),
        "pairs": lambda: chain.llr(a, b, [[0, 0]]),
        "llr_blocks": lambda: chain.llr_blocks(a, b),
        "top": lambda: chain.top(a, b, 2),
        "score": lambda: [block for block in score(chain, a, rows)],  # noqa: C416
        "cluster": lambda: chain.cluster(rows, TEST.session, min_speakers=3),
        "clusters of sides": lambda: chain.cluster(chain.enroll(rows, TEST.session), min_speakers=3),
        "clusters of recordings": lambda: chain.cluster(Recordings.from_arrays(rows, ids=IDS), min_speakers=3),
    }


@pytest.mark.parametrize("name", CHAINS)
def test_it_warns_once_in_another_domain(chains, name):
    kinds = KINDS if chains[name].center_by_channel else None
    tests = np.arange(N)
    for what in ["llr", "cluster"] if name != "whitening" else calls(None, None, None, None):
        for shift in (0.0, 0.7):
            chain = copy(chains[name])
            if name in ("VBx", "LDA alone", "LDA") and shift:
                shift = 1.5
            a, b = (chain.enroll(X + shift, who, channel=kinds) for who in (TEST.speaker, tests))
            call = calls(chain, a, b, X + shift)[what]
            if not shift:
                silent(call)
                continue
            warned(call)
            for again in calls(chain, a, b, X + shift).values():
                silent(again)


def test_the_message_names_number_limit_and_remedy(chain):
    sides, tests = chain.enroll(X[:60] + 1, TEST.speaker[:60]), chain.enroll(X[60:] + 1, np.arange(N - 60))
    said = warned(chain.llr, sides, tests)
    D = direct(chain, X + 1)[0]
    numbers = re.search(
        r"a squared distance of (.+) from it, up to (.+) is usual for (.+) recordings of about (.+) speak", said
    )
    distance, limit, recordings, speakers = map(float, numbers.groups())
    assert (distance, recordings) == (float(f"{D:.3g}"), N)
    assert 1 <= speakers <= len(sides) + len(tests)
    assert usual(chain, speakers + 1, N, N) < limit < usual(chain, max(1, speakers - 1), N, N) * 1.03
    assert "`duoplda adapt` or Backend.adapt" in said
    assert "\n" not in said


def test_one_object_on_both_sides_is_counted_once(chain):
    sides = chain.enroll(X + 1, TEST.speaker)
    assert f"{N} recordings" in warned(chain.llr, sides, sides)


def test_few_models_are_checked_too(chain):
    """Recordings that are far off fall into one cluster, which makes the limit wide, and not infinite."""
    sides, tests = chain.enroll(X[:20] + 5, TEST.speaker[:20]), chain.enroll(X + 5, np.arange(N))
    two = sides.select([0, 1])
    warned(copy(chain).llr, two, tests)
    warned(lambda: list(score(copy(chain), two, X + 5)))
    warned(copy(chain).cluster, X + 5, n_speakers=1)
    warned(copy(chain).cluster, X + 5, within_session=True)


@pytest.mark.parametrize(("n_speakers", "recordings"), [(1, 20), (2, 50)])
def test_models_are_not_speakers(chain, n_speakers, recordings):
    """Where each recording of a few speakers is a model, a limit for as many speakers as models is too narrow."""
    naive = {"sides": 0, "rows": 0, "score": 0, "cluster": 0}
    alarms = dict.fromkeys(naive, 0)
    for seed in range(6):
        rows = make_recordings(n_speakers, recordings, 1, model=TRAIN.model, seed=seed).X + FAR
        sides = chain.enroll(rows, np.arange(len(rows)))
        for name, call in {
            "sides": lambda c, s=sides: c.llr(s, s),
            "rows": lambda c, r=rows: c.llr(r[:2], r),
            "score": lambda c, s=sides, r=rows: list(score(c, s, r)),
            "cluster": lambda c, r=rows: c.cluster(r),
        }.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(copy(chain))
            alarms[name] += len(caught)
            naive[name] += not domain.measure(chain, sides.seen, len(rows)).within
    assert max(alarms.values()) <= 1
    assert min(naive.values()) >= 2


def test_a_shift_of_five_speakers_is_noticed(chain):
    """At .7 standard deviations in each direction, where each recording is a model."""
    T = np.cov(TRAIN.X.T)
    direction = np.random.default_rng(0).choice([-1, 1], 20)
    shift = direction * np.sqrt(0.5 * 20 / (direction @ np.linalg.solve(T, direction)))
    for seed in range(4):
        rows = make_recordings(5, 10, 1, model=TRAIN.model, seed=seed).X + FAR + shift
        warned(copy(chain).cluster, rows)
        sides = chain.enroll(rows, np.arange(len(rows)))
        warned(copy(chain).llr, sides, sides)


@pytest.fixture(scope="module")
def hard():
    """A chain of 8 dimensions, where speakers have a fifth of the variance: one recording does not tell them apart."""
    sizes = {"n_dimensions": 8, "n_speaker_factors": 8, "n_session_factors": 4}
    variances = {"speaker_variance": 0.2, "session_variance": 0.4, "channel_variance": 0.4}
    train = make_recordings(300, (2, 4), (1, 3), **sizes, **variances, seed=0)
    plda = PLDA(shrinkage=0.1, tol=1e-3)
    return Backend(length_norm=False, plda=plda).fit(train.X, train.speaker, session=train.session), train.model


def test_speakers_who_cannot_be_told_apart_are_counted_by_their_scatter(hard):
    """Fifty of them fall into one or two clusters, for whom a shift of half a standard deviation would be usual."""
    chain, model = hard
    for seed in range(3):
        rows = make_recordings(50, 6, 1, model=model, seed=seed).X
        silent(copy(chain).cluster, rows[:100])
        sides = chain.enroll(rows, np.arange(len(rows)))
        silent(copy(chain).llr, sides, sides)
        sides = chain.enroll(rows + 0.5 * rows.std(axis=0), np.arange(len(rows)))
        by_clusters = domain.spread_of([sides])
        assert domain.measure(chain, sides.seen, by_clusters).within
        assert domain.measure_sides(chain, sides.seen, by_clusters, [sides]).n_speakers > 2 * by_clusters.n_speakers
        warned(copy(chain).llr, sides, sides)


def test_few_speakers_are_not_taken_for_many_by_their_scatter(hard):
    chain, model = hard
    alarms = 0
    for n, seed in itertools.product((1, 2, 5), range(12)):
        rows = make_recordings(n, 20, 1, model=model, seed=seed).X
        sides = chain.enroll(rows, np.arange(len(rows)))
        found = domain.measure_sides(chain, sides.seen, domain.Spread(1, len(rows), len(rows)), [sides])
        alarms += not found.within
    assert alarms <= 1


def test_the_number_of_speakers_by_scatter(hard):
    _, model = hard
    for n, fewest, most in ((1, 1, 2), (4, 2, 20), (100, 15, 400)):
        plda = PLDA.from_parameters(model.mu[0], 5 * model.V, model.U, model.W[0])  # noise is not what is asked about
        sample = plda.sample(n, 400 // n, 1, random_state=1)[0]
        guess = number_by_scatter([plda.enroll(sample, np.arange(400))])
        assert guess.probability.sum() == pytest.approx(1)
        assert fewest <= 1 / (guess.probability @ (1 / guess.n)) <= most
        # In terms of a model that scales speakers the answer is the same.
        scaled = PLDA.from_parameters(model.mu[0], 10 * model.V, model.U, model.W[0])
        again = number_by_scatter([scaled.enroll(sample, np.arange(400))], 0.25)
        np.testing.assert_allclose(again.probability, guess.probability, atol=1e-6)


def test_a_plda_of_few_speakers_knows_how_few(tmp_path):
    """Its own mean is that of 10 people, and its covariance, too: others are farther off than they were."""
    train = make_recordings(10, (2, 5), (1, 4), n_dimensions=20, n_speaker_factors=10, n_session_factors=20, seed=0)
    plda = PLDA(shrinkage=0.3, tol=1e-3).fit(train.X, train.speaker, session=train.session)
    plda.save(tmp_path / "model")
    again = PLDA.load(tmp_path / "model")
    counts = {"speakers": 10, "sessions": len(set(train.session)), "recordings": len(train.X)}
    assert again.counts_ == plda.counts_ == counts
    assert Backend.load(tmp_path / "model").counts_ == Backend.from_plda(plda).counts_ == plda.counts_
    test = make_recordings(100, 2, 2, model=train.model, seed=1)
    for chain in (again, Backend.load(tmp_path / "model")):
        sides = chain.enroll(test.X, test.speaker, test.session)
        silent(chain.llr, sides, sides)
        far = chain.enroll(test.X + 5, test.speaker, test.session)
        warned(chain.llr, far, far)
    again.counts_ = {}
    assert not domain.measure(again, sides.seen, 100).within


def test_a_plda_alone(chains):
    """It is compared with its own mean and covariance."""
    who = TEST.speaker, IDS
    for shift in (0, 5):
        for call in (
            lambda p, r: p.llr(p.enroll(r, TEST.speaker), p.enroll(r, np.arange(N))),
            lambda p, r: list(score(p, enroll_recordings(p, Recordings.from_arrays(r, ids=IDS), *who), r)),
            lambda p, r: p.cluster(r, min_speakers=3),
        ):
            plda = copy(chains["from a PLDA"].plda_)
            (warned if shift else silent)(call, plda, X + shift)
            silent(call, plda, X + shift)  # once is enough


def test_windows_of_files(chain):
    """A file is a session of a few speakers, whose windows are no independent recordings."""
    rng = np.random.default_rng(0)
    n = 60
    start = np.tile(np.arange(30) / 4, 2)
    windows = Segments(np.arange(n).astype(str), Coded.of(np.repeat(["a", "b"], 30)), start, start + 1.5)
    who = np.repeat([0, 1, 2, 1], 15)
    one_day = make_recordings(3, 1, 40, model=TRAIN.model, seed=5)
    rows = np.concatenate([one_day.X[one_day.speaker == f"spk{s}"][i : i + 15] for i, s in enumerate(who[::15])]) + FAR
    silent(diarize, chain, rows, windows)
    warned(diarize, copy(chain), rows + 2, windows)
    warned(diarize, copy(chain.plda_), chain.transform(rows + rng.choice([-1, 1], 20) * 3) * 1.5 + 2, windows)


def test_what_is_not_checked(chain):
    """Cosines, and sides of which another chain has seen the recordings."""
    data, who = Recordings.from_arrays(X + 5, ids=IDS), (TEST.speaker, IDS)
    cosines = enroll_recordings(chain, data, *who, cosine=True)
    silent(lambda: list(score(chain, cosines, data, cosine=True)))
    own = chain.enroll(X + 5, TEST.speaker)
    silent(chain.plda_.llr, own, own)
    warned(chain.llr, own, own)


def test_copies_and_files_warn_for_themselves(tmp_path, chain):
    sides = chain.enroll(X + 5, TEST.speaker)
    warned(chain.llr, sides, sides)
    silent(chain.llr, sides, sides)
    chain.save(tmp_path / "model")
    for other in (copy(chain), pickle.loads(pickle.dumps(chain)), Backend.load(tmp_path / "model")):
        sides = other.enroll(X + 5, TEST.speaker)
        warned(other.llr, sides, sides)


def test_another_centre_ends_it(chain):
    """What adaptation does first: the same recordings are then no longer far."""
    moved = copy(chain)
    center = copy(chain.steps_["center"])
    center.mean_ = center.mean_ + 5.0
    moved.steps_ = chain.steps_ | {"center": center}
    sides = moved.enroll(X + 5, TEST.speaker)
    silent(moved.llr, sides, sides)


# -- chunks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["whitening", "by channel", "VBx"])
@pytest.mark.parametrize("how", [{}, {"top": 2}, {"wanted": IDS[::2]}, {"trials": (np.arange(N) % 3, IDS)}])
def test_streams_see_what_arrays_see(chains, name, how):
    chain = copy(chains[name])
    kinds = {"channel": dict(zip(IDS.tolist(), KINDS.tolist(), strict=True))} if chain.center_by_channel else {}
    array = KINDS if kinds else None
    data = Parts(*(Recordings.from_arrays(X[i : i + 16] + 1.5, ids=IDS[i : i + 16]) for i in range(0, N, 16)))
    models = enroll_recordings(chain, data, [*TEST.speaker, "more"], [*IDS, IDS[0]], **kinds)
    whole = domain.see(chain, X + 1.5, channel=array)
    assert models.seen.n == N  # one of them is in two models, and counts once
    np.testing.assert_allclose(models.seen.sum, whole.sum, rtol=1e-9, atol=1e-9)
    each = enroll_recordings(chain, data, **kinds)
    np.testing.assert_allclose(each.seen.sum, whole.sum, rtol=1e-9, atol=1e-9)
    blocks = score(chain, models, data, **kinds, **how)
    found = [silent(next, blocks)]  # nothing is said before all has been seen
    said = warned(lambda: found.extend(blocks))
    seen = sum((block.sample.seen for block in found if block.sample is not None), start=Seen())
    rows = np.isin(IDS, how["wanted"]) if "wanted" in how else slice(None)
    expected = domain.see(chain, (X + 1.5)[rows], channel=None if array is None else array[rows])
    assert seen.n == expected.n
    np.testing.assert_allclose(seen.sum, expected.sum, rtol=1e-9, atol=1e-9)
    assert f"{seen.n + N} recordings" in said


def test_tensors_are_summed_up_where_they_are(chain):
    """Vectors in single precision; on CUDA, where there is one, also those that are streamed there."""
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else None
    rows = (X + 1).astype(np.float32)
    D, _ = direct(chain, rows.astype(np.float64))
    there = [chain.enroll(torch.asarray(rows, device=device), TEST.speaker)]
    there += [enroll_recordings(chain, Recordings.from_arrays(rows, ids=IDS), TEST.speaker, IDS, device=device)]
    for sides in there:
        assert isinstance(sides.seen.sum, np.ndarray)
        np.testing.assert_allclose(domain.distance(chain, sides.seen), D, rtol=1e-10)
    warned(chain.llr, there[0], there[0])
    other = copy(chain)
    warned(lambda: list(score(other, there[1], rows)))


def test_a_cluster_sees_what_one_machine_sees(tmp_path, chain):
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster

    from duoplda.engines import dask as engine

    for i, rows in enumerate(np.array_split(np.arange(N), 3)):
        write_embeddings(tmp_path / f"x.{i}.ark", IDS[rows], X[rows] + 1)
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options, silence_logs=50) as cluster, Client(cluster, set_as_default=False) as client:
        data = engine.recordings(tmp_path / "x.*.ark", client=client)
        models = enroll_recordings(chain, data, TEST.speaker, IDS)
        np.testing.assert_allclose(models.seen.sum, domain.see(chain, X + 1).sum, rtol=1e-9, atol=1e-9)
        other = copy(chain)
        said = warned(lambda: list(score(chain, models, data)))
        assert f"a squared distance of {direct(chain, X + 1)[0]:.3g} " in said
        assert f"{2 * N} recordings" in said
        warned(other.cluster, data, min_speakers=3)
        np.testing.assert_allclose(domain.look(chain, data)[0].sum, models.seen.sum, rtol=1e-9, atol=1e-9)


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`x.npz` is what the model was trained on; `far.npz` has the same ids, and is elsewhere."""
    at = tmp_path_factory.mktemp("domain")
    make_folder(at)
    with np.load(at / "x.npz") as data:
        write_embeddings(at / "far.npz", data["ids"], data["embeddings"] + 1)
    return at


FILES = {
    "score": ["--enroll", "enroll", "--trials", "trials"],
    "matrix": ["--enroll", "enroll", "--matrix"],
    "top": ["--enroll", "enroll", "--top", "2"],
    "cosine": ["--enroll", "enroll", "--trials", "trials", "--cosine"],
    "cluster": ["--sessions", "utt2sess"],
    "link": ["--local", "utt2spk"],
}


@pytest.mark.parametrize("what", FILES)
def test_commands_warn(tmp_path, folder, what):
    command = what if what in ("cluster", "link") else "score"
    more = [folder / word if (folder / word).exists() else word for word in FILES[what]]
    for data, far in (("x.npz", False), ("far.npz", True)):
        files = ["--model", folder / "model.safetensors", "--embeddings", folder / data, *more]
        said = done(command, *files, "--out", tmp_path / f"{data}-{what}", "--quiet").stderr
        assert said.count("not like those that the model was trained on") == (far and what != "cosine")
        skipped = done(command, *files, "--out", tmp_path / f"{data}-{what}-2", "--no-domain-check", "--quiet").stderr
        assert skipped == ""
        assert (tmp_path / f"{data}-{what}").read_bytes() == (tmp_path / f"{data}-{what}-2").read_bytes()


def test_speakers_of_a_file_are_remembered(tmp_path, folder):
    """`enroll` says nothing; scoring against what it wrote does."""
    files = ["--model", folder / "model.safetensors", "--embeddings", folder / "far.npz"]
    said = done("enroll", *files, "--enroll", folder / "enroll", "--out", tmp_path / "voices", "--quiet").stderr
    assert said == ""
    tests = {test for _, test, *_ in lines(folder / "trials")}
    more = ["--enrolled", tmp_path / "voices", "--trials", folder / "trials", "--out", tmp_path / "scores", "--quiet"]
    assert f" is usual for {len(tests) + 12} recordings of " in done("score", *files, *more).stderr


def test_info_on_data(tmp_path, folder):
    model, speaker = folder / "model.safetensors", dict(lines(folder / "utt2spk"))
    n, chain = len(speaker), Backend.load(folder / "model.safetensors")
    for data, far in (("x.npz", False), ("far.npz", True)):
        with np.load(folder / data) as arrays:
            D, _ = direct(chain, arrays["embeddings"].astype(np.float64))
        text = done("info", model, "--embeddings", folder / data, "--speakers", folder / "utt2spk").stdout
        (line,) = (line for line in text.splitlines() if line.startswith("domain: "))
        said, rest = line.removeprefix("domain: squared distance ").split(", ", 1)
        np.testing.assert_allclose(float(said), D, rtol=1e-3, atol=1e-12)
        limit = usual(chain, n**2 / (np.unique([*speaker.values()], return_counts=True)[1] ** 2).sum(), n, n)
        said, rest = rest.removeprefix("limit ").split(" ", 1)
        np.testing.assert_allclose(float(said), limit, rtol=0.03)
        assert rest.startswith(f"for {n} recordings of 40 speakers: ")
        assert line.endswith("beyond it: ratios may mislead, see `duoplda adapt`") is far
        assert ("within it" in line) is not far
        found = json.loads(done("info", model, "--embeddings", folder / data, "--json").stdout)["domain"]
        np.testing.assert_allclose(found["distance"], D, rtol=1e-9, atol=1e-12)
        assert found["limit"] >= usual(chain, n, n, n) * 0.97
        assert (found["n_recordings"], found["within"]) == (n, not far)
        assert found["n_speakers"] < n if far else found["n_speakers"] == n
    assert "domain" not in json.loads(done("info", model, "--json").stdout)
    write_map(tmp_path / "others", ["nobody"], ["x"])
    failed = duoplda("info", model, "--embeddings", folder / "x.npz", "--speakers", tmp_path / "others")
    assert failed.exit_code == 1
    assert "no recording of it is in" in failed.stderr
    assert duoplda("info", model, "--speakers", folder / "utt2spk").exit_code == 2


def test_the_report_has_a_badge(tmp_path, folder):
    done(*scoring(folder), *[folder / w if (folder / w).exists() else w for w in FILES["score"]],
         "--out", tmp_path / "scores", "--quiet")  # fmt: skip
    files = ["--scores", tmp_path / "scores", "--trials", folder / "trials", "--bootstrap", "0"]
    files += ["--model", folder / "model.safetensors", "--enroll", folder / "enroll"]
    trials, enroll = lines(folder / "trials"), lines(folder / "enroll")
    used = sorted({t for _, t, *_ in trials} | {i for _, i in enroll})
    chain = Backend.load(folder / "model.safetensors")
    for data, far in (("x.npz", False), ("far.npz", True)):
        out = tmp_path / f"{data}.html"
        done("report", *files, "--embeddings", folder / data, "--out", out, "--quiet")
        with np.load(folder / data) as arrays:
            D, _ = direct(chain, arrays["embeddings"][np.isin(arrays["ids"], used)].astype(np.float64))
        page = out.read_text()
        limit = re.search(rf"\(squared distance {D:.4g}, limit (.+) for {len(used)} recordings\)", page).group(1)
        assert (float(limit) < D) is far
        assert ("<code>duoplda adapt</code> adapts the model to them" in page) is far
    write_embeddings(tmp_path / "others.npz", ["nobody"], np.zeros((1, 12)))
    failed = duoplda("report", *files, "--embeddings", tmp_path / "others.npz", "--out", tmp_path / "no.html")
    assert failed.exit_code == 1
    assert "none of the recordings of the trials" in failed.stderr


# -- real data ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_other_corpora_are_noticed():
    def load(name):
        with np.load(SHARED / f"{name}.npz") as data:
            return data["embeddings"].astype(np.float64), data["speaker"], data["session_id"]

    source = Backend(plda=PLDA(shrinkage=0.1)).fit(*load("so762_campp_train"))
    for corpus, far in (("so762", False), ("cvau", True), ("amnist", True)):
        chain, (X, speaker, session) = copy(source), load(f"{corpus}_campp_public")
        sides = chain.enroll(X, speaker, session)
        if far:
            warned(chain.llr, sides, sides)
            warned(copy(source).cluster, *(a[:: len(X) // 600] for a in (X, session)))
        else:
            silent(chain.llr, sides, sides)
            silent(chain.cluster, *(a[:: len(X) // 600] for a in (X, session)))
