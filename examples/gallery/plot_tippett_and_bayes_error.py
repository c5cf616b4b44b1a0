"""
Tippett plots and Bayes error
=============================

Two pictures of one list of likelihood ratios. The Tippett plot is for the examiner: how often would the evidence have
been misleading, and how badly? The Bayes-error plot is for whoever decides: what do decisions cost, whatever the prior?
"""

# %%
# Two systems
# -----------
# A side of a trial has four recordings of one conversation. One system knows this, the other takes them as four
# conversations (see :doc:`plot_copies_are_not_sessions`).

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import bayes_error, cllr, min_cllr
from duoplda.plots import bayes_error as plot_bayes_error
from duoplda.plots import tippett

train = make_recordings(200, (2, 5), (1, 5), n_session_factors=32, session_variance=1.0, seed=0)
test = make_recordings(100, 2, 4, model=train.model, seed=1)
first = np.char.endswith(test.session, "-0")
target = np.eye(100, dtype=bool).ravel()


def ratios(plda, named):
    """All first sessions against all second ones."""
    sides = [(test.X[of], test.speaker[of], test.session[of] if named else None) for of in (first, ~first)]
    return plda.llr(*(plda.enroll(*side) for side in sides)).ravel()


two = PLDA().fit(train.X, train.speaker, session=train.session)
plain = PLDA().fit(train.X, train.speaker)
systems = {"sessions named": (ratios(two, True), target), "copies as sessions": (ratios(plain, False), target)}

# %%
# The Tippett plot
# ----------------
# For each likelihood ratio on the horizontal axis: the share of trials with at least that ratio. The thick line is for
# targets, and should stay high and fall far on the right; the thin one is for non-targets, and should be low long
# before zero.

fig, ax = plt.subplots(figsize=(5.2, 4), layout="constrained")
tippett(systems, ax=ax)
_ = ax.set(xlim=(-30, 20))
plt.show()

# %%
# Read off at zero, the lines give the rates of misleading evidence: targets whose ratio is below 1, and non-targets
# whose ratio is above. How far they reach beyond zero says how misleading it can get, and that is what matters in
# court:

for name, (llr, _) in systems.items():
    against, in_favour = (llr[target] < 0).mean(), (llr[~target] > 0).mean()
    print(f"{name}: misleading for {100 * against:.1f} % of targets and {100 * in_favour:.1f} % of non-targets;")
    print(f"    the worst target has log10 LR {llr[target].min() / np.log(10):.1f},", end=" ")
    print(f"the worst non-target {llr[~target].max() / np.log(10):.1f}")

# %%
# The Bayes-error plot
# --------------------
# The horizontal axis has the prior odds of a target, on a log scale; zero is one half, -4.6 is 1 %. Solid lines have
# the cost of decisions by the Bayes threshold, relative to the best decision without any evidence: above 1, the system
# is worse than no evidence. Dashed lines have the cost that the best calibration would reach.

fig, ax = plt.subplots(figsize=(5.2, 4), layout="constrained")
plot_bayes_error(systems, ax=ax)
plt.show()

# %%
# The gap between solid and dashed is miscalibration; the dashed line is how well the system tells speakers apart.

for name, (llr, _) in systems.items():
    actual, least = bayes_error(llr, target, [-np.log(99), 0.0])
    print(
        f"{name}: at 1 % {actual[0]:.2f} (least {least[0]:.2f}), at 50 % {actual[1]:.2f} (least {least[1]:.2f});",
        end=" ",
    )
    print(f"Cllr {cllr(llr, target):.2f}, minCllr {min_cllr(llr, target):.2f}")

# %%
# Take home
# ---------
# - In a Tippett plot look at where the wrong tails end, not only at where the lines cross.
# - In a Bayes-error plot look at the priors that you will meet, and at the gap between solid and dashed.
# - Both are in the page that ``duoplda report`` writes, with a slider for the prior.
#
# **When it does not hold.** Both pictures are about trials like these. The tails rest on few trials: with 100 targets
# nothing can be said about ratios that one target in a thousand has. And a ratio is not a probability of guilt: it
# must be combined with prior odds, which are not the expert's to choose (:doc:`/glossary`).
