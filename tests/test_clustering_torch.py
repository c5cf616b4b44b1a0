"""Clustering of tensors: few items as on the host, many of them in rounds."""

import numpy as np
import pytest

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import b_cubed
from duoplda.trials import clustering, rounds
from duoplda.trials.queue import Objective

torch = pytest.importorskip("torch")
SIZES = {"n_dimensions": 60, "n_speaker_factors": 50, "n_session_factors": 50}


def drawn(recordings, n=40, seed=0, **sizes):
    data = make_recordings(n, (2, 8), recordings, seed=seed, **(SIZES | sizes))
    ny, nx = (min(50, (SIZES | sizes)[f"n_{level}_factors"]) for level in ("speaker", "session"))
    return data, PLDA(ny, nx, shrinkage=0.1).fit(data.X, data.speaker, session=data.session)


def test_few_items_are_clustered_as_on_the_host():
    data, plda = drawn((1, 4))
    a, b = (plda.cluster(X, data.session) for X in (data.X, torch.as_tensor(data.X)))
    np.testing.assert_array_equal(a.labels, b.labels)
    assert b.log_posterior == pytest.approx(a.log_posterior, rel=1e-9)


def both_ways(plda, data, **options):
    """The same sessions one merge at a time, on the host, and in rounds."""
    return (
        clustering.cluster(plda.enroll(X, data.session, data.session).unnamed(), rounds_from=10, **options)
        for X in (data.X, torch.as_tensor(data.X))
    )


def test_rounds_find_what_the_queue_finds_where_guesses_are_exact():
    data, plda = drawn(3)
    a, b = both_ways(plda, data)
    np.testing.assert_array_equal(a.labels, b.labels)
    assert b.log_posterior == pytest.approx(a.log_posterior, rel=1e-6)
    for name in ("support", "merge", "margin", "means"):
        np.testing.assert_allclose(getattr(b, name), getattr(a, name), rtol=1e-4, atol=2e-3)
    for name in ("names", "sessions", "nearest", "runner_up", "item", "ids", "known"):
        np.testing.assert_array_equal(getattr(b, name), getattr(a, name))


@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_on_ragged_sessions_are_about_as_good(seed):
    data, plda = drawn((1, 5), 60, seed, n_dimensions=30, n_speaker_factors=20, n_session_factors=25)
    a, b = both_ways(plda, data, refine=False)
    speaker = dict(zip(data.session.tolist(), data.speaker.tolist(), strict=True))
    reference = [speaker[session] for session in a.ids.tolist()]
    assert b_cubed(b.labels, reference).f > b_cubed(a.labels, reference).f - 0.03
    assert (b.merge < 0.01).all()  # no pair of clusters is left that gains


def test_the_highest_of_groups_are_the_highest():
    rng = torch.Generator().manual_seed(0)
    out = torch.randn((7, 64 * 40), generator=rng)
    for k in (1, 3, 10):
        found = rounds.highest(out, k)
        assert torch.equal(out.gather(1, found), out.topk(k, dim=1).values)


def test_products_of_all_pairs_are_gains():
    data, plda = drawn((1, 5), 30)
    sides = plda.enroll(torch.as_tensor(data.X), data.session, data.session).unnamed()
    objective = Objective(ln_alpha=4.0, weight=1.0, fewest=1, most=len(sides))
    r = rounds.Rounds(sides, clustering.DiagonalEvidence.of(sides), objective)
    n = len(r.m)
    a, b = r.look(n - 1)
    assert len(torch.unique(a * n + b)) == n * (n - 1)
    gain = r.gains(a, b).reshape(n, n - 1)  # in the order in which the products put them
    wrong = (gain[:, :-1] < gain[:, 1:] - 0.5).float().mean()
    assert wrong < 0.02
