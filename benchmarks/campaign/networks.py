"""Networks that part into halves without a word, and name servers that answer late. Needs root and iproute2.

Each rank is a host of its own in the network lab. A partition moves the ports of some hosts to another bridge:
packets vanish, no connection is reset, and hosts on one side still reach each other. The name server is a process on
each host that holds every answer back for longer than the resolver waits.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from campaign import kills, training
from campaign.nursery import Nursery
from campaign.training import SETTINGS
from thinwire.lab.net import Network
from thinwire.lab.net.tools import call

RANKS = 4
TIMEOUT = 60.0  # `timeout` of attach: what is lost must be noticed long before
PROMISED = 30.0  # seconds after which docs/faults.md promises an error to ranks that lost the network
HUNG = 110.0
STEPS_LONG = 400  # training goes on for longer than it takes to part the network
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000

Row = dict[str, Any]


class Parting(NamedTuple):
    """A partition: these ranks are cut off from the others, so long after all have begun to train."""

    number: int
    name: str
    side: tuple[int, ...]
    delay: float

    def __call__(self, nursery: Nursery) -> Row:
        return part(nursery, self)


class LateNames(NamedTuple):
    """Ranks that attach while no name can be looked up in time."""

    number: int
    name: str

    def __call__(self, nursery: Nursery) -> Row:
        return attach_without_names(nursery, self)


def partitions(count: int, seed: int, only: str | None = None) -> Iterator[Parting]:
    """Every setting in turn; who is cut off is drawn."""
    names = [name for name, setting in SETTINGS.items() if setting.front == "attach" and only in (None, name)]
    for number in range(count):
        draw = random.Random(f"partition/{seed}/{number}")
        side = tuple(sorted(draw.sample(range(RANKS), draw.randrange(1, RANKS))))
        yield Parting(number, names[number % len(names)], side, draw.uniform(0.3, 1.5))


def late_names(count: int, seed: int, only: str | None = None) -> Iterator[LateNames]:
    """Attaches under a few settings, which have few or many process groups."""
    names = [name for name in ("int4", "sgd", "ad-psgd", "diloco") if only in (None, name)]
    yield from (LateNames(number, names[number % len(names)]) for number in range(count))


def part(nursery: Nursery, trial: Parting) -> Row:
    """One partition, as a row: every rank must name exactly the ranks of the other side, or go on as it may."""
    setting = SETTINGS[trial.name]
    with tempfile.TemporaryDirectory() as place, Network(RANKS, "1gbit") as network:
        folder, bridge = Path(place), f"{network.lab}-bridge"
        call("ip", "-n", bridge, "link", "add", "island", "type", "bridge")
        call("ip", "-n", bridge, "link", "set", "island", "up")
        children = _start(nursery, "training.train", place, network, setting, steps=STEPS_LONG)
        _until_training(folder)
        time.sleep(trial.delay)
        cut = time.monotonic()
        for rank in trial.side:
            call("ip", "-n", bridge, "link", "set", f"port{rank}", "master", "island")
        endings = nursery.wait(children, HUNG)
        diaries = [kills.read(folder / f"rank{rank}") for rank in range(RANKS)]
        logs = [(folder / f"log{rank}").read_text(errors="replace") for rank in range(RANKS)]
    sides = set(trial.side), set(range(RANKS)) - set(trial.side)
    verdicts = {}
    for rank, child in enumerate(children):
        lost = sides[0] if rank in sides[1] else sides[1]
        last, ending = (diaries[rank] or [{}])[-1], endings[child]
        if ending.status is None:
            verdicts[rank] = "hung"
        elif ending.status < 0:
            verdicts[rank] = "aborted"
        elif last.get("ended") == "done":
            verdicts[rank] = "went on" if setting.goes_on else "alone"
        elif set(last.get("ranks", ())) != lost:
            verdicts[rank] = "wrong" if last.get("ranks") else "unnamed"
        else:
            verdicts[rank] = "named" if ending.when - cut < PROMISED + kills.SLACK else "late"
    seconds = max(ending.when for ending in endings.values()) - cut
    row: Row = {"trial": trial.number, "fault": "partition", "setting": trial.name, "phase": "training"}
    row |= {"victim": " ".join(map(str, trial.side)), "store": "rank 0"}
    return row | kills.counted(verdicts, diaries, logs) | {"seconds": round(seconds, 1)}


def _start(
    nursery: Nursery, work: str, place: str, network: Network, setting: training.Setting, **arguments: Any
) -> list[int]:
    """A rank on each host."""
    return [
        nursery.start(
            work,
            Path(place) / f"log{rank}",
            network.namespace(rank),
            folder=place,
            rank=rank,
            ranks=RANKS,
            setting=asdict(setting),
            address=network.address(0),
            timeout=TIMEOUT,
            **arguments,
        )
        for rank in range(RANKS)
    ]


def _until_training(folder: Path) -> None:
    """Wait until every rank that trains has begun; those that serve write nothing after `attach`."""
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        seen = [kills.read(folder / f"rank{rank}") for rank in range(RANKS)]
        if sum(any(entry.get("phase") == "step" for entry in diary) for diary in seen) >= RANKS - 1:
            return
        time.sleep(0.05)


def attach_without_names(nursery: Nursery, trial: LateNames) -> Row:
    """One attach, as a row: every rank must attach and train to the end."""
    setting = SETTINGS[trial.name]
    with tempfile.TemporaryDirectory() as place, Network(RANKS, "1gbit") as network:
        folder = Path(place)
        children = _start(nursery, "networks.train_without_names", place, network, setting)
        began = time.monotonic()
        endings = nursery.wait(children, HUNG)
        diaries = [kills.read(folder / f"rank{rank}") for rank in range(RANKS)]
        logs = [(folder / f"log{rank}").read_text(errors="replace") for rank in range(RANKS)]
    verdicts = {}
    for rank, child in enumerate(children):
        status, last = endings[child].status, (diaries[rank] or [{}])[-1]
        ended = {None: "hung", 0: "went on"}.get(status, "aborted" if (status or 0) < 0 else "wrong")
        verdicts[rank] = ended if last.get("ended") == "done" or ended != "went on" else "wrong"
    row: Row = {"trial": trial.number, "fault": "late names", "setting": trial.name, "phase": "attach"}
    row |= {"victim": "", "store": "rank 0"} | kills.counted(verdicts, diaries, logs)
    return row | {"seconds": round(max(end.when for end in endings.values()) - began, 1)}


def train_without_names(folder: str, rank: int, **arguments: Any) -> None:
    """A rank whose host asks a name server that does not answer while the resolver waits, 5 s per try."""
    libc = ctypes.CDLL(None, use_errno=True)
    for failed in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), "this process gets no mounts of its own")
    own = Path(folder) / f"resolv{rank}"
    own.write_text("nameserver 127.0.0.1\noptions timeout:5 attempts:1\n")
    if libc.mount(str(own).encode(), b"/etc/resolv.conf", None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), "/etc/resolv.conf cannot be replaced")
    server = os.fork()
    if server == 0:
        _hold_answers()
    try:
        training.train(folder, rank, **arguments)
    finally:
        os.kill(server, signal.SIGKILL)


def _hold_answers() -> None:
    """Take every question and answer none: the port is open, so the resolver waits for its time-out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 53))
        while True:
            listener.recv(512)
