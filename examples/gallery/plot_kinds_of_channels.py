"""
Kinds of channels
=================

A close microphone, a telephone and a low-rate codec are not equally noisy. With one noise for all, a codec recording
counts for too much, and a clean one for too little. A noise covariance for each kind repairs that, and the kind of a
test recording need not even be known.
"""

# %%
# Recordings of three kinds
# -------------------------
# A model with three kinds is made up here: the noise of "codec" has eight times the variance of "clean", and the mean
# of "phone" lies elsewhere. Recordings are drawn from it.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.metrics import cllr, eer
from duoplda.plots import OKABE_ITO

d, names, variances = 24, np.array(["clean", "phone", "codec"]), np.array([0.5, 1.0, 4.0])
rng = np.random.default_rng(0)
V, U = rng.normal(size=(d, 12)) * 0.35, rng.normal(size=(d, d)) * 0.15
means = np.zeros((3, d))
means[1] = rng.normal(size=d) * 0.5
truth = PLDA.from_parameters(means, V, U, np.eye(d) / variances[:, None, None], channels=names)

X, speaker, session, kind = truth.sample(250, sessions=3, recordings=3, random_state=1)
print(f"{len(X)} recordings:", ", ".join(f"{(kind == name).sum()} {name}" for name in names))

# %%
# One noise, or one for each kind
# -------------------------------

one_noise = PLDA().fit(X, speaker, session=session)
kinds = PLDA().fit(X, speaker, session=session, channel=kind)
learnt = [np.trace(np.linalg.inv(W)) / d for W in kinds.noise_precision_]
for name, variance in zip(kinds.channels_, learnt, strict=True):
    print(f"{name}: noise variance {variance:.2f} learnt, {variances[names == name][0]:.2f} true")

# %%
# Trials between all kinds
# ------------------------
# Each of 300 new speakers has two sessions of one recording. The first is enrolled, the second tested.

test_X, test_speaker, test_session, test_kind = truth.sample(300, sessions=2, recordings=1, random_state=2)
first = np.char.endswith(test_session.astype(str), "-0")


def ratios(plda, channel=None):
    sides = [
        plda.enroll(test_X[of], test_speaker[of], test_session[of], None if channel is None else channel[of])
        for of in (first, ~first)
    ]
    return plda.llr(*sides).ravel(), sides


llr, sides = {}, []
llr["one noise"], sides = ratios(one_noise)
llr["kinds, inferred"], _ = ratios(kinds)
llr["kinds, known"], _ = ratios(kinds, test_kind)
target = (sides[0].ids[:, None] == sides[1].ids).ravel()
cost = {name: cllr(s, target) for name, s in llr.items()}
for name, s in llr.items():
    print(f"{name:16} EER {100 * eer(s, target):5.2f} %, Cllr {cost[name]:.3f}")

# %%
# This shows where the gain comes from: the cost of the trials by the kind of their noisier side.

rank = {name: i for i, name in enumerate(names)}
kind_of = [dict(zip(test_speaker[of], test_kind[of], strict=True)) for of in (first, ~first)]
a, b = (np.array([rank[own[who]] for who in side.ids]) for own, side in zip(kind_of, sides, strict=True))
noisier = np.maximum(a[:, None], b).ravel()
by_kind = {name: [cllr(s[noisier == k], target[noisier == k]) for k in range(3)] for name, s in llr.items()}

fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
for i, (name, values) in enumerate(by_kind.items()):
    ax.bar(np.arange(3) + 0.26 * (i - 1), values, 0.26, color=OKABE_ITO[i], label=name)
ax.set_xticks(range(3), names)
ax.set(xlabel="Noisier side of the trial", ylabel="Cllr (bits)")
ax.grid(axis="y", color="0.9")
ax.set_axisbelow(True)
ax.legend(frameon=False)
plt.show()

# %%
# The kind is inferred in this way: each recording has a posterior over the kinds, and ratios are averaged over it.

posterior = kinds.channel_posterior(test_X)
found = kinds.channels_[posterior.argmax(axis=1)]
right = (found == test_kind).mean()
print(f"{100 * right:.1f} % of the test recordings have the highest posterior for their own kind")

# %%
# Take home
# ---------
# - Where kinds are labelled in training, pass them: ``fit(..., channel=kind)``, ``--channels utt2channel``.
# - Trials need no labels: where the kind is inferred, most of the gain is kept.
# - Where nobody labelled them, ``PLDA(n_channels=3)`` learns kinds from sessions with several recordings.
#
# **When it does not hold.** If the kinds do not differ in their noise there is nothing to gain. A kind with few
# recordings cannot have a full covariance of its own: kinds are then moved towards each other by shrinkage. And a kind
# that training has not seen is treated as the most similar one (:doc:`/choosing`, leaves D and E).
