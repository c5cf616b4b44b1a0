"""
What real speech says
=====================

All other pages draw their data from the model, so that they run in seconds and the truth is known. Real speech is not
drawn from any model. This page shows what was measured on it. **Nothing is computed here**: the figures are those of
:doc:`/results`, where the commands, the data and more systems are, and a test compares the two.
"""

# %%
# Five channels of every utterance
# --------------------------------
# CAM++ embeddings (192 dimensions) of speechocean762: 150 training speakers, and 50 others in 390,000 trials, pooled
# over enrolments of 1 to 15 recordings. AudioMNIST has 36 training speakers and 12 others. Each utterance was heard
# through five channels: clean, noise, telephone, reverberation, codec. The commands were
#
# .. code-block:: text
#
#     python examples/real_speech.py DATA_FOLDER --set so762
#     python examples/real_speech.py DATA_FOLDER --set amnist
#
# For each system: EER in %, its 95 % interval by resampling of the speakers; Cllr in bits, and its interval.

import matplotlib.pyplot as plt
import numpy as np

from duoplda.plots import OKABE_ITO

so762 = {
    "plain, ML": (6.01, 5.20, 6.92, 0.442, 0.377, 0.510),
    "two, ML": (5.36, 4.55, 6.21, 0.288, 0.240, 0.340),
    "kinds, ML": (5.00, 4.24, 5.73, 0.261, 0.220, 0.305),
    "plain, likelihood, averaged": (5.15, 4.37, 5.91, 0.247, 0.206, 0.298),
    "plain, decision": (5.46, 4.68, 6.28, 0.245, 0.217, 0.274),
    "two, decision": (4.74, 4.03, 5.41, 0.190, 0.165, 0.215),
    "kinds, decision": (4.17, 3.51, 4.83, 0.160, 0.138, 0.184),
}
amnist = {
    "plain, ML": (4.64, 2.40, 7.84, 0.309, 0.142, 0.587),
    "two, ML": (4.92, 2.54, 8.34, 0.343, 0.154, 0.642),
    "kinds, ML": (4.88, 2.41, 8.61, 0.355, 0.147, 0.682),
    "plain, likelihood, averaged": (3.35, 1.94, 5.36, 0.337, 0.200, 0.542),
    "plain, decision": (2.82, 1.73, 4.72, 0.120, 0.082, 0.184),
    "two, decision": (2.32, 1.38, 3.84, 0.097, 0.067, 0.147),
    "kinds, decision": (2.05, 1.21, 3.32, 0.081, 0.054, 0.126),
}

# %%
# "Plain" is simplified PLDA, where copies count as sessions; "averaged" means them first. "Two" has the session level,
# and "kinds" also a noise for each kind of channel. "ML" is maximum likelihood; "decision" is ``shrinkage="auto"``, the
# default of ``Backend`` and of ``duoplda train``.


def intervals(at, label):
    """One column of the figures of both sets, with intervals."""
    ax = plt.figure(figsize=(5.4, 4.2), layout="constrained").add_subplot()
    for i, (name, table) in enumerate({"so762, 150 speakers": so762, "amnist, 36 speakers": amnist}.items()):
        value, low, high = np.array(list(table.values()))[:, at : at + 3].T
        y = np.arange(len(table)) + 0.16 * (2 * i - 1)
        style = {"color": OKABE_ITO[i], "marker": "os"[i], "ls": "none", "capsize": 3, "label": name}
        ax.errorbar(value, y, xerr=[value - low, high - value], **style)
    ax.set_yticks(range(len(so762)), [name.replace("likelihood, ", "") for name in so762])
    ax.invert_yaxis()
    ax.set(xlabel=label, xlim=(0, None))
    ax.grid(axis="x", color="0.9")
    ax.legend(ncols=2, loc="lower left", bbox_to_anchor=(-0.2, 1), frameon=False, fontsize="small")


intervals(3, "Cllr (bits), 95 % intervals over speakers")
plt.show()

# %%
# The same for the EER, in %:

intervals(0, "EER (%), 95 % intervals over speakers")
plt.show()

# %%
# Where the session level pays
# ----------------------------
# Cllr on so762 by enrolment, sessions x channels, against one test recording; maximum likelihood. With five channels of
# one session (1x5), simplified PLDA is worse than no information.

enrolments = ("1x1", "1x5", "3x1", "3x3", "3x5")
by_enrolment = {
    "plain, ML": (0.380, 1.013, 0.223, 0.325, 0.361),
    "two, ML": (0.369, 0.303, 0.220, 0.221, 0.207),
    "kinds, ML": (0.360, 0.291, 0.188, 0.160, 0.155),
}
fig, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
for i, (name, values) in enumerate(by_enrolment.items()):
    ax.bar(np.arange(5) + 0.26 * (i - 1), values, 0.26, color=OKABE_ITO[i], label=name)
ax.axhline(1, color="0.5", lw=0.8, ls="--")
ax.set_xticks(range(5), enrolments)
_ = ax.set(xlabel="Enrolment: sessions x channels", ylabel="Cllr (bits)")
ax.legend(frameon=False)
plt.show()

# %%
# Take home
# ---------
# - On so762 each step helps: the session level, kinds of channels, and what held-out speakers choose.
# - With 36 speakers (amnist), maximum likelihood fails for the larger models; they gain only if they are chosen for the
#   decision.
# - The session level alone repairs calibration. It does not lower the EER within one enrolment condition.
#
# **When it does not hold.** The channels are simulated, the utterances are one to two seconds long, and intervals of
# two systems overlap, though their paired differences are clearer (:doc:`/results`). In another domain the same models
# have Cllr above 1 until they are adapted (:doc:`/adaptation`). Measure on your own speech before you believe any of
# this.
