"""Timing and the table."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    what: str
    size: str
    ours: float
    floor: float
    goal: float | None  # the most that ours / floor should be
    unit: str = "s"

    @property
    def ratio(self) -> float:
        return self.ours / self.floor


def interleaved(*functions: Callable[[], Any], repeat: int = 5) -> list[float]:
    """The best time of each of several functions, called in turn, so that they share the machine's moods."""
    best = [float("inf")] * len(functions)
    for _ in range(repeat):
        for i, function in enumerate(functions):
            gc.collect()
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def table(rows: list[Row]) -> str:
    lines = [f"{'what':58} {'size':44} {'ours':>10} {'floor':>10} {'ratio':>7} {'goal':>6}"]
    for r in rows:
        goal = "" if r.goal is None else f"{r.goal:g}"
        lines.append(f"{r.what:58} {r.size:44} {r.ours:10.4g} {r.floor:10.4g} {r.ratio:7.2f} {goal:>6}")
    return "\n".join(lines)
