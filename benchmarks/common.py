"""Timing, memory, sizes and the table."""

from __future__ import annotations

import gc
import json
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

DIVISOR = 1  # of the sizes; `python -m benchmarks --smaller 100` only shows that the benchmarks run
RECORDED = Path(__file__).parent / "recorded.json"  # the ratio of each row when it was last recorded
WORSE = 1.25  # times the recorded ratio, from which on a row is marked


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

    @property
    def key(self) -> str:
        """What tells the row from others, in whatever run."""
        return f"{self.what.strip()}: {self.size}"

    def worse(self, before: dict[str, float]) -> bool:
        """Whether the ratio is far above the recorded one; sizes that were divided are not compared."""
        return DIVISOR == 1 and bool(self.ratio > WORSE * before.get(self.key, float("inf")))


def smaller(n: int, least: int = 60) -> int:
    """A number of speakers, sides or rows: `n` divided by `DIVISOR`, but not below `least`."""
    return n if DIVISOR == 1 else min(n, max(n // DIVISOR, least))


def interleaved(
    *functions: Callable[[], Any], repeat: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The best time of each of several functions, called in turn, so that other load slows all of them alike."""
    best = [float("inf")] * len(functions)
    for _ in range(repeat if DIVISOR == 1 else 1):
        for i, function in enumerate(functions):
            gc.collect()
            start = clock()
            function()
            best[i] = min(best[i], clock() - start)
    return best


def table(rows: list[Row], before: dict[str, float] | None = None) -> str:
    """The rows, with the ratios that were recorded `before`, by key."""
    before = before or {}
    lines = [f"{'what':58} {'size':44} {'ours':>10} {'floor':>10} {'ratio':>7} {'goal':>6} {'recorded':>8}"]
    for r in rows:
        goal = "" if r.goal is None else f"{r.goal:g}"
        was = f"{before[r.key]:.3g}" if r.key in before else ""
        numbers = f"{r.ours:10.4g} {r.floor:10.4g} {r.ratio:7.3g} {goal:>6} {was:>8}"
        lines.append(f"{r.what:58} {r.size:44} {numbers}" + "  WORSE" * r.worse(before))
    return "\n".join(lines)


def recorded(path: Path = RECORDED) -> dict[str, float]:
    """The recorded ratios by key."""
    return {key: row["ratio"] for key, row in _kept(path).items()}


def record(rows: list[Row], path: Path = RECORDED) -> Path:
    """Keep the ratios of some rows, each with the time of its run, beside those that other runs recorded."""
    here = machine()
    now = {row.key: {"ratio": float(f"{row.ratio:.4g}"), "time": here["time"]} for row in rows}
    last = {"last run": here, "rows": dict(sorted((_kept(path) | now).items()))}
    path.write_text(json.dumps(last, indent=1) + "\n")
    return path


def _kept(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text())["rows"] if path.exists() else {}


def peak() -> float:
    """The most memory this process has held, in MiB. On Linux a child's ru_maxrss starts at its parent's."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(found[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def machine() -> dict[str, Any]:
    """What is measured on, and when."""
    return {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": [{k: i[k] for k in ("internal_api", "version", "num_threads")} for i in threadpool_info()],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def save(prefix: str, content: dict[str, Any], out: Path | None = None) -> Path:
    """Write what was measured, and on what machine, as JSON: to a new file in results/, unless `out` is given."""
    out = out or Path(__file__).parent / "results" / f"{prefix}{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({**machine(), **content}, indent=1))
    return out
