"""Churn: replicas are killed with SIGKILL at random moments and started again, one at a time.

    python benchmarks/churn.py --kills 50 --save benchmarks/data/churn.csv

A row is one kill. `pause_s` is the longest time that a survivor went without a round, `again` how many rounds the
survivors took again, `missed` the most rounds that one survivor missed, `back_s` the time from the new start to the
first round of the killed one, and `equal` whether all replicas had the same anchor, bit for bit, after each round.
Now and then the next kill hits the replica that was started again, while it comes; `back_s` is then empty.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from thinwire.compressors.topk import TopK
from thinwire.core.channel import Channel
from thinwire.core.method import Method
from thinwire.core.schedule import Sync
from thinwire.exchange.all_gather import AllGather
from thinwire.lab.fleet import Course, Fleet, Report, unequal
from thinwire.lab.records import Row, save
from thinwire.memory.error_feedback import ErrorFeedback
from thinwire.sync.delta import Delta

METHOD = Method(AllGather(Channel(TopK(0.05), ErrorFeedback())), Sync(of=Delta(), every=10))
PATIENCE = 120.0  # seconds without a round, which are a hang
WHILE_COMING = 0.2  # share of the kills that hit the replica which comes back


def rows(kills: int, replicas: int, seed: int, device: str) -> Iterator[Row]:
    """One row per kill; TimeoutError where replicas hang."""
    draw = random.Random(seed)
    course = Course(METHOD, width=384, pause=0.005, quorum=replicas // 2 + 1, device=device)
    with Fleet(course, replicas) as fleet:
        victim, coming = 0, False
        for kill in range(kills):
            if not coming:
                fleet.further(2, PATIENCE)
                victim = draw.choice(list(fleet.replicas))
            first = max(0, len(fleet.reports) - replicas)
            _pass(fleet, draw.uniform(0.0, 1.0))
            doing, killed = fleet.replicas[victim].doing, time.monotonic()
            fleet.kill(victim)
            away = draw.uniform(0.0, 2.0)
            _pass(fleet, away)
            fleet.start(victim)
            started = time.monotonic()
            coming = draw.random() < WHILE_COMING
            if not coming:
                fleet.further(2, PATIENCE)
            back = "" if coming else round(fleet.replicas[victim].reports[0].when - started, 2)
            yield {
                "kill": kill,
                "victim": victim,
                "doing": doing,
                "away_s": round(away, 2),
                "back_s": back,
                **_survivors(fleet.reports[first:], victim, killed),
                "equal": not unequal(fleet.reports),
            }


def _survivors(reports: list[Report], victim: int, since: float) -> Row:
    """What the kill cost the others."""
    pause, again, missed = 0.0, 0, 0
    for number in {one.replica for one in reports} - {victim}:
        mine = [one for one in reports if one.replica == number]
        steps = [(a, b) for a, b in pairwise(mine) if b.when > since]
        pause = max([pause, *(b.when - a.when for a, b in steps)])
        again += sum(b.again - a.again for a, b in steps)
        missed = max([missed, *(b.rounds - a.rounds - 1 for a, b in steps)])
    return {
        "rounds": max(one.rounds for one in reports),
        "pause_s": round(pause, 2),
        "again": again,
        "missed": missed,
    }


def _pass(fleet: Fleet, seconds: float) -> None:
    """Let time pass."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        fleet.listen(left)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where replicas train")
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("RUST_LOG", "error")  # torchft would otherwise write several lines per round
    console, done = Console(soft_wrap=True), []
    for row in rows(args.kills, args.replicas, args.seed, args.device):
        done.append(row)
        console.print(", ".join(f"{name} {value}" for name, value in row.items()))
        if args.save is not None:
            save(args.save, done)


if __name__ == "__main__":
    main()
