"""Who is this? The probabilities against sums over all that can be, and decisions against all that can be decided."""

import itertools

import numpy as np
import pytest

from duoplda.errors import DuopldaError
from duoplda.trials.identification import (
    Costs,
    Probabilities,
    decide,
    decide_together,
    identify,
    identify_together,
    voice_priors,
)


def by_enumeration(ratios, priors):
    """(S, K + 1) probabilities, by a sum over all assignments that use no voice twice; the last is somebody else."""
    S, K = ratios.shape
    w = np.column_stack([priors * np.exp(ratios), np.full(S, 1 - priors.sum())])
    out = np.zeros((S, K + 1))
    for assignment in itertools.product(range(K + 1), repeat=S):
        named = [voice for voice in assignment if voice < K]
        if len(set(named)) == len(named):
            weight = np.prod([w[s, voice] for s, voice in enumerate(assignment)])
            out[np.arange(S), assignment] += weight
    return out / out.sum(axis=1, keepdims=True)


def table(probabilities):
    return np.column_stack([probabilities.voices, probabilities.someone_else])


@pytest.mark.parametrize("seed", range(4))
def test_each_test_by_itself(seed):
    rng = np.random.default_rng(seed)
    ratios = rng.normal(0, 6, (5, 3))
    priors = rng.dirichlet(np.ones(4))[:3]
    for prior in (None, priors):
        expected = np.vstack([by_enumeration(row[None], voice_priors(3, 0.5, prior)) for row in ratios])
        np.testing.assert_allclose(table(identify(ratios, prior=prior)), expected, atol=1e-13)


@pytest.mark.parametrize(("S", "K"), [(1, 3), (2, 2), (3, 2), (4, 3), (2, 6), (5, 4)])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_speakers_of_one_file(S, K, scale):
    rng = np.random.default_rng(S * 10 + K)
    ratios = rng.normal(0, scale, (S, K))
    priors = rng.dirichlet(np.ones(K + 1))[:K]
    expected = by_enumeration(ratios, priors)
    np.testing.assert_allclose(table(identify_together(ratios, prior=priors)), expected, atol=1e-11)


def test_speakers_who_would_all_be_one_voice():
    """Far beyond what exp can hold: one of them is that voice, and each is it as its ratio says."""
    P = identify_together([[900.0], [900.0], [900.0 + np.log(2.0)]])
    np.testing.assert_allclose(P.voices[:, 0], [0.25, 0.25, 0.5])
    np.testing.assert_allclose(P.someone_else, [0.75, 0.75, 0.5])


def test_voices_without_rivals_are_those_of_each_speaker_alone():
    """Some thousand voices that nobody could be, whose probabilities still add up."""
    rng = np.random.default_rng(0)
    ratios = rng.normal(-30, 3, (3, 2000))
    ratios[[0, 1, 2], [5, 6, 7]] = 25.0
    P = identify_together(ratios)
    np.testing.assert_allclose(table(P).sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(P.voices, identify(ratios).voices, atol=1e-9)


def test_many_speakers_are_given_the_others():
    """Where each speaker is clear there is no difference; a voice goes to the speaker who is closer to it."""
    ratios = np.full((30, 40), -20.0)
    ratios[np.arange(29), np.arange(29)] = 30.0
    ratios[29, 0] = 20.0
    P = identify_together(ratios)
    assert P.voices.argmax(axis=1)[:29].tolist() == list(range(29))
    assert P.someone_else[29] > 0.999
    assert (P.voices.sum(axis=0) < 1 + 1e-9).all()
    np.testing.assert_allclose(table(P).sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    ("ratios", "options", "expected"),
    [
        ([], {}, [1.0]),
        ([np.inf, 0.0], {}, [1.0, 0.0, 0.0]),
        ([np.inf, np.inf], {"prior": [0.1, 0.3]}, [0.25, 0.75, 0.0]),
        ([-np.inf, -np.inf], {}, [0.0, 0.0, 1.0]),
        ([-np.inf, -np.inf], {"known": 1.0}, [0.5, 0.5, 0.0]),
        ([np.inf, 0.0], {"prior": [0.0, 0.5]}, [0.0, 0.5, 0.5]),
        ([5.0, 5.0], {"known": 0.0}, [0.0, 0.0, 1.0]),
        ([1e308, -1e308], {}, [1.0, 0.0, 0.0]),
    ],
)
def test_limits(ratios, options, expected):
    P = identify(ratios, **options)
    np.testing.assert_allclose([*P.voices, P.someone_else], expected, atol=1e-12)
    together = identify_together(np.tile(ratios, (2, 1)), **options)
    assert np.isfinite(together.voices).all()
    np.testing.assert_allclose(table(together).sum(axis=1), 1.0)


@pytest.mark.parametrize("seed", range(6))
def test_decisions_cost_least(seed):
    """Against all decisions of three speakers that give no voice twice."""
    rng = np.random.default_rng(seed)
    P = identify_together(rng.normal(1, 3, (3, 2)))
    costs = Costs(*rng.uniform(0.2, 2, 2), rng.uniform(0.05, 0.6))

    def price(s, decision):
        if decision == "nobody":
            return costs.missed * (1 - P.someone_else[s])
        return costs.unsure if decision == "unsure" else costs.wrong_name * (1 - P.voices[s, decision])

    choices = [0, 1, "nobody", "unsure"]
    prices = [
        sum(price(s, d) for s, d in enumerate(decisions))
        for decisions in itertools.product(choices, repeat=3)
        if all(decisions.count(voice) < 2 for voice in (0, 1))
    ]
    taken = [d.voice if d.verdict == "accept" else d.verdict for d in decide_together(P, costs)]
    assert sum(price(s, d) for s, d in enumerate(taken)) == pytest.approx(min(prices), abs=1e-10)
    named = [d for d in taken if isinstance(d, int)]
    assert len(set(named)) == len(named)


def test_a_decision_follows_the_costs():
    P = Probabilities(np.array([0.7, 0.1]), np.float64(0.2))
    assert decide(P) == ("accept", 0)
    assert decide(P, Costs(wrong_name=10)) == ("unsure", None)
    assert decide(P, Costs(wrong_name=10, missed=0.1)) == ("nobody", None)
    assert decide(Probabilities(np.array([0.5]), np.float64(0.5))) == ("unsure", None)  # of equal costs


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: identify([[0.0], [np.nan]]), "NaN in rows 1"),
        (lambda: identify([0.0], known=1.5), "known=1.5"),
        (lambda: identify([0.0, 0.0], prior=[0.7, 0.7]), "add up to 1.4"),
        (lambda: identify([0.0], prior=[-0.1]), "voices 0"),
        (lambda: identify([0.0], prior=[0.1, 0.1]), "one probability for each of the 1"),
        (lambda: identify(np.zeros((1, 1, 1))), "not 3"),
        (lambda: identify_together([0.0]), "two dimensions"),
        (lambda: decide(identify([0.0]), Costs(wrong_name=-1)), "not negative"),
    ],
)
def test_errors(call, words):
    with pytest.raises(DuopldaError, match=words):
        call()
