"""
Who is who: clusters without a number
=====================================

Nobody has written down who speaks in a set of recordings. Clustering by exact likelihood ratios finds the speakers, and
how many there are. There is no threshold to tune; but clustering must know which recordings are copies.
"""

# %%
# A model from labelled data, and recordings without labels
# ---------------------------------------------------------
# The recordings without labels are of 25 speakers with 1 to 8 sessions each, and 1 to 5 recordings of a session. None
# of these speakers was in the training of the model.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import b_cubed
from duoplda.plots import cluster_map, dendrogram

sizes = {"n_dimensions": 48, "n_speaker_factors": 24, "n_session_factors": 48}
train = make_recordings(300, (2, 5), (1, 5), session_variance=1.0, seed=0, **sizes)
plda = PLDA().fit(train.X, train.speaker, session=train.session)
pile = make_recordings(25, (1, 8), (1, 5), model=train.model, seed=7)

found = plda.cluster(pile.X, pile.session)
quality = b_cubed(found.labels, pile.speaker)
print(f"{len(pile.X)} recordings, {len(np.unique(pile.session))} sessions: {len(found)} speakers found, 25 are there")
print(f"B-cubed precision {quality.precision:.3f}, recall {quality.recall:.3f}, F {quality.f:.3f}")

# %%
# The tree
# --------
# Every session begins as a speaker of its own. The pair that gains most is merged, again and again, while the partition
# becomes more probable. Clusters that are not joined in the picture would not have gained by a merge.

fig, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
dendrogram(found, ax=ax)
plt.show()

# %%
# The speakers in the plane of the first two directions of their means, by the number of their sessions:

fig, ax = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
cluster_map(found, ax=ax)
plt.show()

# %%
# What to listen to
# -----------------
# Each session has a margin: how much better it fits its cluster than the next best, in nats. The sessions with the
# smallest margins are those to listen to first.

doubtful = np.argsort(found.margin)[:5]
for item in doubtful:
    rows = np.flatnonzero(found.item == item)
    second = "a speaker of its own" if found.runner_up[item] < 0 else found.names[found.runner_up[item]]
    name = found.names[found.labels[rows[0]]]
    print(f"session {pile.session[rows[0]]} is in {name}, then {second}: margin {found.margin[item]:.1f} nats")

# %%
# Copies must be named here too
# -----------------------------
# These are the same recordings, with a model and a clustering in which each recording counts as a session. Copies of
# one conversation are more alike than conversations of one speaker, so speakers are split into several clusters.

plain = PLDA().fit(train.X, train.speaker)
pieces = plain.cluster(pile.X)
copies = b_cubed(pieces.labels, pile.speaker)
print(f"copies as sessions: {len(pieces)} speakers found, F {copies.f:.3f}")
print(f"sessions named:     {len(found)} speakers found, F {quality.f:.3f}")

# %%
# The prior hardly matters where there is evidence. It is the probability that two random sessions are of one speaker;
# for 25 speakers with equally many sessions it is 0.04.

priors = [0.002, 0.02, 0.2]
numbers = [len(plda.cluster(pile.X, pile.session, prior=p)) for p in priors]
for p, n in zip(priors, numbers, strict=True):
    print(f"prior {p:5}: {n} speakers")

# %%
# Take home
# ---------
# - ``plda.cluster(X, session)`` (or ``backend.cluster``, ``duoplda cluster``) finds who is who, and how many.
# - Name the sessions. Copies that count as sessions split speakers into several clusters.
# - Look at the smallest margins, and at ``split`` and ``merge`` of the clusters.
#
# **When it does not hold.** On real speech too many speakers are found rather than too few: 55 for 50 with five
# channels of each session, 67 with one. With equally many sessions of all channels for every speaker, spectral
# clustering does as well (:doc:`/clustering`). A model of another domain should be adapted first.
