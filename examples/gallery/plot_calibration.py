"""
What calibration means
======================

A likelihood ratio makes a promise: evidence with a ratio of 10 is ten times as frequent among trials of one speaker as
among trials of two. A system is calibrated if it keeps that promise. This page checks it by counting, breaks it, and
repairs it.
"""

# %%
# Ratios that are right by construction
# -------------------------------------
# Recordings are drawn from a model, and scored by the same model: there is nothing to estimate, so the ratios are
# exactly what they say. One recording against one; 4,000 target trials, and 40,000 between different speakers.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.calibration import AffineCalibration
from duoplda.datasets import make_recordings
from duoplda.metrics import act_dcf, cllr, eer, min_cllr, min_dcf
from duoplda.plots import OKABE_ITO, reliability

data = make_recordings(4000, 2, 1, n_dimensions=24, n_speaker_factors=12, seed=3)
truth = PLDA.from_parameters(data.model.mu[0], data.model.V, data.model.U, data.model.W[0])


def trials(recordings):
    """The first session of each speaker against the second of the same and of ten others: ratios, and the truth."""
    first = np.char.endswith(recordings.session, "-0")
    enrolled, tests = (truth.enroll(recordings.X[of], recordings.speaker[of]) for of in (first, ~first))
    n = len(enrolled)
    row, others = np.repeat(np.arange(n), 11), np.tile(np.arange(11), n)
    pairs = np.stack([row, (row + others) % n], axis=1)
    return truth.llr(enrolled, tests, pairs=pairs), enrolled.ids[pairs[:, 0]] == tests.ids[pairs[:, 1]]


llr, target = trials(data)

# %%
# Take all trials whose ratio lies between 1 and 2 nats (a likelihood ratio of 2.7 to 7.4). How frequent are such trials
# among the targets, and how frequent are they among the non-targets?

for low in (-4, -2, 0, 1, 2, 4):
    within = (llr >= low) & (llr < low + 1)
    ratio = within[target].mean() / within[~target].mean()
    print(f"LLR from {low:2} to {low + 1:2}: found {np.log(ratio):5.2f}")

# %%
# Three ways to break it
# ----------------------
# None of these changes the order of the trials, so none of them changes the EER. All of them break the promise.

systems = {
    "calibrated": llr,
    "too sure (3 times)": 3 * llr,
    "too cautious (a third)": llr / 3,
    "shifted (by 3 nats)": llr + 3,
}
print(f"{'':24}  EER %   Cllr  minCllr  actDCF  minDCF")
for name, s in systems.items():
    row = 100 * eer(s, target), cllr(s, target), min_cllr(s, target), act_dcf(s, target), min_dcf(s, target)
    print(f"{name:24} {row[0]:6.2f} {row[1]:6.3f} {row[2]:8.3f} {row[3]:7.3f} {row[4]:7.3f}")

# %%
# The least cost (``min``) is what the best monotone map could reach; the difference is what miscalibration costs. In
# the picture, a calibrated system follows the diagonal, a slope below 1 means that it is over-confident, and a system
# that lies beside the diagonal is shifted.

fig, ax = plt.subplots(figsize=(5, 4.8), layout="constrained")
reliability({name: (s, target) for name, s in systems.items()}, ax=ax)
_ = ax.set(xlim=(-15, 15))
plt.show()

# %%
# Repairing it
# ------------
# Prior-weighted logistic regression on trials of *other* speakers finds a scale and an offset. Here they undo what was
# done above.

others = make_recordings(4000, 2, 1, model=data.model, seed=4)
other_llr, other_target = trials(others)
repaired, fitted = {}, {}
broken = {"too sure (3 times)": 3 * other_llr, "shifted (by 3 nats)": other_llr + 3}
for name, development in broken.items():
    fitted[name] = AffineCalibration().fit(development, other_target)
    repaired[name] = fitted[name].transform(systems[name])
    scale, offset = fitted[name].scale_, fitted[name].offset_
    print(f"{name}: {scale:.2f} x score {offset:+.2f}; Cllr {cllr(repaired[name], target):.3f}")

# %%
# Calibrated ratios have a practical use: at any prior and any costs, the threshold follows from a formula, and need not
# be tuned. At a prior of 1 % the Bayes threshold is ln 99, about 4.6 nats.

costs = {name: [act_dcf(s, target, p) for p in (0.01, 0.1, 0.5)] for name, s in systems.items()}
fig, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
for i, (name, values) in enumerate(costs.items()):
    ax.bar(np.arange(3) + 0.2 * (i - 1.5), values, 0.2, color=OKABE_ITO[i], label=name)
ax.axhline(1, color="0.5", lw=0.8, ls="--")
ax.set_xticks(range(3), ["1 %", "10 %", "50 %"])
ax.set(xlabel="Prior of a target", ylabel="Cost of Bayes decisions", ylim=(0, 2.4))
ax.legend(frameon=False, fontsize="small")
plt.show()

# %%
# Take home
# ---------
# - The EER says how well trials are ordered. Cllr says how good the ratios are, calibration included.
# - Compare Cllr with minCllr, and actDCF with minDCF: a gap is miscalibration, which two numbers often repair.
# - ``Backend`` and ``duoplda train`` calibrate by held-out speakers as a part of training.
#
# **When it does not hold.** A calibration is for the trials that it was learnt on. Other durations, channels or
# languages need their own (:doc:`/calibration`, :doc:`/adaptation`). And no monotone map improves how well a system
# tells speakers apart: minCllr stays.
