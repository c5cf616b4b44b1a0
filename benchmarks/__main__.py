"""`python -m benchmarks [NAME ...]` prints one table, and writes JSON to benchmarks/results/.

A column shows the ratio in benchmarks/recorded.json, and what got worse by more than a quarter is marked. With
`--record` the ratios of this run are written there. `python -m benchmarks peers` compares duoplda with other libraries.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from benchmarks import common, core, files, memory, peers
from benchmarks.common import RECORDED, WORSE, Row, record, recorded, save, table

BENCHMARKS: dict[str, Callable[[], Iterable[Row]]] = {f.__name__: f for f in (*core.ALL, *files.ALL, *memory.ALL)}


def main() -> None:
    if sys.argv[1:2] == ["peers"]:  # a table of its own
        peers.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", choices=[[], *BENCHMARKS], help="which of them to run; without names, all")
    parser.add_argument("--smaller", type=int, default=1, help="divide the sizes by this, to see that they run")
    parser.add_argument("--out", type=Path, help="the JSON file, instead of one in benchmarks/results/")
    parser.add_argument("--record", action="store_true", help="keep these ratios, for later runs to be compared with")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="the file of the ratios that are kept")
    given = parser.parse_args()
    if given.record and given.smaller > 1:
        parser.error("--record is for whole sizes: leave out --smaller")
    names, common.DIVISOR = given.name or list(BENCHMARKS), given.smaller
    if given.smaller > 1:
        print(f"sizes are divided by {given.smaller}, whatever the table says: these times mean nothing\n")
    before, rows = recorded(given.recorded), list[Row]()
    for name in names:
        for row in BENCHMARKS[name]():
            rows.append(row)
            print(table([row], before).splitlines()[1], flush=True)
    print("\n" + table(rows, before))
    worse = [row for row in rows if row.worse(before)]
    if worse:
        print(f"\nworse than recorded, by more than a factor of {WORSE:g}:")
        print("\n".join(f"  {row.what} ({row.size}): {row.ratio:.3g}, was {before[row.key]:.3g}" for row in worse))
    measured = [{**asdict(r), "ratio": r.ratio, "recorded": before.get(r.key), "worse": r.worse(before)} for r in rows]
    out = save("", {"smaller": given.smaller, "rows": measured}, given.out)
    print(f"\nwritten: {out}")
    if given.record:
        print(f"recorded: {record(rows, given.recorded)}")


if __name__ == "__main__":
    main()
