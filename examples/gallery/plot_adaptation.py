"""
Another domain: adaptation
==========================

A model is used for recordings unlike its training data: other microphones, another language. Its likelihood ratios
become misleading, and nothing in a single ratio shows that. The library warns, and ``adapt`` makes a model for the new
domain, with as many labels as there are.
"""

# %%
# A source and a target
# ---------------------
# The target's recordings are drawn from the same model and then transformed: they have another mean, and some
# directions are scaled. 24 speakers of the target may be used for adaptation, 60 others are tested.

import warnings

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA, Backend, DomainWarning, score
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr, eer
from duoplda.plots import OKABE_ITO

train = make_recordings(150, (2, 5), (1, 4), seed=0)
rng = np.random.default_rng(5)
d = train.X.shape[1]
stretch = np.eye(d) + 0.25 * rng.normal(size=(d, d)) / np.sqrt(d)
stretch[:, : d // 2] *= 1.6
shift = rng.normal(size=d) * 1.5


def moved(n_speakers, seed):
    """New speakers of the target domain."""
    data = make_recordings(n_speakers, 4, 3, model=train.model, seed=seed)
    return data._replace(X=(data.X - train.X.mean(axis=0)) @ stretch + train.X.mean(axis=0) + shift)


known, test = moved(24, seed=1), moved(60, seed=2)
source = Backend(plda=PLDA(shrinkage="auto", random_state=0)).fit(train.X, train.speaker, session=train.session)

# %%
# The warning
# -----------
# Every function that scores recordings compares them with the training data. A ``DomainWarning`` says that they are
# unlike these:

first = np.char.endswith(test.session, "-0")
models = source.enroll(test.X[first], test.speaker[first], test.session[first])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", DomainWarning)
    n_scores = sum(block.scores.size for block in score(source, models, test.X[~first]))
for warning in caught:
    print(warning.message)

# %%
# Adapt, with what is known
# -------------------------
# ``adapt`` returns a new model; the source stays as it is. You give it the speakers of the target, or only its
# sessions, or nothing. (Copies of one conversation are of one speaker, even if nobody knows which.)

backends = {
    "no adaptation": source,
    "nothing known": source.adapt(known.X),
    "sessions known": source.adapt(known.X, session=known.session),
    "speakers known": source.adapt(known.X, known.speaker, known.session),
}

# %%
# Enrolments have the first session of a speaker, tests are single recordings of the other three.


def trials(backend):
    enrolled = backend.enroll(test.X[first], test.speaker[first], test.session[first])
    tests = backend.enroll(test.X[~first], np.arange((~first).sum()), test.session[~first])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DomainWarning)  # that is the point
        return backend.llr(enrolled, tests).ravel(), (enrolled.ids[:, None] == test.speaker[~first]).ravel()


cost, errors = {}, {}
for name, backend in backends.items():
    llr, target = trials(backend)
    cost[name], errors[name] = cllr(llr, target), 100 * eer(llr, target)
    method = (backend.adapted_ or {"method": "-"})["method"]
    print(f"{name:16} method {method:9} EER {errors[name]:5.2f} %, Cllr {cost[name]:.3f}")

fig, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
bars = ax.barh(list(cost)[::-1], list(cost.values())[::-1], color=[OKABE_ITO[0]] * 3 + [OKABE_ITO[1]])
ax.bar_label(bars, fmt="%.2f", padding=3)
ax.axvline(1, color="0.5", lw=0.8, ls="--")
_ = ax.set(xlabel="Cllr (bits); 1 is no information", xlim=(0, 1.15 * max(*cost.values(), 1)))
plt.show()

# %%
# What was done, and why, is kept in the model:

story = backends["speakers known"].adapted_
print({key: story[key] for key in ("method", "centre", "shares")})

# %%
# Take home
# ---------
# - Take a ``DomainWarning`` seriously: ratios in another domain can be worse than none.
# - A dozen speakers of the target help a lot, and their sessions alone nearly as much as their names.
# - Adapt to other speakers than those whom you test; otherwise results look better than they are.
#
# **When it does not hold.** The target here is a linear map of the source, which is kinder than a new language. Labels
# need at least three speakers, and a calibration at least five. If the target is like the source, next to nothing
# changes, as it should. On real speech see :doc:`/adaptation`, with intervals.
