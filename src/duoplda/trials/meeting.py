"""Sessions of which both sides of a trial hold a part: one conversation through two microphones, say.

The whole session has type c_1 + c_2 and z_1 + z_2. That changes Lambda_3 and gamma_3 of the trial
(`duoplda.trials.sides`), and the session term (`duoplda.model.posteriors.session_terms`) no longer cancels.

Where the two parts of a session count for rho_1 and rho_2 (`duoplda.trials.occasions`), they meet as far as both count:
for the smaller of the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duoplda.arrays import Array, add_rows, namespace, put, segment_sums, take, zeros
from duoplda.data.labels import Ints
from duoplda.model.parameters import Model, Terms
from duoplda.model.posteriors import session_terms
from duoplda.trials.exact import log_evidence

if TYPE_CHECKING:
    from duoplda.trials.sides import Sides


class Meeting:
    """Sessions that come in two parts, of types `a` and `b` (h, K), and what changes when the parts are joined."""

    def __init__(self, model: Model, a: Ints, b: Ints):
        both, which = np.unique(np.concatenate([a, b], axis=1), axis=0, return_inverse=True)
        first = both[:, : a.shape[1]]
        second = both[:, a.shape[1] :]
        self.n = len(both)
        self.which = which
        self.parts = Terms(model, first), Terms(model, second)
        self.whole = Terms(model, first + second)

    def shift(self, za: Array, zb: Array) -> Array:
        """(h, ny) what joining the parts adds to gamma."""
        A, B = (terms.PJ for terms in self.parts)
        whole = self.whole.PJ
        out = zeros((za.shape[0], A.shape[-1]), za)
        for t in range(self.n):
            rows = np.flatnonzero(self.which == t)
            x = take(za, rows)
            y = take(zb, rows)
            add_rows(out, rows, x @ A[t, ...] + y @ B[t, ...] - (x + y) @ whole[t, ...])
        return out

    def gain(self, za: Array, zb: Array) -> Array:
        """(h,) what joining the parts adds to the sum of the session terms."""
        first, second = (session_terms(terms, self.which, z) for terms, z in zip(self.parts, (za, zb), strict=True))
        return session_terms(self.whole, self.which, za + zb) - first - second

    @property
    def G(self) -> Array:
        """What joining the parts adds to Lambda, for each pair of types."""
        first, second = (terms.G for terms in self.parts)
        return self.whole.G - first - second


def shared(a: Sides, b: Sides, part: slice | None = None, only: Ints | None = None) -> tuple[Ints, Ints, Array] | None:
    """Trials whose sides share a session: rows of a, rows of b, and the ln likelihood ratios, sorted by trial.

    With the shifts of gamma and the gains of session terms of the sessions that meet,

        gamma_3 = gamma_1 + gamma_2 + shift,    LLR = Q_3 + gain - Q_1 - Q_2

    With `part`, only trials of some rows of b; with `only` (n, 2), only listed trials. None: no session is shared.
    """
    if not len(a.session) or not len(b.session):
        return None
    cells = np.arange(len(b.session))
    if part is not None:
        cells = np.flatnonzero((b.session_side >= part.start) & (b.session_side < part.stop))
    ca, which = a.named.find(b.session[cells])
    cb = cells[which]
    trial = a.session_side[ca] * len(b) + b.session_side[cb]
    if only is not None:
        listed = np.isin(trial, only[:, 0] * len(b) + only[:, 1])
        ca = ca[listed]
        cb = cb[listed]
        trial = trial[listed]
    if not len(trial):
        return None
    trials, place = np.unique(trial, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ca = ca[order]
    cb = cb[order]
    place = place[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    i, j = np.divmod(trials, len(b))
    meet = Meeting(a.model, a.types[a.session_type[ca]], b.types[b.session_type[cb]])
    za = take(a.z, ca)
    zb = take(b.z, cb)
    gains = meet.gain(za, zb)[:, None]
    shifts = meet.shift(za, zb)
    weight = None  # of the parts that meet
    if a.session_weight is not None or b.session_weight is not None:
        of_a, of_b = (np.ones(len(s.session)) if s.session_weight is None else s.session_weight for s in (a, b))
        weight = np.minimum(of_a[ca], of_b[cb])
        gains, shifts = (put(weight[:, None], gamma) * gamma for gamma in (gains, shifts))
    gain = segment_sums(gains, starts)[:, 0]
    gamma = take(a.gamma, i) + take(b.gamma, j) + segment_sums(shifts, starts)
    T = meet.n
    met = np.bincount(place * T + meet.which, weight, minlength=len(trials) * T).reshape(len(trials), T)
    G = namespace(gamma).concat([a.terms.G, b.terms.G, meet.G])
    Q3 = log_evidence(G, np.concatenate([a.counts[i], b.counts[j], met], axis=1), gamma)
    return i, j, gain + Q3 - take(a.Q, i) - take(b.Q, j)
