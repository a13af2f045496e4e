"""Faults, inflicted on training runs by the hundred, and what the ranks that are left make of them.

    python benchmarks/faults.py --kinds killed stopped --trials 300 --jobs 4 --save benchmarks/data/faults.csv
    python benchmarks/faults.py --kinds killed --only "fsdp, int4" --trials 20 --seed 7

Kinds: `killed` (SIGKILL) and `stopped` (SIGSTOP) ranks, in all phases and settings of benchmarks/campaign. A row is
one trial; `--seed` draws the victim, the moment and whose process hosts the store. Of the survivors of a trial,

- `named` ended with a PeerError that names the victim, as soon as docs/faults.md promises;
- `went_on` trained to the end where the setting allows it, or because the victim had already left;
- `late` named it later than promised; `unnamed` and `wrong` named nobody or somebody else;
- `hung` had not ended after a minute; `aborted` were ended by a signal; `alone` trained on where they must not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from campaign import kills
from campaign.nursery import Nursery
from rich.console import Console
from rich.table import Table

from thinwire.lab.records import save

Row = dict[str, Any]
GOOD, BAD = ("named", "went_on"), ("late", "unnamed", "wrong", "hung", "aborted", "alone")
Work = Callable[[Nursery], Row]
KINDS: dict[str, Callable[[argparse.Namespace], Iterator[Work]]] = {
    kind: lambda args, kind=kind: (
        partial(kills.run, trial=trial) for trial in kills.trials(kind, args.trials, args.seed, args.only)
    )
    for kind in ("killed", "stopped")
}


def rows(works: list[Work], jobs: int) -> Iterator[Row]:
    """What the trials bring, as they end; `jobs` at a time, each with a nursery of its own."""
    nurseries: SimpleQueue[Nursery] = SimpleQueue()

    def one_at_a_time(work: Work) -> Row:
        nursery = nurseries.get()
        try:
            return work(nursery)
        finally:
            nurseries.put(nursery)

    opened = [Nursery() for _ in range(jobs)]
    try:
        for nursery in opened:
            nurseries.put(nursery)
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(one_at_a_time, works)
    finally:
        for nursery in opened:
            nursery.__exit__()


def summary(done: list[Row]) -> Table:
    """Survivors by kind of fault and what became of them."""
    groups = {kind: [row for row in done if row["fault"] == kind] for kind in sorted({row["fault"] for row in done})}
    table = Table("", *groups)
    table.add_row("trials", *(str(len(trials)) for trials in groups.values()))
    for word in ("survivors", *GOOD, *BAD):
        table.add_row(word.replace("_", " "), *(str(sum(row[word] for row in trials)) for trials in groups.values()))
    slowest = (
        max((row["seconds"] for row in trials if row["seconds"] != ""), default=0.0) for trials in groups.values()
    )
    table.add_row("slowest, s", *(f"{seconds:.1f}" for seconds in slowest))
    return table


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=sorted(KINDS))
    parser.add_argument("--trials", type=int, default=25, help="of each kind")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="trials at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one setting")
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    if args.only is not None and args.only not in kills.SETTINGS:
        parser.error(f"there is no setting {args.only!r}; write one of: {'; '.join(kills.SETTINGS)}")
    console, done = Console(soft_wrap=True, highlight=False), list[Row]()
    works = [work for kind in args.kinds for work in KINDS[kind](args)]
    for row in rows(works, args.jobs):
        done.append(row)
        if any(row[word] for word in BAD):
            console.print({name: value for name, value in row.items() if value not in (0, "")})
        if args.save is not None:
            save(args.save, done)
    console.print(summary(done))


if __name__ == "__main__":
    main()
