"""
A case from end to end
======================

A recording of a call, three known sessions of one man, and a court that asks what they are worth. A ratio alone does
not answer that. It has to be calibrated and validated on people who might have spoken instead, by comparisons with the
structure of the case. No ratio may be stated that is larger than these comparisons support.
"""

# %%
# A model, a case and a population
# --------------------------------
# All recordings are drawn here, from a model with two kinds of channels, one recording of each kind in a session. One
# speaker is the man of the case; 40 others are the relevant population, which the model of the laboratory has not seen.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA, Backend
from duoplda.case import assess_case, in_log10, read_case
from duoplda.io import write_embeddings
from duoplda.plots import OKABE_ITO, tippett

d, rng = 24, np.random.default_rng(0)
V, U = rng.normal(size=(d, 12)) * 0.4, rng.normal(size=(d, d)) * 0.12
variances = np.array([0.5, 1.5])
means = np.stack([np.zeros(d), rng.normal(size=d) * 0.5])
truth = PLDA.from_parameters(means, V, U, np.eye(d) / variances[:, None, None], channels=["clean", "phone"])

X, speaker, session, kind = truth.sample(191, sessions=4, recordings=6, random_state=1)
kept = np.unique(np.char.add(session, kind), return_index=True)[1]  # the first of each kind in a session
X, speaker, session, kind = X[kept], speaker[kept], session[kept], kind[kept]
number = np.unique(speaker, return_inverse=True)[1]
train, man, others = number < 150, number == 150, number > 150
model = Backend(plda=PLDA()).fit(X[train], speaker[train], session[train], kind[train])

folder = Path(tempfile.mkdtemp())
model.save(folder / "model.safetensors")
ids = np.array([f"r{i:04}" for i in range(len(X))])
write_embeddings(folder / "case.npz", ids[man], X[man])
write_embeddings(folder / "population.npz", ids[others], X[others])
labels = np.stack([ids, speaker, session, kind], axis=1)[others]
lines = [",".join(row) for row in labels.tolist()]
(folder / "labels.csv").write_text("\n".join(["id,speaker,session,channel", *lines]) + "\n")

# %%
# The case file
# -------------
# ``duoplda case case.toml --new`` writes a template with a comment on each line. It says the two propositions in words,
# which recordings are of whom, in which session and through which kind of channel, and why these people are the
# relevant ones. The command for what follows is ``duoplda case case.toml --out case``.

rows = np.flatnonzero(man)
of_case = [f'{{ id = "{ids[i]}", session = "{session[i]}", channel = "{kind[i]}" }}' for i in rows]
known, questioned = ", ".join(of_case[:6]), of_case[7]
(folder / "case.toml").write_text(f"""version = 1
title = "The call of 4 May"
model = "model.safetensors"
scale = "ENFSI"
resamples = 200

[propositions]
same = "The man in the call is Mr A."
different = "The man in the call is another man of his town."

[known]
speaker = "Mr A"
embeddings = "case.npz"
recordings = [{known}]

[questioned]
embeddings = "case.npz"
recordings = [{questioned}]

[population]
why = "They are men of this town, recorded with the same devices."
embeddings = "population.npz"
labels = "labels.csv"
""")
record = assess_case(read_case(folder / "case.toml"))

# %%
# The answer
# ----------
# The sentence is to be read out. Where the comparisons of the population do not support a ratio as large as that of the
# model, it says "at least", with the bound.

print(record.words.sentence)
print(record.words.interval)
print(record.words.verbal)

# %%
# ``duoplda case`` writes it as a page, which begins with this (``python tools/pictures.py`` made the picture):
#
# .. image:: /_static/case.webp
#    :alt: The first page: question, sentence to be read out, what it rests on, and what must not be said
#
# What the validation supports
# ----------------------------
# Each comparison of the population has six known recordings of three sessions against one through a phone, as the case
# has. The dotted lines are the bounds, the solid one is the case before any bound.

validation, ratio = record.result.validation, record.result.ratio
ax = tippett(validation.scores, validation.labels)
log10 = [in_log10(value) for value in (ratio.support.lower, ratio.support.upper, ratio.calibrated)]
for value, style in zip(log10, (":", ":", "-"), strict=True):
    ax.axvline(value, color="0.3", ls=style)
ax.set(xlim=(-6, 6))
plt.show()
print(f"{validation.n_speakers} speakers: Cllr {validation.cllr.value:.3f}, of the model {validation.own_cllr:.3f}")
print("log10: bounds {:.2f} and {:.2f}, the case {:.2f}".format(*log10))

# %%
# What it rests on
# ----------------
# This is the ratio, calibrated anew in its structure, if one thing were different. None of these is another answer:
# they show what the answer depends on.

changes = {f"without session {share.session}": share.without for share in record.result.sessions}
changes |= {change.what: change.calibrated for change in record.result.sensitivity}
changes = {what: in_log10(value) for what, value in changes.items() if value is not None}
ax = plt.figure(figsize=(6, 3.4), layout="constrained").add_subplot()
ax.plot(list(changes.values()), range(len(changes)), "o", color=OKABE_ITO[0])
ax.axvline(log10[2], color="0.3")
ax.set_yticks(range(len(changes)), list(changes))
ax.invert_yaxis()
_ = ax.set(xlabel="log10 likelihood ratio before any bound")
plt.show()

# %%
# Take home
# ---------
# - The number for the court is what the validation supports, not what the model says.
# - The known speaker's sessions, the channels and the population each have a line in the table of sensitivity.
# - The page also says what must not be said, and how to repeat it all: ``case.json`` has the numbers and hashes.
#
# **When it does not hold.** The data are drawn here, so that the model is right except for errors of its training, and
# the population is the right one. With real recordings it is for the examiner to say why these people are relevant, and
# why their recordings are like those of the case; without a population of ten speakers, or in another domain,
# ``duoplda case`` refuses to state a ratio. See :doc:`/court`, and :doc:`plot_tippett_and_bayes_error`.
