"""A neighbour that disappears: an error that names the edge, or training goes on without it.

Survivors cannot part in an orderly way, so what they found comes through the error channel.
"""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from nets import batch, flat, loss, net, said, train
from ranks import PATIENCE, endings

import thinwire as tw
from thinwire.core.method import METHODS
from thinwire.engine import dropping
from thinwire.lab.launch import Outcome

pytestmark = pytest.mark.timeout(300)  # many processes, and machines that are busy
VICTIM = 2
STEPS = 40
WAIT = 30.0 * PATIENCE
"""The time-out where a rank is killed. Sockets tell of that at once; by the clock a busy machine drops the living."""


def killed_without_leave(method: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with tw.attach(model, optimizer, METHODS.parse(method), min_size=0, timeout=15.0 * PATIENCE):
        train(model, optimizer, range(3))
        if dist.get_rank() == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        told = said(lambda: train(model, optimizer, range(3, 30)))
    raise SystemExit(json.dumps([told, time.monotonic() - start]))


def heard(end: Outcome) -> list[object]:
    """What a survivor said at its end."""
    found: list[object] = json.loads(end.error.rsplit("SystemExit: ", 1)[1])
    return found


@pytest.mark.parametrize("method", ["d-psgd", "deepsqueeze"])
def test_without_leave_everybody_raises_and_the_edge_is_named(method: str) -> None:
    ended = endings(killed_without_leave, 4, method)
    assert ended[VICTIM].exitcode == -signal.SIGKILL
    for rank, end in enumerate(ended):
        if rank != VICTIM:
            told, seconds = heard(end)
            assert "PeerError: rank 2 of 4 has stopped answering" in str(told)
            assert float(str(seconds)) < 15 * PATIENCE
    edges = [f"the edge {rank}-{VICTIM} broke" in ended[rank].error for rank in (1, 3)]
    assert any(edges)


def killed_one_of_several(method: str, how: str) -> None:
    """Train on, and tell: the losses before and after, the distances, who is gone, the mean model's sum, the log."""
    logged: list[str] = []
    dropping.log.warning = lambda text, *words: logged.append(text % words)  # type: ignore[method-assign]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wait = WAIT if how == "killed" else 6.0 * PATIENCE
    quorum = None if how == "killed" else 1  # those who wait for the one that hangs may be dropped with it
    wire = tw.attach(model, optimizer, METHODS.parse(method), min_size=0, timeout=wait, drop_dead=True, quorum=quorum)
    train(model, optimizer, range(10))
    before = loss(model, batch(99, 0)).item()
    if dist.get_rank() == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    start = time.monotonic()
    train(model, optimizer, range(10, 10 + STEPS))
    seconds = time.monotonic() - start
    found = wire.consensus()
    mean = torch.cat([found.model[k].flatten() for k, _ in model.named_parameters()])
    own = flat(model)
    torch.nn.utils.vector_to_parameters(mean, model.parameters())
    after = loss(model, batch(99, 0)).item()
    gone = sorted(wire._runner.comm.gone)
    apart = (own - mean).norm().item()
    told = [*logged, wire.stats()["ranks_dropped"]]
    raise SystemExit(json.dumps([before, after, found.distance, apart, gone, mean.sum().item(), seconds, told]))


@pytest.mark.parametrize("method", ["d-psgd", "deepsqueeze", "choco-sgd:copies=true", "sgp"])
def test_with_leave_the_survivors_go_on(method: str) -> None:
    ended = endings(killed_one_of_several, 5, method, "killed", grace=60.0)
    assert ended[VICTIM].exitcode == -signal.SIGKILL
    survivors = [heard(end) for rank, end in enumerate(ended) if rank != VICTIM]
    sums = set()
    near = [rank for rank in range(5) if rank != VICTIM]
    for rank, (before, after, distance, apart, gone, total, seconds, told) in zip(near, survivors, strict=True):
        assert float(str(seconds)) < WAIT
        assert float(str(after)) < 0.75 * float(str(before))
        assert gone == [VICTIM]
        assert isinstance(told, list)
        assert told[0].startswith(f"rank {rank} has dropped rank {VICTIM}, and goes on without it: "), told
        assert told[1:] == [1]
        assert 0 < float(str(apart)) < 4 * float(str(distance)) < 4
        sums.add(round(float(str(total)), 3))
    assert len(sums) == 1  # all found the same mean model


def test_one_that_hangs_is_dropped_after_the_time_out() -> None:
    """The connection is open but silent: gloo gives up on the edge, and on that edge only."""
    ended = endings(killed_one_of_several, 4, "deepsqueeze", "stopped", timeout=80.0, grace=6.0)
    for rank, end in enumerate(ended):
        if rank != VICTIM:
            assert VICTIM in heard(end)[4]  # type: ignore[operator]
            assert float(str(heard(end)[1])) < 0.75 * float(str(heard(end)[0]))


def killed_in_a_group() -> None:
    """Ranks 1 and 3 exchange with each other; first they differ, and then rank 3 dies."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    method, settings = tw.methods.qsgd(), {"process_group": groups[rank % 2], "min_size": 0}
    differs = said(lambda: tw.attach(model, optimizer, method, seed=rank, **settings))
    tw.attach(model, optimizer, method, **settings)
    train(model, optimizer, range(3))
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(model, optimizer, range(3, 6))
    except tw.PeerError as error:
        raise SystemExit(json.dumps([differs, str(error), error.ranks])) from None
    raise SystemExit(json.dumps([differs, "", []]))


def test_ranks_of_a_group_have_the_numbers_of_the_whole_job() -> None:
    """As with tw.fsdp, where those exchange that hold the same shards."""
    ended = endings(killed_in_a_group, 4, grace=30.0)
    differs, told, ranks = heard(ended[1])
    assert differs == "ValueError: ranks differ in seed: rank 1 has 1; rank 3 has 3"
    assert str(told).startswith("rank 3 of 4 has stopped answering"), told
    assert ranks == [3]
    assert heard(ended[0])[1:] == ["", []]
