"""`python -m benchmarks [name ...]`: one table, and JSON in benchmarks/results/; `peers` alone: other libraries."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from benchmarks import core, files, peers
from benchmarks.common import Row, save, table


def main() -> None:
    if sys.argv[1:2] == ["peers"]:  # a table of its own
        peers.main(sys.argv[2:])
        return
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
    out = save("", {"rows": [{**asdict(r), "ratio": r.ratio} for r in rows]})
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    main()
