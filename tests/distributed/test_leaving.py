"""Ranks that leave: killed while they attach, raised but alive, finished early, stopped with the store in hand."""

from __future__ import annotations

import code
import json
import os
import signal
import subprocess
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import net, said, train
from ranks import PATIENCE, endings
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire.engine import groups, meeting
from thinwire.lab.launch import Outcome

pytestmark = pytest.mark.timeout(200)
VICTIM = 2


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.02)


def heard(end: Outcome) -> list[Any]:
    found: list[Any] = json.loads(end.error.rsplit("SystemExit: ", 1)[1])
    return found


def tell(*words: Any) -> None:
    """End with a message: survivors cannot part in an orderly way."""
    raise SystemExit(json.dumps(words))


def die(parent: dist.ProcessGroup, wanted: groups.Wanted, most: int) -> groups.Slot:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def killed_in_attach(after: float) -> None:
    """Rank 2 dies some time after it has begun to attach."""
    meeting.DEAD = 3.0  # as 20, sooner
    model = net()
    if dist.get_rank() == VICTIM:
        if after > 0:
            threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        else:
            groups._make = die
    start = time.monotonic()

    def attach() -> None:
        tw.attach(model, optimizer := sgd(model), tw.methods.qsgd(), min_size=0)
        train(model, optimizer, range(500))

    told = said(attach)
    tell(told, time.monotonic() - start)


@pytest.mark.parametrize("after", [0.0, 0.001, 0.2])
def test_killed_while_attaching_everybody_raises(after: float) -> None:
    ended = endings(killed_in_attach, 4, after, grace=40.0)
    assert ended[VICTIM].exitcode == -signal.SIGKILL
    for rank, end in enumerate(ended):
        if rank != VICTIM:
            told, seconds = heard(end)
            assert "PeerError" in told, told
            assert "rank 2" in told, told
            assert seconds < 30 * PATIENCE


def left(how: str, hook: bool) -> None:
    """Rank 2 stays alive and trains no more."""
    model: torch.nn.Module = net()
    if hook:
        model = DistributedDataParallel(model)
    optimizer = sgd(model)
    if isinstance(model, DistributedDataParallel):
        wire, hooked = tw.ddp_hook(tw.methods.qsgd(), model, optimizer, min_size=0)
        model.register_comm_hook(wire, hooked)
    else:
        wire = tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0)
    store = dist.distributed_c10d._get_default_store()
    train(model, optimizer, range(3))
    if dist.get_rank() == VICTIM:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "detached":
            wire.detach()
        elif how == "with":
            said(lambda: wire.__exit__(ZeroDivisionError, ZeroDivisionError("a line of the loop"), None))
        else:
            code.InteractiveInterpreter().runsource("1 / 0")  # what a notebook does with a cell that fails
        until = time.monotonic() + 8 * PATIENCE
        while time.monotonic() < until and store.add("told", 0) < 3:  # alive until the others have been told
            time.sleep(0.1)
        os._exit(0)
    start = time.monotonic()
    told = said(lambda: train(model, optimizer, range(3, 30)))
    store.add("told", 1)
    tell(told, time.monotonic() - start)


@pytest.mark.parametrize(
    ("how", "hook", "why"),
    [
        ("detached", False, "rank 2 of 4 does not go on: it detached after 3 rounds"),
        ("with", False, "rank 2 of 4 does not go on: it raised ZeroDivisionError: a line of the loop"),
        ("notebook", True, "rank 2 of 4 does not go on: it raised ZeroDivisionError: division by zero"),
        ("killed", True, "rank 2 of 4 has stopped answering"),
    ],
)
def test_whoever_waits_in_vain_is_told(how: str, hook: bool, why: str) -> None:
    ended = endings(left, 4, how, hook, grace=30.0)
    for rank, end in enumerate(ended):
        if rank != VICTIM:
            told, seconds = heard(end)
            assert told.startswith("PeerError: "), told
            assert why in told, told
            assert seconds < 15 * PATIENCE


def stop_until_killed(seconds: float) -> None:
    """Hang as a stopped process does; somebody else ends it."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -9 {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def stopped_with_the_store(folder: str) -> None:
    """A TCP store on rank 0, which is stopped: nobody can sign the roll, and nobody may hang."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    if host is not None:
        with open(f"{folder}/port.new", "w") as file:
            file.write(str(host.port))
        os.rename(f"{folder}/port.new", f"{folder}/port")
    while not os.path.exists(f"{folder}/port"):
        time.sleep(0.05)
    with open(f"{folder}/port") as file:
        port = int(file.read())
    store = host or dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    model = net()
    optimizer = sgd(model)
    # On a busy machine groups must be made within the time-out, too.
    tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0, timeout=12.0 * PATIENCE)
    train(model, optimizer, range(3))
    if rank == 0:
        stop_until_killed(15 * PATIENCE)
    start = time.monotonic()
    told = said(lambda: train(model, optimizer, range(3, 30)))
    tell(told, time.monotonic() - start)


def test_the_host_of_the_store_is_stopped(tmp_path: Any) -> None:
    ended = endings(stopped_with_the_store, 3, str(tmp_path), grace=40.0)
    for end in ended[1:]:
        told, seconds = heard(end)
        assert told.startswith("PeerError: "), told
        assert "rank 0" in told, told
        assert seconds < 30 * PATIENCE


def stopped_neighbour(stopped: int) -> None:
    """AD-PSGD with leave to drop: a rank that asks (1) or answers (0) is stopped; the living keep each other."""
    model = net()
    optimizer = sgd(model)
    wire = tw.attach(model, optimizer, tw.methods.ad_psgd(), min_size=0, timeout=3.0 * PATIENCE, drop_dead=True)
    begun, step, gone = time.monotonic(), 5, []
    train(model, optimizer, range(5))
    if dist.get_rank() == stopped:
        stop_until_killed(11 * PATIENCE)
    while time.monotonic() < begun + 10 * PATIENCE:
        train(model, optimizer, range(step, step + 1))
        step += 1
        time.sleep(0.08)
        if time.monotonic() < begun + 8 * PATIENCE:  # later, those who are done are gone, too
            gone = sorted(wire._runner.comm.gone)
    tell(gone, step)


@pytest.mark.parametrize("stopped", [0, 1])
def test_living_ranks_do_not_drop_each_other(stopped: int) -> None:
    ended = endings(stopped_neighbour, 4, stopped, timeout=90.0, grace=30.0)
    for rank, end in enumerate(ended):
        if rank != stopped:
            gone, steps = heard(end)
            near = {(stopped - 1) % 4, (stopped + 1) % 4}
            assert gone == ([stopped] if rank in near else []), (rank, gone)
            assert steps > 30
