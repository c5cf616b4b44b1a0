"""Statistics of the same recordings under a simpler model, without another pass.

Without kinds of channels, a session of type c has the type sum_k c_k and the sum F = sum_k F_k; what the kinds' own
scatters leave out goes within: within = sum_k S_k - sum_c T_c / |c|. Without sessions, each recording is one: a speaker
has as many of each kind as it has recordings, their sums are those of the sessions, and T_k = S_k.
"""

from dataclasses import replace

import numpy as np

from duoplda.arrays import Array, add_rows, namespace, zeros
from duoplda.model.accumulate import TypeBlock
from duoplda.model.statistics import Statistics, one_block

MODELS = ("kinds", "two-source", "plain")  # from the richest on


def possible(stats: Statistics) -> list[str]:
    """The models that the labels tell apart."""
    several = any(b.size > 1 for b in stats.blocks)
    return [name for name, there in zip(MODELS, (stats.K > 1, several, True), strict=True) if there]


def of(model: str | None, stats: Statistics) -> Statistics:
    """The statistics as a model of this name takes them; None: as they are."""
    if model == "two-source":
        return without_kinds(stats)
    return without_sessions(without_kinds(stats)) if model == "plain" else stats


def without_kinds(stats: Statistics) -> Statistics:
    """All recordings are of one kind."""
    if stats.K == 1:
        return stats
    if stats.folds:
        return Statistics.from_folds([without_kinds(fold) for fold in stats.folds], stats.seed)
    xp = namespace(stats.offset)
    found = dict[int, list[TypeBlock]]()
    within = xp.sum(stats.S, axis=0)
    for b in stats.blocks:
        of = [columns for _, _, columns in b.parts]
        rows = sum(b.scatter[:, i] for i in of)
        scatter: Array = sum(rows[i, :] for i in of) if b.squared else rows
        merged = replace(b, counts=np.array([b.size]), A=sum(b.A[:, i] for i in of), scatter=scatter)
        within = within - merged.T / b.size
        found.setdefault(b.size, []).append(replace(merged, scatter=merged.T))
    blocks = tuple(one_block(found[size]) for size in sorted(found))
    return replace(stats, kinds=stats.kinds[:1], blocks=blocks, within=within[None, ...])


def without_sessions(stats: Statistics) -> Statistics:
    """Each recording is a session of its own."""
    if stats.folds:
        return Statistics.from_folds([without_sessions(fold) for fold in stats.folds], stats.seed)
    blocks = []
    for k in range(stats.K):
        own = [(b, n, of) for b in stats.blocks for kind, n, of in b.parts if kind == k]
        if not own:
            continue
        speaker = np.unique(np.concatenate([b.speaker for b, _, _ in own]))
        n = np.zeros(len(speaker), np.int64)
        A = zeros((len(speaker), stats.d), stats.offset)
        for b, times, of in own:
            rows = np.searchsorted(speaker, b.speaker)
            n[rows] += times * b.n
            add_rows(A, rows, b.A[:, of])
        blocks.append(TypeBlock((np.arange(stats.K) == k).astype(np.int64), speaker, n, A, stats.S[k, ...]))
    blocks.sort(key=lambda b: tuple(b.counts.tolist()))
    return replace(stats, blocks=tuple(blocks), within=0.0 * stats.within, sessions=None)
