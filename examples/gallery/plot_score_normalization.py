"""
Score normalisation, and when not to
====================================

Normalisation compares a score with the scores that both sides get with a cohort of other people. It is an old remedy
where scores of different trials have different scales. Likelihood ratios of a model that fits do not need it. This page
shows both cases.
"""

# %%
# A model, and trials in two domains
# ----------------------------------
# In the domain of training, the test speakers are drawn from the model of the training data. In the other domain they
# come from four places that training has not seen, each with a shift of its own: two people of one place seem alike. A
# cohort has recordings of 400 people who are in no trial, from the same places as the trials.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA, score
from duoplda.calibration import AffineCalibration
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr, eer
from duoplda.plots import OKABE_ITO

train = make_recordings(300, (2, 5), (1, 4), seed=0)
plda = PLDA().fit(train.X, train.speaker, session=train.session)
shifts = np.random.default_rng(3).normal(size=(4, train.X.shape[1])) * 1.5


def place(seed, unseen):
    """Recordings and speakers of the trials, which recordings enrol, and a cohort."""
    people = make_recordings(200, 2, 1, model=train.model, seed=seed)
    others = make_recordings(400, 1, 1, model=train.model, seed=seed + 1)
    of_people, of_others = np.repeat(np.arange(200), 2) % 4, np.arange(400) % 4  # their places
    X, Y = (people.X + shifts[of_people], others.X + shifts[of_others]) if unseen else (people.X, others.X)
    cohort = plda.enroll(Y, [f"other{i}" for i in range(len(Y))])
    return X, people.speaker, np.char.endswith(people.session, "-0"), cohort


def scores(X, speaker, first, cohort, normalize=None):
    """Scores of all pairs, and which of them are targets."""
    models = plda.enroll(X[first], speaker[first])
    options = {} if normalize is None else {"cohort": cohort, "normalize": normalize, "cohort_top": 50}
    blocks = list(score(plda, models, X[~first], ids=np.flatnonzero(~first), **options))
    S, order = np.concatenate([block.scores for block in blocks], axis=1), np.argsort(speaker[~first])
    return S[:, order], models.ids[:, None] == speaker[~first][order]


def calibrated(S, target):
    """Each half of the speakers is calibrated by trials within the other half."""
    half = len(S) // 2
    a, b = (slice(half), slice(half)), (slice(half, None), slice(half, None))
    fitted = [AffineCalibration().fit(S[of].ravel(), target[of].ravel()) for of in (b, a)]
    ratios = [one.transform(S[of].ravel()) for one, of in zip(fitted, (a, b), strict=True)]
    return np.concatenate(ratios), np.concatenate([target[of].ravel() for of in (a, b)])


# %%
# Three scores, after a calibration of their own
# ----------------------------------------------
# Normalised scores are no likelihood ratios: they are calibrated here, on other speakers. So are the plain ones, to be
# fair. All figures are means of three draws of the speakers.

methods = {"none": None, "s-norm": "s", "adaptive s-norm": "as1"}
results = {}
for unseen in (False, True):
    draws = [place(seed, unseen) for seed in (10, 20, 30)]
    for name, method in methods.items():
        both = []
        for draw in draws:
            S, target = scores(*draw, normalize=method)
            both.append((100 * eer(S.ravel(), target.ravel()), cllr(*calibrated(S, target))))
        results[unseen, name] = np.mean(both, axis=0)
        where = "other domain" if unseen else "domain of training"
        print(f"{where:18} {name:16} EER {results[unseen, name][0]:.2f} %, Cllr {results[unseen, name][1]:.3f}", end="")
        print(" (EER of the draws:", ", ".join(f"{e:.2f}" for e, _ in both) + ")")

fig, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
for i, name in enumerate(methods):
    values = [results[unseen, name][1] for unseen in (False, True)]
    bars = ax.bar(np.arange(2) + 0.26 * (i - 1), values, 0.26, color=OKABE_ITO[i], label=name)
    ax.bar_label(bars, fmt="%.2f", fontsize="small")
ax.set_xticks([0, 1], ["domain of training", "other domain"])
_ = ax.set(ylabel="Cllr after calibration (bits)")
ax.legend(ncols=3, loc="lower left", bbox_to_anchor=(-0.1, 1), frameon=False, fontsize="small")
plt.show()

# %%
# Take home
# ---------
# - First ask whether the model fits: a ``DomainWarning``, or ``duoplda info --embeddings``.
# - If it does, do not normalise: it does not help, and the scores are no likelihood ratios any more.
# - If it does not, adapt the model (:doc:`plot_adaptation`). Where you cannot, adaptive normalisation with a cohort
#   *of the new domain* helps here: it compares a trial with people of the same place.
#
# **When it does not hold.** On real speech the gain in another domain was small, and smaller than that of adaptation;
# with a cohort from the training domain there was none (:doc:`/normalization`). Nobody of the trials may be in the
# cohort.
