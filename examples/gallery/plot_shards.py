"""
Statistics from shards
======================

Training needs sums, not recordings. Sums of shards can be added, on one machine or on a thousand, and give the model
that all recordings at once would give. One thing needs care: sessions that lie in two shards.
"""

# %%
# Recordings in five shards
# -------------------------
# They are shuffled first, so that the recordings of a session lie in several shards. That is what happens to augmented
# copies, which are often made, and stored, one kind after another.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA, DuopldaError, Recordings, Statistics
from duoplda.datasets import make_recordings
from duoplda.plots import OKABE_ITO, variance_directions

X, speaker, session, model = make_recordings(200, (2, 5), (2, 5), seed=0)
shards = np.array_split(np.random.default_rng(0).permutation(len(X)), 5)
cut = sum(len({*session[a]} & {*session[b]}) for i, a in enumerate(shards) for b in shards[:i])
print(f"{len(X)} recordings in {len(shards)} shards; sessions are shared by pairs of shards {cut} times")

# %%
# Add, then close
# ---------------
# With ``close=False`` the sums of sessions are kept apart under their names, so that they can still grow. ``close``
# squares them, when all shards are there.

parts = [Statistics.from_arrays(X[of], speaker[of], session[of], close=False) for of in shards]
stats = sum(parts).close()
print(f"{stats.n_recordings:.0f} recordings, {stats.n_sessions:.0f} sessions, {stats.n_speakers:.0f} speakers")

added = PLDA().fit_statistics(stats)
whole = PLDA().fit(X, speaker, session=session)
apart = np.abs(added.noise_precision_ - whole.noise_precision_).max() / np.abs(whole.noise_precision_).max()
print(f"the noise differs from that of one training on all recordings by {apart:.0e} of its largest element")

# %%
# Closed too early
# ----------------
# Shards that close their own sessions cannot be joined where they share one, and the library says so:

closed = [Statistics.from_arrays(X[of], speaker[of], session[of]) for of in shards]
try:
    sum(closed)
except DuopldaError as error:
    print(error)

# %%
# The library cannot notice this if each shard has names of its own. A conversation of five recordings then becomes up
# to five conversations. What its recordings have in common seems to occur on several days, and is attributed to the
# speaker: the speaker variance becomes too large.

own_names = [np.char.add(session[of], f"@{i}") for i, of in enumerate(shards)]
early = Statistics.sum(
    [Statistics.from_arrays(X[of], speaker[of], names) for of, names in zip(shards, own_names, strict=True)]
)
wrong = PLDA().fit_statistics(early)
print(f"{early.n_sessions:.0f} sessions instead of {stats.n_sessions:.0f}")

levels = ("speaker", "session", "channel")
truth = PLDA.from_parameters(model.mu[0], model.V, model.U, model.W[0])
shares = {
    "the truth": variance_directions(truth).total,
    "all at once": variance_directions(whole).total,
    "shards, closed\nat the end": variance_directions(added).total,
    "shards, names\nof their own": variance_directions(wrong).total,
}
for name, values in shares.items():
    print(
        f"{name.replace(chr(10), ' '):27}"
        + ", ".join(f"{level} {100 * v:4.1f} %" for level, v in zip(levels, values, strict=True))
    )

# %%
fig, ax = plt.subplots(figsize=(5.4, 3), layout="constrained")
left = np.zeros(len(shares))
for level, color, hatch in zip(levels, (OKABE_ITO[0], OKABE_ITO[4], OKABE_ITO[5]), ("", "///", "..."), strict=True):
    width = np.array([100 * values[levels.index(level)] for values in shares.values()])
    ax.barh(list(shares), width, left=left, color=color, hatch=hatch, edgecolor="white", label=level)
    left += width
ax.invert_yaxis()
ax.set(xlabel="Share of the variance (%)", xlim=(0, 100))
ax.legend(ncols=3, loc="lower left", bbox_to_anchor=(-0.1, 1), frameon=False)
plt.show()

# %%
# Without thinking about it
# -------------------------
# ``Recordings`` are read in chunks, and sessions that chunks cut are joined. Files, Parquet shards and a Dask cluster
# are read in the same way, so that cut sessions need no care there.

order = np.concatenate(shards)
chunked = Recordings.from_chunks(lambda: (X[of] for of in shards), speaker[order], session[order])
streamed = PLDA().fit_statistics(Statistics.of(chunked))
same = np.allclose(streamed.noise_precision_, whole.noise_precision_, rtol=1e-4)
print("chunks give the same model:", same)

# %%
# Take home
# ---------
# - ``Statistics`` of shards add up: ``PLDA().fit_statistics(sum(parts).close())``.
# - Use ``close=False`` wherever a session may lie in two shards, and names of sessions that hold in all shards.
# - ``duoplda train --embeddings shards/ --labels shards/`` does all this for a folder (:doc:`/cluster`).
#
# **When it does not hold.** ``shrinkage="auto"`` needs more than sums: folds of speakers, and a sample of recordings
# for held-out trials (``n_folds`` of ``Statistics.of``, or ``Backend.fit`` on ``Recordings``). Length normalisation is
# no linear map, so its mean must be known before the sums are made.
