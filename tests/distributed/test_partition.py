"""A network that falls apart, in namespaces on this machine: no connection breaks, and packets vanish."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
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


def meet_over_tcp(ranks: int) -> None:
    """The store is on the first host, as it is without torchrun; a file would survive the partition."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    store = dist.TCPStore("10.77.0.1", 29500, ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def train_until_told(method: str, ranks: int, folder: str, settings: dict[str, Any]) -> None:
    meet_over_tcp(ranks)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    times: list[float] = []

    def loop() -> None:
        wire = tw.attach(model, optimizer, METHODS.parse(method), min_size=0, **settings)
        train(model, optimizer, range(3))
        Path(folder, str(dist.get_rank())).touch()
        until = time.monotonic() + 40 * PATIENCE
        while time.monotonic() < until:
            times.append(time.monotonic())
            train(model, optimizer, range(1))
            time.sleep(0.05)
        wire.detach()

    told = said(loop)
    raise SystemExit(json.dumps([told, time.monotonic() - times[-1]]))


def parted(method: str, ranks: int, away: list[int], **settings: Any) -> list[list[Any]]:
    """What every rank said, and after how many seconds, when these hosts were cut off from the others."""
    with Network(ranks, "1gbit") as network, tempfile.TemporaryDirectory() as folder:

        def part() -> None:
            while len(os.listdir(folder)) < ranks:
                time.sleep(0.1)
            network.part(away)

        threading.Thread(target=part, daemon=True).start()
        program: Callable[..., Any] = train_until_told
        place = _where(program)
        ended: list[Outcome] = outcomes(
            _load_and_run,
            ranks,
            *place,
            method,
            ranks,
            folder,
            settings,
            hosts=network,
            timeout=100 * PATIENCE,
            grace=40.0 * PATIENCE,
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


def test_a_host_that_was_cut_off_does_not_train_alone(root: None) -> None:
    """With leave to drop, the others go on without it."""
    ended = parted("d-psgd", 4, [3], drop_dead=True)
    for told, _ in ended[:3]:
        assert told == "", told
    assert ended[3][0].startswith("PeerError: rank 3 of 4 is left alone, and has lost ranks 0, 1, 2;"), ended[3]
    assert ended[3][1] < 30 * PATIENCE
