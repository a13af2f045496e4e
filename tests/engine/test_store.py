"""The store that ranks meet at: one connection per process, a place per attempt of the job, a host that hangs."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import net, said, train
from ranks import PATIENCE, endings, on_ranks

import thinwire as tw
from thinwire.engine import ending, meeting, store, watch


def test_the_threads_of_a_meeting_are_known_to_what_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for the network when the script ends would abort the process."""
    registered: list[Any] = []
    monkeypatch.setattr(ending, "_process", [])
    monkeypatch.setattr(atexit, "register", registered.append)
    assert meeting._start(lambda: 5).result() == 5
    assert registered == [ending._at_exit]


def share(host: dist.Store) -> None:
    """Let thinwire and the groups that it makes use this store; the default group has met in its own."""
    world: Any = dist.distributed_c10d._world
    world.pg_map[dist.group.WORLD] = "gloo", dist.PrefixStore("default_pg", host)


def attach(group: dist.ProcessGroup | None = None) -> str:
    """What attach and a step raise."""
    model = net(seed=dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def work() -> None:
        timeout = 20.0 * PATIENCE
        with tw.attach(model, optimizer, tw.methods.qsgd(), process_group=group, min_size=0, timeout=timeout):
            train(model, optimizer, range(1))

    return said(work)


def attempt(port: int, restarts: str) -> tuple[list[str], int]:
    """What wires of this attempt raise, and how often the process has connected to the store.

    The last wire is that of an attempt which torchrun does not count, as after a node has come.
    """
    os.environ["TORCHELASTIC_RESTART_COUNT"] = restarts
    share(dist.TCPStore("127.0.0.1", port, is_master=False))
    clone, connected = store._clone, []

    def counted(default: dist.Store, limit: float) -> dist.Store | None:
        connected.append(limit)
        return clone(default, limit)

    store._clone = counted
    told = [attach(), attach()]
    store._opened.clear()
    return [*told, attach()], len(connected)


def test_a_restarted_job_meets_no_keys_of_the_attempt_before() -> None:
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for restarts in "01":
        for told, connected in on_ranks(attempt, 2, host.port, restarts):
            assert told[:2] == ["", ""], told
            assert connected == 1
            assert "kept keys of an earlier attempt" in told[2]
            assert "write TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun" in told[2]


def without_host() -> None:
    """Rank 2 hosts the store: it sleeps when the others begin to attach, and dies before they do so again."""
    watch.PATIENCE = 0.5  # instead of 3, so that it need not sleep for long
    rank, meets, word = dist.get_rank(), dist.new_group([0, 1]), torch.zeros(1, dtype=torch.int64)
    if rank == 2:
        host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        dist.broadcast(word.fill_(host.port), 2)
        dist.barrier()
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.broadcast(word, 2)
    share(dist.TCPStore("127.0.0.1", int(word), is_master=False))
    dist.barrier()
    time.sleep(0.2)  # until it sleeps
    begun = time.monotonic()
    waited = attach(meets), time.monotonic() - begun
    store._connections.clear()
    dist.barrier()
    time.sleep(0.2)
    begun = time.monotonic()
    gone = attach(meets), time.monotonic() - begun
    raise SystemExit(json.dumps([*waited, *gone]))


def test_a_store_whose_host_sleeps_is_waited_for_and_one_that_is_gone_is_not() -> None:
    for end in endings(without_host, 3, grace=30.0)[:2]:
        waited, slept, gone, seconds = json.loads(end.error.rsplit("SystemExit: ", 1)[1])
        assert waited == ""
        assert slept > 1
        assert gone.startswith("PeerError: the store that the ranks met at is gone"), gone
        assert seconds < 20 * PATIENCE
