"""The experiments of examples/, at small size; on real speech where it is at hand."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SPEECH = ROOT.parent / "shared" / "data"
sys.path.insert(0, str(ROOT / "examples"))

needs_speech = pytest.mark.skipif(not SPEECH.is_dir(), reason="the real speech embeddings are not here")


def test_copies_are_not_sessions():
    from copies_are_not_sessions import SIZES, SYSTEMS, experiment, show

    table = experiment(100, 40, seed=1)
    assert set(table) == {(n, m, s) for n in SIZES for m in SIZES for s in SYSTEMS}
    for n, m in ((5, 5), (10, 10)):
        ours, book, averaged = (table[n, m, s][1] for s in SYSTEMS)
        assert ours < 0.6 * averaged < book
        assert book > 1  # worse than knowing nothing
    assert abs(table[1, 1, "duoplda"][0] - table[1, 1, "by the book"][0]) < 2  # next to nothing at 1 x 1
    assert len(show(table).splitlines()) == 2 + len(SIZES) ** 2


def test_few_speakers():
    from few_speakers import experiment

    result = experiment(25, d=16, n_test=60)
    (ml, ml_bits, _), (auto, auto_bits, amount), (truth, bits, _) = (result[s] for s in ("ML", "auto", "truth"))
    assert ml < auto < truth
    assert bits < min(auto_bits, ml_bits)
    assert amount[0] > 0


@needs_speech
@pytest.mark.parametrize(
    ("system", "pooled", "one_by_five"),
    # EER % and Cllr that a prototype reached with 149/190 factors (MODEL.md 7 and the data's README)
    [("plain-ml", (6.02, 0.442), (5.16, 1.013)), ("two-ml", (5.36, 0.288), (5.42, 0.303))],
)
def test_real_speech_as_the_prototype_found_it(system, pooled, one_by_five):
    from real_speech import load, scores, train

    from duoplda.metrics import cllr, eer

    data, public, trials = load(SPEECH, "so762")
    llr = scores(train(system, data), system, public, trials)
    label = trials["trial_label"].astype(bool)
    of = trials["model_condition"][trials["trial_model"]] == 1
    assert 100 * eer(llr, label) == pytest.approx(pooled[0], abs=0.05)
    assert cllr(llr, label) == pytest.approx(pooled[1], abs=0.003)
    assert 100 * eer(llr[of], label[of]) == pytest.approx(one_by_five[0], abs=0.05)
    assert cllr(llr[of], label[of]) == pytest.approx(one_by_five[1], abs=0.01)


@needs_speech
def test_kinds_of_channels_help_on_real_speech():
    from real_speech import load, scores, train

    from duoplda.metrics import cllr, eer

    data, public, trials = load(SPEECH, "so762")
    label = trials["trial_label"].astype(bool)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # thirty iterations are not all the way
        backend = train("kinds-ml", data, max_iter=30)
    for system, most in (("kinds-ml", (5.12, 0.268)), ("kinds-ml-inferred", (5.18, 0.268))):
        llr = scores(backend, system, public, trials)
        assert 100 * eer(llr, label) < most[0]
        assert cllr(llr, label) < most[1]
    assert (
        np.mean(backend.plda_.channel_posterior(backend.transform(public["embeddings"])).argmax(1) == public["channel"])
        > 0.7
    )
