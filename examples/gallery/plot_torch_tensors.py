"""
The same in torch, on the device of the array
=============================================

``PLDA`` computes with the library of the arrays that it gets. NumPy arrays stay NumPy arrays; torch tensors stay torch
tensors, on the device where they are. Nothing else in a program changes.
"""

# %%
# One program for both
# --------------------
# If torch is not installed, this page uses NumPy arrays instead, which the library processes in the same way: by the
# operations of the array API standard. The output says which of them was used.

import matplotlib.pyplot as plt
import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.plots import OKABE_ITO

try:
    import torch
except ImportError:
    torch = None

X, speaker, session, model = make_recordings(150, (2, 4), (1, 4), seed=0)
new = make_recordings(40, 2, 2, model=model, seed=1)
first = np.char.endswith(new.session, "-0")


def ratios(convert):
    """Train and score; `convert` makes arrays of one library or another. Labels stay what they are."""
    plda = PLDA().fit(convert(X), speaker, session=session)
    sides = [plda.enroll(convert(new.X[of]), new.speaker[of], new.session[of]) for of in (first, ~first)]
    return plda.llr(*sides)


reference = ratios(np.asarray)
print("NumPy:", type(reference).__name__, reference.dtype, reference.shape)

# %%
# The same with tensors. ``device="cuda"`` in ``torch.as_tensor`` would be all that it takes to use a GPU.

if torch is not None:
    double = ratios(torch.as_tensor)
    single = ratios(lambda array: torch.as_tensor(array, dtype=torch.float32))
    label = "torch"
else:
    double = ratios(np.array)
    single = ratios(lambda array: np.asarray(array, dtype=np.float32))
    label = "NumPy, as torch is not installed here"
print(f"{label}: {type(double).__name__} {double.dtype}, {type(single).__name__} {single.dtype}")

# %%
# How much do they differ?
# ------------------------
# In double precision the results agree to rounding. Vectors in single precision are processed in double precision, too;
# the only difference left is that they were rounded before.

apart = {"double": np.asarray(double) - reference, "single": np.asarray(single) - reference}
for name, difference in apart.items():
    print(f"vectors in {name} precision: largest difference {np.abs(difference).max():.1e} nats")

fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
ax.scatter(reference.ravel(), np.abs(apart["single"]).ravel(), s=6, alpha=0.5, lw=0, color=OKABE_ITO[0])
_ = ax.set(
    xlabel="LLR in double precision (nats)", ylabel="Difference, single precision", yscale="log", ylim=(1e-9, 1e-3)
)
ax.grid(color="0.9")
ax.set_axisbelow(True)
plt.show()

# %%
# Take home
# ---------
# - Pass tensors where you have them; ids and labels stay NumPy arrays or lists.
# - To send recordings of the host through a GPU: ``fit(..., device="cuda")``, ``--device cuda``.
# - Extras: ``pip install 'duoplda[torch]'``.
#
# **When it does not hold.** On small problems a GPU is slower than a CPU: the transfers and the start of each operation
# cost more than the sums. Decompositions and the choice of shrinkage run on the host. Figures of an H200 beside two
# CPU cores are in :doc:`/performance`.
