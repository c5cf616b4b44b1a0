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
    """The names of the models for which there are labels, from the richest on."""
    several = any(block.size > 1 for block in stats.blocks)
    return [name for name, can_be in zip(MODELS, (stats.K > 1, several, True), strict=True) if can_be]


def of(model: str | None, stats: Statistics) -> Statistics:
    """The statistics for a model of this name; None: as they are."""
    if model == "two-source":
        return without_kinds(stats)
    return without_sessions(without_kinds(stats)) if model == "plain" else stats


def without_kinds(stats: Statistics) -> Statistics:
    """The statistics of the same recordings, all of one kind of channel."""
    if stats.K == 1:
        return stats
    if stats.folds:
        return Statistics.from_folds([without_kinds(fold) for fold in stats.folds], stats.seed)
    by_size: dict[int, list[TypeBlock]] = {}
    within = namespace(stats.offset).sum(stats.S, axis=0)
    for block in stats.blocks:
        columns = [part for _, _, part in block.parts]
        rows = sum(block.scatter[:, part] for part in columns)
        scatter: Array = sum(rows[part, :] for part in columns) if block.squared else rows
        A = sum(block.A[:, part] for part in columns)
        merged = replace(block, counts=np.array([block.size]), A=A, scatter=scatter)
        within = within - merged.T / block.size
        by_size.setdefault(block.size, []).append(replace(merged, scatter=merged.T))
    blocks = tuple(one_block(by_size[size]) for size in sorted(by_size))
    return replace(stats, kinds=stats.kinds[:1], blocks=blocks, within=within[None, ...])


def without_sessions(stats: Statistics) -> Statistics:
    """The statistics of the same recordings, each a session of its own."""
    if stats.folds:
        return Statistics.from_folds([without_sessions(fold) for fold in stats.folds], stats.seed)
    blocks = []
    for k in range(stats.K):
        parts = [(block, n, part) for block in stats.blocks for kind, n, part in block.parts if kind == k]
        if not parts:
            continue
        speaker = np.unique(np.concatenate([block.speaker for block, _, _ in parts]))
        n_recordings = np.zeros(len(speaker), np.int64)
        A = zeros((len(speaker), stats.d), stats.offset)
        for block, n, part in parts:
            rows = np.searchsorted(speaker, block.speaker)
            n_recordings[rows] += n * block.n
            add_rows(A, rows, block.A[:, part])
        counts = (np.arange(stats.K) == k).astype(np.int64)
        blocks.append(TypeBlock(counts, speaker, n_recordings, A, stats.S[k, ...]))
    blocks.sort(key=lambda block: tuple(block.counts.tolist()))
    return replace(stats, blocks=tuple(blocks), within=0.0 * stats.within, sessions=None)
