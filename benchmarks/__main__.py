"""`python -m benchmarks [NAME ...]` prints one table, and writes JSON to benchmarks/results/.

`python -m benchmarks peers` compares duoplda with other libraries.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import common, core, files, peers
from benchmarks.common import Row, save, table


def main() -> None:
    if sys.argv[1:2] == ["peers"]:  # a table of its own
        peers.main(sys.argv[2:])
        return
    benchmarks = {f.__name__: f for f in (*core.ALL, *files.ALL)}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", choices=[[], *benchmarks], help="which of them to run; without names, all")
    parser.add_argument("--smaller", type=int, default=1, help="divide the sizes by this, to see that they run")
    parser.add_argument("--out", type=Path, help="the JSON file, instead of one in benchmarks/results/")
    given = parser.parse_args()
    names, common.DIVISOR = given.name or list(benchmarks), given.smaller
    if given.smaller > 1:
        print(f"sizes are divided by {given.smaller}, whatever the table says: these times mean nothing\n")
    rows: list[Row] = []
    for name in names:
        for row in benchmarks[name]():
            rows.append(row)
            print(table([row]).splitlines()[1], flush=True)
    print("\n" + table(rows))
    measured = [{**asdict(r), "ratio": r.ratio} for r in rows]
    out = save("", {"smaller": given.smaller, "rows": measured}, given.out)
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    main()
