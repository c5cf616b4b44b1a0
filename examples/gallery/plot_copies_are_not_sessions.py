"""
Copies are not sessions
=======================

One conversation that was recorded through five channels, or copied with five kinds of noise, is *one* sample of how its
speaker sounds on a day, not five. A back-end that takes the copies for sessions counts the same evidence again and
again. This page draws data from the model, and shows what that does to likelihood ratios.
"""

# %%
# Two models of the same recordings
# ---------------------------------
# There are 200 training speakers with 2 to 6 sessions of 1 to 6 recordings each. Both models are trained on the same
# vectors. ``two`` is given the session of each recording; ``plain`` takes each recording as a session of its own, which
# is what simplified PLDA does.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr, eer
from duoplda.plots import OKABE_ITO, reliability

train = make_recordings(200, (2, 6), (1, 6), n_session_factors=32, session_variance=1.0, seed=0)
two = PLDA().fit(train.X, train.speaker, session=train.session)
plain = PLDA().fit(train.X, train.speaker)

# %%
# Trials with more and more copies
# --------------------------------
# Sixty new speakers have two sessions of eight recordings. A trial compares the first ``n`` recordings of one session
# with the first ``n`` of another: sixty target trials, and 3,540 between different speakers. A third way is to average
# the copies and to score the mean as one recording.

test = make_recordings(60, 2, 8, model=train.model, seed=1)
place = np.tile(np.arange(8), len(test.X) // 8)  # of each recording in its session
first = np.char.endswith(test.session, "-0")
target = np.eye(60, dtype=bool).ravel()


def averaged(X, speaker):
    names, row = np.unique(speaker, return_inverse=True)
    return np.stack([X[row == i].mean(axis=0) for i in range(len(names))]), names


def scores(n):
    """Log-likelihood ratios of all pairs of speakers, for the three systems."""
    sides = [(test.X[of], test.speaker[of], test.session[of]) for of in (first & (place < n), ~first & (place < n))]
    return {
        "sessions named": two.llr(*(two.enroll(X, who, session) for X, who, session in sides)).ravel(),
        "copies averaged": plain.llr(*(plain.enroll(*averaged(X, who)) for X, who, _ in sides)).ravel(),
        "copies as sessions": plain.llr(*(plain.enroll(X, who) for X, who, _ in sides)).ravel(),
    }


copies = range(1, 9)
llr = {n: scores(n) for n in copies}
cost = {name: [cllr(llr[n][name], target) for n in copies] for name in llr[1]}
errors = {name: [100 * eer(llr[n][name], target) for n in copies] for name in llr[1]}

# %%
# Cllr is the cost of a likelihood ratio in bits: 0 is perfect, and 1 is the cost of a system that always says "I do not
# know". More copies should never do harm. They do if they count as sessions: from three copies on a side, the ratios
# are worse than none.

fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
for name, color, marker in zip(cost, OKABE_ITO, "os^", strict=False):
    ax.plot(copies, cost[name], color=color, marker=marker, label=name)
ax.axhline(1, color="0.5", lw=0.8, ls="--")
ax.annotate("no information", (1, 1), xytext=(0, 3), textcoords="offset points", color="0.4")
ax.set(xlabel="Recordings of one session on each side", ylabel="Cllr (bits)", yscale="log")
ax.grid(color="0.9")
ax.legend(frameon=False)
plt.show()

# %%
# The EER, which depends on the order of the trials alone, gets worse by less than Cllr, but it gets worse, too:

print("recordings      " + "".join(f"{n:8}" for n in copies))
for name in errors:
    print(f"{name:20}" + " ".join(f"{value:7.2f}" for value in errors[name]), " EER, %")

# %%
# What the ratios are worth
# -------------------------
# The picture is for five copies on each side. It shows the ratio that was given against the ratio that it is worth (by
# the best monotone calibration of these trials). The system that knows the sessions follows the diagonal. The other
# gives -40 nats, overwhelming evidence for two speakers, to trials that rather speak for one: it takes the five copies
# for five conversations in which the voice never changed, so that any other day sounds like another person.

fig, ax = plt.subplots(figsize=(5, 4.4), layout="constrained")
shown = {name: (llr[5][name], target) for name in ("sessions named", "copies as sessions")}
reliability(shown, ax=ax)
_ = ax.set(xlim=(-80, 30))
plt.show()

# %%
# Take home
# ---------
# - Name the sessions: ``fit(X, speaker, session=session)``, ``enroll(X, ids, session)``, ``--sessions utt2sess``.
# - Without names each recording counts as a session, and several copies on a side make ratios strongly over-confident.
# - Averaging the copies repairs part of that. It loses the number of copies.
#
# **When it does not hold.** With one recording against one there is next to nothing to gain (the left end of the first
# figure). If no session of the training data has two recordings, the session level cannot be learnt, and ``PLDA`` is
# then simplified PLDA. These data are drawn from the same model that is fitted; on real speech the session level
# repairs calibration, and does not lower the error rate within one condition (:doc:`/results`).
