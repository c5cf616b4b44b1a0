"""
A million trials
================

All of a thousand models against all of a thousand tests are a million likelihood ratios between *sets* of recordings.
They are computed exactly, by a few matrix products: each set is summed up once, and its recordings are not needed
again.
"""

# %%
# A thousand models, a thousand tests
# -----------------------------------
# A model has one to three sessions, a test has one. Sets of different sizes are mixed freely.

import time

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr, eer
from duoplda.plots import det, histogram

sizes = {"n_dimensions": 64, "n_speaker_factors": 32, "n_session_factors": 64, "speaker_variance": 0.5}
train = make_recordings(300, (2, 4), (1, 4), seed=0, **sizes)
plda = PLDA().fit(train.X, train.speaker, session=train.session)

data = make_recordings(1000, (2, 4), (1, 4), model=train.model, seed=1)
tested = np.char.endswith(data.session, "-0")  # the first session of each is the test
enrolled = plda.enroll(data.X[~tested], data.speaker[~tested], data.session[~tested])
tests = plda.enroll(data.X[tested], data.speaker[tested], data.session[tested])
print(len(enrolled), "models,", len(tests), "tests")

# %%
# All of them
# -----------

start = time.perf_counter()
llr = plda.llr(enrolled, tests)
seconds = time.perf_counter() - start
target = enrolled.ids[:, None] == tests.ids
print(f"{llr.size:,} ratios in {seconds:.2f} s on the machine that made this page")
print(f"EER {100 * eer(llr.ravel(), target.ravel()):.2f} %, Cllr {cllr(llr.ravel(), target.ravel()):.3f}")

fig, ax = plt.subplots(figsize=(5.2, 3.8), layout="constrained")
histogram(llr.ravel(), target.ravel(), ax=ax)
_ = ax.set(xlim=(-150, 40))
plt.show()

# %%
# With a million trials, low error rates can be measured, as far as there are enough targets: a thousand here.

fig, ax = plt.subplots(figsize=(4.8, 4.8), layout="constrained")
det({"a million trials": (llr.ravel(), target.ravel())}, ax=ax)
plt.show()

# %%
# Are they exact?
# ---------------
# This computes one trial from its definition: the log density of all recordings under one speaker, less that under two.

k, j = 3, 5
X, who, session = data.X, data.speaker, data.session
rows = np.concatenate(
    [np.flatnonzero(~tested & (who == enrolled.ids[k])), np.flatnonzero(tested & (who == tests.ids[j]))]
)
one = plda.partition_log_likelihood(X[rows], np.zeros(len(rows)), session[rows])
two = plda.partition_log_likelihood(X[rows], who[rows], session[rows])
print(f"{llr[k, j]:.10f} from the matrix, {one - two:.10f} from the definition")

# %%
# More than fits in memory
# ------------------------
# The matrix need not exist. ``llr_blocks`` gives it a few columns at a time, and ``top`` keeps the highest-scoring
# models of each test. ``duoplda.score`` does the same for recordings that are read from files in chunks.

highest = max(float(block.max()) for _, block in plda.llr_blocks(enrolled, tests, cells=100_000))
models, scores = plda.top(enrolled, tests, k=3)
right = (enrolled.ids[models[:, 0]] == tests.ids).mean()
print(f"the highest ratio is {highest:.1f}; for {100 * right:.1f} % of the tests the right model is the first of 1,000")

# %%
# Take home
# ---------
# - Enrol once, score all pairs: ``plda.llr(enrolled, tests)``. There is no loop over trials, whatever the sets.
# - ``pairs=`` scores a list of trials, ``llr_blocks`` and ``top`` never hold the whole matrix.
# - On the command line: ``duoplda score --matrix`` or ``--top 10``.
#
# **When it does not hold.** The time is that of matrix products if the sets have few types (numbers of recordings in
# sessions). Where nearly every set has a type of its own, it takes longer. The times of larger jobs, also on a GPU, are
# in :doc:`/performance`.
