"""
Enrolment with several recordings
=================================

How much is an enrolment of three sessions worth, and how much one session through three channels? Both have three
recordings. The model weighs each set by its sessions and recordings. There is nothing to average.
"""

# %%
# Sets of every size
# ------------------
# A model for training, and 150 new speakers with five sessions of four recordings. One more session of each, with one
# recording, is the test.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr, eer

train = make_recordings(300, (2, 6), (1, 5), n_session_factors=32, session_variance=1.0, seed=0)
plda = PLDA().fit(train.X, train.speaker, session=train.session)

data = make_recordings(150, 6, 4, model=train.model, seed=1)
number = np.array([int(name.rpartition("-")[2]) for name in data.session])
place = np.tile(np.arange(4), len(data.X) // 4)
tested = (number == 5) & (place == 0)
tests = plda.enroll(data.X[tested], data.speaker[tested], data.session[tested])

# %%
# Enrolments of 1 to 5 sessions with 1 to 4 recordings each; the cost of the ratios, in bits:

sessions, recordings = range(1, 6), range(1, 5)
cost, errors, llr = {}, {}, {}
for j in sessions:
    for k in recordings:
        of = (number < j) & (place < k)
        enrolled = plda.enroll(data.X[of], data.speaker[of], data.session[of])
        target = enrolled.ids[:, None] == tests.ids
        llr[j, k] = plda.llr(enrolled, tests)
        cost[j, k] = cllr(llr[j, k].ravel(), target.ravel())
        errors[j, k] = 100 * eer(llr[j, k].ravel(), target.ravel())

table = np.array([[cost[j, k] for j in sessions] for k in recordings])
fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
image = ax.imshow(table, cmap="viridis_r", origin="lower", aspect="auto")
for (row, column), value in np.ndenumerate(table):
    bright = value > (table.min() + table.max()) / 2
    ax.text(column, row, f"{value:.3f}", ha="center", va="center", color="white" if bright else "black")
ax.set_xticks(range(5), [str(j) for j in sessions])
ax.set_yticks(range(4), [str(k) for k in recordings])
_ = ax.set(xlabel="Sessions of the enrolment", ylabel="Recordings of each session", title="Cllr (bits)")
plt.show()

# %%
# Four recordings in four sessions, or in one? Sessions are worth more than copies, and a second copy is worth more than
# a fourth:

for j, k in ((1, 1), (1, 2), (1, 4), (2, 2), (4, 1)):
    print(f"{j} session(s) x {k} recording(s): EER {errors[j, k]:.2f} %, Cllr {cost[j, k]:.3f}")

# %%
# Ratios of different enrolments can be compared with each other. Pooled over all sizes, one threshold serves all; if
# copies count as sessions, every size has a scale of its own.

pooled = np.concatenate([values.ravel() for values in llr.values()])
targets = np.tile(target.ravel(), len(llr))
plain = PLDA().fit(train.X, train.speaker)
plain_tests = plain.enroll(data.X[tested], data.speaker[tested])
book = []
for j in sessions:
    for k in recordings:
        of = (number < j) & (place < k)
        book.append(plain.llr(plain.enroll(data.X[of], data.speaker[of]), plain_tests).ravel())
book = np.concatenate(book)
for name, s in (("sessions named", pooled), ("copies as sessions", book)):
    print(f"{name:20} pooled EER {100 * eer(s, targets):.2f} %, Cllr {cllr(s, targets):.3f}")

# %%
# Later recordings
# ----------------
# An enrolment is a few numbers, however many recordings it has. New sessions are added to it, and the result is that of
# enrolling all of them at once.

of = (number < 2) & (place < 2)
early, late = of & (number == 0), of & (number == 1)
voices = plda.enroll(data.X[early], data.speaker[early], data.session[early])
voices = voices.add(plda.enroll(data.X[late], data.speaker[late], data.session[late]))
print("largest difference:", f"{np.abs(plda.llr(voices, tests) - llr[2, 2]).max():.0e}", "nats")

# %%
# Take home
# ---------
# - Enrol the set, with its sessions; do not average vectors or scores.
# - If you can choose, record on another day rather than through another channel.
# - ``Sides.add`` and ``duoplda enroll --add-to`` take new recordings into an old enrolment.
#
# **When it does not hold.** Without session names each recording counts as a session, and copies make the ratios
# over-confident. How much a session is worth depends on the variances: where channels vary far more than sessions,
# copies through other channels are worth more than here. On real speech see the columns 1x1 to 3x5 in :doc:`/results`.
