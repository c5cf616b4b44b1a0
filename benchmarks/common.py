"""Timing, sizes and the table."""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

DIVISOR = 1  # of the sizes; `python -m benchmarks --smaller 100` only shows that the benchmarks run


@dataclass(frozen=True)
class Row:
    what: str
    size: str
    ours: float
    floor: float
    goal: float | None  # the largest ratio ours / floor that is acceptable
    unit: str = "s"

    @property
    def ratio(self) -> float:
        return self.ours / self.floor


def smaller(n: int, least: int = 60) -> int:
    """A number of speakers, sides or rows: `n` divided by `DIVISOR`, but not below `least`."""
    return n if DIVISOR == 1 else min(n, max(n // DIVISOR, least))


def interleaved(*functions: Callable[[], Any], repeat: int = 5) -> list[float]:
    """The best time of each of several functions, called in turn, so that other load slows all of them alike."""
    best = [float("inf")] * len(functions)
    for _ in range(repeat if DIVISOR == 1 else 1):
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
        lines.append(f"{r.what:58} {r.size:44} {r.ours:10.4g} {r.floor:10.4g} {r.ratio:7.3g} {goal:>6}")
    return "\n".join(lines)


def save(prefix: str, content: dict[str, Any], out: Path | None = None) -> Path:
    """Write what was measured, and on what machine, as JSON: to a new file in results/, unless `out` is given."""
    now = datetime.now(UTC)
    machine = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": [{k: i[k] for k in ("internal_api", "version", "num_threads")} for i in threadpool_info()],
        "time": now.isoformat(timespec="seconds"),
    }
    out = out or Path(__file__).parent / "results" / f"{prefix}{now:%Y%m%d-%H%M%S}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({**machine, **content}, indent=1))
    return out
