"""`python -m benchmarks [name ...]`: one table, and JSON in benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from benchmarks import core, files
from benchmarks.common import Row, table


def main() -> None:
    benchmarks = {f.__name__: f for f in (*core.ALL, *files.ALL)}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", choices=[[], *benchmarks], help="all, unless named")
    names = parser.parse_args().name or list(benchmarks)
    rows: list[Row] = []
    for name in names:
        for row in benchmarks[name]():
            rows.append(row)
            print(table([row]).splitlines()[1], flush=True)
    print("\n" + table(rows))
    machine = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": [{k: i[k] for k in ("internal_api", "version", "num_threads")} for i in threadpool_info()],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    out = Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({**machine, "rows": [{**asdict(r), "ratio": r.ratio} for r in rows]}, indent=1))
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    main()
