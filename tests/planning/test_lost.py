"""A rank that is lost while ranks plan: the others say who it was."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from ranks import PATIENCE, endings
from torch import nn

import thinwire as tw
from thinwire.lab.launch import Outcome
from thinwire.planning.company import Company
from thinwire.planning.link import Cost, Sockets
from thinwire.planning.planner import _slowest

pytestmark = pytest.mark.timeout(300)  # many processes, and machines that are busy
VICTIM = 1
SOON = 20.0 * PATIENCE  # seconds; gloo's own time-out is half an hour


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def lost(how: str, when: str) -> None:
    """Plan, and let the victim end when it is about to measure `when`."""
    lost_at = [0.0]

    def say(text: str) -> None:
        lost_at[0] = time.monotonic()
        if dist.get_rank() == VICTIM and text == when:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("out of memory")

    try:
        tw.plan(net(), torch.ones(2, 64), methods=["qsgd"], say=say)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    raise SystemExit(json.dumps([told, time.monotonic() - lost_at[0]]))


def heard(end: Outcome) -> tuple[str, float]:
    told, seconds = json.loads(end.error.rsplit("SystemExit: ", 1)[1])
    return told, seconds


@pytest.mark.parametrize("when", ["the link", "steps between the hosts"])
def test_a_rank_that_is_killed_is_named(when: str) -> None:
    ended = endings(lost, 3, "killed", when, grace=SOON)
    assert ended[VICTIM].exitcode == -signal.SIGKILL
    for rank, end in enumerate(ended):
        if rank != VICTIM:
            told, seconds = heard(end)
            assert told.startswith("PeerError: rank 1 of 3 has stopped answering"), told
            assert seconds < SOON


def test_an_error_of_a_rank_is_its_own_and_the_others_are_told_of_it() -> None:
    ended = [heard(end)[0] for end in endings(lost, 2, "raised", "computing", grace=SOON)]
    assert ended[VICTIM] == "RuntimeError: out of memory"
    assert ended[0] == "PeerError: rank 1 of 2 does not go on: it raised RuntimeError: out of memory"


def test_the_slowest_host_keeps_every_cost() -> None:
    known = Sockets(*(Cost(1.0 + way, 2.0, 3.0, 4.0) for way in range(4)))
    assert _slowest(known, Company()) == known
