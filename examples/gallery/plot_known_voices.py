"""
Who is this?
============

A registry of known voices answers with probabilities: it is Ann, or somebody else. The more people are known, the more
evidence a name needs.
"""

# %%
# A registry
# ----------
# A model of 200 speakers, and 60 new people with five sessions of two recordings. Half of them are enrolled with three
# sessions each; the other half are strangers. Tests are the last two sessions of everybody.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.voices import Costs, Registry

sizes = {"n_dimensions": 24, "n_speaker_factors": 16, "n_session_factors": 12}
train = make_recordings(200, (2, 6), (1, 4), seed=0, session_variance=1.2, **sizes)
plda = PLDA().fit(train.X, train.speaker, session=train.session)
new = make_recordings(60, 5, 2, model=train.model, seed=1, n_dimensions=24)
number = np.array([int(name.rpartition("-")[2]) for name in new.session])
people = np.unique(new.speaker)

registry = Registry.create(Path(tempfile.mkdtemp(), "voices.db"), plda)
for name in people[:30]:
    rows = (new.speaker == name) & (number < 3)
    registry.add(str(name), new.X[rows], new.session[rows], by="the clerk")
print(len(registry), "voices; the first one:", registry.voices()[0].name, registry.voices()[0].n_sessions, "sessions")

# %%
# Asking
# ------

answers = []
for session in np.unique(new.session[number >= 3]):
    rows = new.session == session
    answers.append((str(new.speaker[rows][0]), registry.identify(new.X[rows], session=str(session))))

who, answer = answers[0]
print(f"{who} speaks. The answer: {answer.decision}, {answer.name}; somebody else {answer.someone_else:.4f}")
for candidate in answer.candidates[:3]:
    print(f"  {candidate.name:6} {candidate.llr:+6.1f} nats, posterior {candidate.posterior:.4f}")

# %%
# How often is it right, and how often is a stranger named? The costs decide: if a wrong name costs ten times as much, a
# name needs a posterior of .95.

known = {str(name) for name in people[:30]}
for limit in (0.5, 0.95):
    top = [(who, a.candidates[0]) for who, a in answers]
    named = [(who, c.name) for who, c in top if c.posterior > limit]
    right = sum(who == name for who, name in named)
    strangers = sum(who not in known for who, name in named)
    print(
        f"posterior > {limit}: {right} of 60 right, {len(named) - right - strangers} wrong, {strangers} strangers named"
    )

rows = new.session == new.session[-1]
print("with costs:", registry.identify(new.X[rows], session="call", costs=Costs(wrong_name=10)).decision)

# %%
# A posterior that means what it says
# -----------------------------------
# Of all answers whose highest posterior is about .8, eight in ten should be right.

value = np.array([a.candidates[0].posterior for _, a in answers])
hit = np.array([a.candidates[0].name == who for who, a in answers])
order = np.argsort(value)
groups = [part for part in np.array_split(order, 6) if len(part)]
fig, ax = plt.subplots(figsize=(4.2, 4), layout="constrained")
ax.plot([0, 1], [0, 1], color="0.7", linewidth=1)
ax.plot([value[part].mean() for part in groups], [hit[part].mean() for part in groups], "o-")
_ = ax.set(
    xlabel="Highest posterior (mean of a sixth)", ylabel="Share that is right", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03)
)
plt.show()

# %%
# Two speakers of one file
# ------------------------
# Local speakers of a diarised file are different people. Both sound like the first voice here; only one of them can be
# it, so that their probabilities add up to 1 at most.

first = (new.speaker == people[0]) & (number == 3)
speakers = {"SPEAKER_00": new.X[first][:1], "SPEAKER_01": new.X[first][1:]}
for once in (True, False):
    told = registry.name_speakers(speakers, once=once)
    print(
        f"no voice twice: {once}", {label: (a.name, round(a.candidates[0].posterior, 2)) for label, a in told.items()}
    )

# %%
# Forgetting
# ----------
# A session, or a person, can be taken out again. Nothing of them is left in the file.

registry.remove_session(str(people[0]), registry.voice(str(people[0])).sessions[0].name)
registry.remove(str(people[1]))
print(len(registry), "voices;", registry.voice(str(people[0])).n_sessions, "sessions of the first one")
registry.close()

# %%
# Take home
# ---------
# - Give sessions: copies of one conversation must not count as evidence of their own.
# - Set the prior to what you expect (``known=``, or by name), and costs to what mistakes cost you.
# - ``duoplda voices`` and ``duoplda identify`` do the same on the command line: :doc:`/voices`.
#
# **When it does not hold.** With recordings of another domain posteriors mislead; ``domain_warning`` of an answer of a
# ``Backend`` says so.
