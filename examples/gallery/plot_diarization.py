"""
One conversation, diarised
==========================

Who speaks when? A conversation is cut into windows, each window has an embedding, and the model assigns the windows to
speakers. This page draws a conversation of four people, finds their turns, and shows the one setting to get right.
"""

# %%
# A model, and a conversation
# ---------------------------
# In training, a session was one file, and its recordings were the segments of that file. All windows of a speaker in a
# new file are then recordings of *one* session. The conversation lasts six minutes; its turns are drawn.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.diarization import Segments, Turns, der, diarize
from duoplda.io import Coded
from duoplda.plots import OKABE_ITO

sizes = {"n_speaker_factors": 16, "n_session_factors": 24, "session_variance": 1.5, "channel_variance": 1.0}
train = make_recordings(200, (2, 4), (4, 8), seed=0, **sizes)
plda = PLDA().fit(train.X, train.speaker, session=train.session)

rng = np.random.default_rng(4)
people = np.array(["Ann", "Bob", "Cem", "Dora"])
lengths = rng.gamma(2.0, 5.0, size=80) + 1.0
ends = np.cumsum(lengths)
ends = np.append(ends[ends < 360], 360.0)
starts = np.append(0.0, ends[:-1])
turn_speaker = np.array([0])
while len(turn_speaker) < len(ends):  # nobody follows himself
    turn_speaker = np.append(turn_speaker, rng.choice(np.delete(np.arange(4), turn_speaker[-1])))
truth = Turns.of(["talk"] * len(ends), starts, ends - starts, people[turn_speaker])

# %%
# Windows of 1.5 seconds, side by side. A window over a change of speakers contains both voices.

begin = np.arange(0.0, 360.0, 1.5)
voices = make_recordings(4, 1, len(begin), model=train.model, seed=6).X.reshape(4, len(begin), -1)
overlap = np.minimum(begin[:, None] + 1.5, ends) - np.maximum(begin[:, None], starts)  # (windows, turns), seconds
share = np.stack([overlap.clip(0)[:, turn_speaker == k].sum(axis=1) for k in range(4)]) / 1.5
X = (share[:, :, None] * voices).sum(axis=0)
ids = np.array([f"talk-{i:03}" for i in range(len(begin))])
windows = Segments(ids, Coded.of(["talk"] * len(begin)), begin, begin + 1.5)

# %%
# The turns
# ---------
# Runs of windows are merged by exact likelihood ratios, and the HMM of VBx then smooths over time. The number of
# speakers is found, too, unless it is given: windows that contain two voices can look like a further speaker.

found = diarize(plda, X, windows, segments_are="recordings", n_speakers=4)
errors = der(found, truth)
n_found = len(np.unique(found.speaker.values))
print(f"{n_found} speakers found, diarisation error rate {100 * errors.rate:.1f} %")

# %%
# Speakers of the two rows are matched by the time they share, and have the same colour.

names = np.unique(found.speaker.values)


def together(name, k):
    """Seconds in which a speaker who was found and a true one speak."""
    own = found[found.speaker.values == name]
    of = turn_speaker == k
    both = np.minimum(own.end[:, None], ends[of]) - np.maximum(own.start[:, None], starts[of])
    return both.clip(0).sum()


match = {name: int(np.argmax([together(name, k) for k in range(4)])) for name in names}
fig, ax = plt.subplots(figsize=(5.6, 2.6), layout="constrained")
rows = [(1, truth, [int(k) for k in turn_speaker]), (0, found, [match[s] for s in found.speaker.values])]
for y, turns, who in rows:
    ax.barh([y] * len(who), turns.end - turns.start, left=turns.start, height=0.7, color=[OKABE_ITO[k] for k in who])
for k, person in enumerate(people):
    ax.bar(0, 0, color=OKABE_ITO[k], label=person)
ax.set_yticks([0, 1], ["found", "truth"])
ax.set(xlabel="Seconds", xlim=(0, 360))
ax.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
plt.show()

# %%
# The setting to get right
# ------------------------
# ``segments_are="sessions"`` would say that each window is a session of its own, as in training with augmented copies
# of utterances. For this model it is wrong: windows of one speaker in a file differ by less than the sessions of its
# training. How much that costs depends on how much sessions vary. Here it is little; :doc:`/diarization` has a case
# where it is most.

wrong = diarize(plda, X, windows, segments_are="sessions")
wrong_errors = der(wrong, truth)
print(f"wrong level: {len(np.unique(wrong.speaker.values))} speakers, error rate {100 * wrong_errors.rate:.1f} %")

# %%
# Take home
# ---------
# - ``diarize`` needs windows, their embeddings and a model; the number of speakers is found, or given if it is known.
# - Say in training what a session is (``duoplda train --sessions-are files``), and the model file keeps it.
# - In files: ``duoplda diarize --model m.safetensors --embeddings x.ark --segments x.seg --out x.rttm``.
#
# **When it does not hold.** Each window goes to one speaker, so speech of two at a time is missed. Another tool must
# find which parts are speech. Windows here do not overlap and their noise is independent; real windows are neither.
# What was measured on real files is in :doc:`/diarization`.
