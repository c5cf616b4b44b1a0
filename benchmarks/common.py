"""Timing and the table."""

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
        lines.append(f"{r.what:58} {r.size:44} {r.ours:10.4g} {r.floor:10.4g} {r.ratio:7.3g} {goal:>6}")
    return "\n".join(lines)


def save(prefix: str, content: dict[str, Any], out: Path | None = None) -> Path:
    """JSON of what was measured, and on what machine: in results/, unless told where."""
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
