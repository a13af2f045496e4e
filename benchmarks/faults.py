"""Faults, inflicted on training runs by the hundred, and what the ranks that are left make of them.

    python benchmarks/faults.py --kinds killed stopped --trials 300 --jobs 4 --save benchmarks/data/faults.csv
    python benchmarks/faults.py --kinds killed --only "fsdp, int4" --trials 20 --seed 7

`killed` (SIGKILL) and `stopped` (SIGSTOP) ranks, in all phases and settings of benchmarks/campaign; `partition`s of
the network and `late names`, which need root and iproute2; processes killed while `saving`, a `full disk`, a damaged
`state` on one of two ranks, 250 per trial; `damaged` and `forged` payloads, 2,000 per trial. A row is one trial;
`--seed` draws the victim, the moment and whose process hosts the store. Of the ranks of a trial,

- `named` ended with a PeerError that names the lost ranks, as soon as docs/faults.md promises;
- `by_torch` were ended by a collective of DDP's or FSDP's own, of which thinwire knows nothing;
- `went_on` trained to the end where the setting allows it, or because the victim had already left;
- `late` named them later than promised; `unnamed` and `wrong` named nobody or somebody else;
- `hung` had not ended after a minute; `aborted` were ended by a signal; `alone` trained on where they must not.

States and payloads are refused, or accepted where the damage left nothing to find; files are whole, or `torn`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from campaign import kills, networks, payloads, storage
from campaign.nursery import Nursery
from rich.console import Console
from rich.table import Table

from thinwire.lab.records import save

Row = dict[str, Any]
Work = Callable[[Nursery], Row]
KINDS: dict[str, Callable[[argparse.Namespace], Iterator[Work]]] = {
    "killed": lambda args: kills.trials("killed", args.trials, args.seed, args.only),
    "stopped": lambda args: kills.trials("stopped", args.trials, args.seed, args.only),
    "partition": lambda args: networks.partitions(args.trials, args.seed, args.only),
    "late names": lambda args: networks.late_names(args.trials, args.seed, args.only),
    "saving": lambda args: storage.saves("saving", args.trials, args.seed),
    "full disk": lambda args: storage.saves("full disk", args.trials, args.seed),
    "state": lambda args: storage.states(args.trials, args.seed, args.only),
    "damaged": lambda args: payloads.trials("damaged", args.trials, args.seed),
    "forged": lambda args: payloads.trials("forged", args.trials, args.seed),
}
FAILURES = (*(word.replace(" ", "_") for word in kills.BAD), *payloads.BAD, *storage.BAD)
COUNTS = ("ranks", "named", "by_torch", "went_on", "files", "states", "payloads", "refused", "accepted", *FAILURES)


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
    """By kind of fault: what became of ranks or payloads. Counts that are 0 for a kind that has them are shown."""
    groups = {kind: [row for row in done if row["fault"] == kind] for kind in sorted({row["fault"] for row in done})}
    table = Table("", *groups)
    table.add_row("trials", *(str(len(trials)) for trials in groups.values()))
    for word in COUNTS:
        counts = [[row[word] for row in trials if word in row] for trials in groups.values()]
        if any(counts):
            table.add_row(word.replace("_", " "), *(f"{sum(count):,}" if count else "" for count in counts))
    slowest = (max(float(row.get("seconds") or 0) for row in trials) for trials in groups.values())
    table.add_row("slowest, s", *(f"{seconds:.1f}" if seconds else "" for seconds in slowest))
    return table


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
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
        if row["what"] or any(row.get(word) for word in FAILURES):
            console.print({name: value for name, value in row.items() if value not in (0, "")})
        if args.save is not None:
            columns = dict.fromkeys(name for row in done for name in row)
            save(args.save, [{name: row.get(name, "") for name in columns} for row in done])
    console.print(summary(done))


if __name__ == "__main__":
    main()
