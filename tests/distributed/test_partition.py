"""A network that falls apart, in namespaces on this machine: no connection breaks, and packets vanish."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import net, said, train
from ranks import PATIENCE, _load_and_run, _where

import thinwire as tw
from thinwire.core.method import METHODS
from thinwire.lab.launch import Outcome, outcomes
from thinwire.lab.net import Network

pytestmark = [pytest.mark.timeout(200), pytest.mark.long]
READY = "ready"


def meet_over_tcp(ranks: int) -> None:
    """The store is on the first host, as it is without torchrun; a file would survive the partition."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    store = dist.TCPStore("10.77.0.1", 29500, ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def train_until_told(method: str, ranks: int, settings: dict[str, Any]) -> None:
    meet_over_tcp(ranks)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    times: list[float] = []

    def loop() -> None:
        wire = tw.attach(model, optimizer, METHODS.parse(method), min_size=0, **settings)
        train(model, optimizer, range(3))
        print(READY, flush=True)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            times.append(time.monotonic())
            train(model, optimizer, range(1))
            time.sleep(0.05)
        wire.detach()

    told = said(loop)
    raise SystemExit(json.dumps([told, time.monotonic() - times[-1]]))


def parted(method: str, ranks: int, away: list[int], **settings: Any) -> list[list[Any]]:
    """What every rank said, and after how many seconds, when these hosts were cut off from the others."""
    with Network(ranks, "1gbit") as network:
        threading.Timer(8.0 * PATIENCE, lambda: network.part(away)).start()
        program: Callable[..., Any] = train_until_told
        place = _where(program)
        ended: list[Outcome] = outcomes(
            _load_and_run, ranks, *place, method, ranks, settings, hosts=network, timeout=100, grace=20.0
        )
    return [json.loads(end.error.rsplit("SystemExit: ", 1)[1]) for end in ended]


@pytest.mark.parametrize("method", ["qsgd", "ad-psgd", "easgd-async"])
def test_both_halves_name_all_whom_they_lost_within_thirty_seconds(root: None, method: str) -> None:
    """The time-out is 600 s, and the store is in one of the halves."""
    for rank, (told, seconds) in enumerate(parted(method, 4, [2, 3])):
        others = "ranks 2, 3" if rank < 2 else "ranks 0, 1"
        assert told.startswith("PeerError: "), told
        assert others in told, told
        assert seconds < 30 * PATIENCE
