"""Parameter servers in real processes: what holds whatever the timing, and what happens when somebody dies."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from logistic import L1, logistic, optimum
from nets import Point, batch, equal_everywhere, flat, loss, net, said, train
from ranks import endings, on_ranks
from torch import Tensor

import thinwire as tw

pytestmark = pytest.mark.timeout(300)  # many processes, and machines that are busy
NAMES = [
    "asgd",
    "asgd:compressor=(qsgd:bits=4)",
    "softsync:splits=3",
    "dc-asgd",
    "backup-workers",
    "ssp:staleness=1",
    "ssp:staleness=2,cache=true",
    "r2sp:profile=2",
    "asylpg:batches=2,updates=10",
    "asylpg:batches=2,updates=10,ratio=0.5,around=true,accelerated=true",
    "consensus-admm:every=2",
    "async-admm:least=2,tau=3,every=2,compressor=(qsgd:bits=8)",
    "ad-admm:tau=3,gamma=1,every=2",
    "spy:p=0.5,l1=0.0001,compressor=(qsgd:bits=8)",
    "dbpg:blocks=2,tau=2,l1=0.0001,kkt=0.0001,significant=0.001",
    "async-diloco:every=2,outer_lr=0.5,compressor=(qsgd:bits=8),feedback=true",
    "easgd-async:alpha=0.3,every=2,compressor=(qsgd:bits=8)",
]
STEPS = 8


def trained(names: list[str]) -> list[tuple[float, float, dict[str, float]]]:
    """The loss before and after, and the figures."""
    out = []
    for name in names:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        before = loss(model, batch(99, 0)).item()
        with tw.attach(model, optimizer, tw.method(name), min_size=0) as wire:
            for step in range(STEPS):
                if dist.get_rank() == 1:
                    time.sleep(0.01)
                closures = name.startswith(("asylpg", "dc-asgd"))
                train(model, optimizer, range(step, step + 1), closures=closures)
            stats = wire.stats()
            if name.startswith(("async-diloco", "easgd")):
                assert all(one.isfinite().all() for one in wire.anchor().values())
        out.append((before, loss(model, batch(99, 0)).item(), stats))
    return out


def test_every_rule_trains_and_keeps_its_promise() -> None:
    ended = on_ranks(trained, 3, NAMES)
    for name, (before, after, figures) in zip(NAMES, ended[0], strict=True):
        assert after < before, name
        assert figures["pushes"] <= 3 * STEPS
        assert figures["used"] + figures["dropped"] <= figures["pushes"]
        if name.startswith("backup"):
            assert figures["staleness_max"] == 0
        elif name.startswith("ssp:staleness=1"):
            assert figures["staleness_max"] <= 2 * (2 * 1 + 1)  # each of the others may be s ahead or behind
        elif name.startswith("r2sp"):
            assert figures["staleness_max"] == 2
        elif name.startswith("asylpg"):
            assert figures["staleness_max"] < 10  # an epoch's updates
            assert figures["pushes"] < 3 * STEPS  # the batches of a full gradient are pushed together
        elif "admm" in name:
            assert figures["pushes"] <= 3 * STEPS / 2
            assert figures["staleness_max"] <= (2 if "tau=3" in name else 0)
        elif name.startswith("dbpg"):
            assert figures["in_flight_max"] <= 2 + 1


def sparse(tau: int) -> tuple[float, dict[str, float]]:
    """What is left of the objective of a sparse logistic regression."""
    problem, rank = logistic(3, 20), dist.get_rank()
    model = Point(20)
    optimizer = torch.optim.SGD(model.parameters(), lr=problem.eta)
    method = tw.methods.dbpg(l1=L1, blocks=2, tau=tau, kkt=0.5 * L1)
    with tw.attach(model, optimizer, method, min_size=0) as wire:
        for _ in range(60):
            optimizer.zero_grad()
            problem.loss(model.x, rank).backward()
            optimizer.step()
        stats = wire.stats()
    return problem.objective(model.x.detach()) - problem.objective(optimum(3, 20)), stats


def sparse_twice() -> list[tuple[float, dict[str, float]]]:
    return [sparse(tau) for tau in (0, 4)]


def test_a_sparse_regression_finds_the_optimum_with_and_without_delay() -> None:
    for tau, (excess, figures) in zip((0, 4), on_ranks(sparse_twice, 3)[0], strict=True):
        assert abs(excess) < 1e-4
        assert figures["in_flight_max"] <= tau + 1
        assert figures["staleness_max"] <= tau


def in_step() -> tuple[Tensor, Tensor]:
    """Bulk-synchronous steps by a server, and by a mean of all ranks."""
    ends = []
    for method in (tw.method("backup-workers:spares=0"), tw.Method(tw.exchange.AllReduce())):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with tw.attach(model, optimizer, method, min_size=0):
            train(model, optimizer, range(6))
        ends.append(flat(model))
    return ends[0], ends[1]


def test_a_server_that_waits_for_all_is_the_mean() -> None:
    """Momentum lies with the server, and rank 0 ends with the server's model."""
    for served, mean in on_ranks(in_step, 2):
        torch.testing.assert_close(served, mean, rtol=1e-4, atol=1e-5)


def killed(name: str, who: int) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    wire = tw.attach(model, optimizer, tw.method(name), min_size=0, timeout=20.0)
    if wire.trains:
        train(model, optimizer, range(3))
        if dist.get_rank() == who:
            os.kill(os.getpid(), signal.SIGKILL)
        train(model, optimizer, range(3, 15))
    wire.detach()
    raise SystemExit(json.dumps("done"))


@pytest.mark.parametrize("name", ["asgd", "backup-workers", "ssp", "r2sp"])
def test_the_others_go_on_without_a_worker(name: str) -> None:
    """Where servers are set apart: a rank that serves takes its shard with it."""
    for rank, end in enumerate(endings(killed, 4, f"{name}:servers=1", 2, grace=60.0)):
        if rank != 2:
            assert end.error.rstrip().endswith('SystemExit: "done"'), end.error


def test_a_server_that_dies_is_named_with_its_shard() -> None:
    """Also where another server ends because of it, and is heard of first."""
    for rank, end in enumerate(endings(killed, 3, "asgd", 2, grace=60.0)):
        if rank != 2:
            assert "PeerError: the server on rank 2 is lost, and with it shard 2 (4.bias, 4.weight" in end.error


def hung() -> tuple[str, float, float]:
    """One of two workers sleeps for longer than the timeout; the other must wait for it until then."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    wire = tw.attach(model, optimizer, tw.method("ssp:staleness=1,servers=1"), min_size=0, timeout=5.0)
    told, begun = "", time.monotonic()
    if wire.trains:
        train(model, optimizer, range(2))
        if dist.get_rank() == 1:
            time.sleep(8.0)
        told = said(lambda: train(model, optimizer, range(2, 8)))
    took = time.monotonic() - begun
    if not told:
        wire.detach()
    return told, took, wire.stats().get("workers_lost", 0.0)


def test_a_worker_that_hangs_is_waited_for_no_longer_than_the_timeout() -> None:
    (told, took, _), (late, _, _), (_, _, lost) = on_ranks(hung, 3)
    assert not told
    assert 4.0 < took < 8.0
    assert "the server on rank 2 goes on without this rank, which was silent for 8 s" in late
    assert lost == 1


def switched() -> list[bool]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    equal = []
    with tw.attach(model, optimizer, tw.method("asgd"), min_size=0) as wire:
        train(model, optimizer, range(dist.get_rank()))  # one takes a step more, and then meets the other
        equal.append(wire.consensus().distance >= 0)
        for name in ("sgd", "ssp", "qsgd:bits=4"):
            train(model, optimizer, range(3))
            wire.switch(tw.method(name))
            equal.append(equal_everywhere(flat(model)))
        train(model, optimizer, range(3))
        equal.append(equal_everywhere(flat(model)))
    return equal


def test_methods_with_and_without_a_server_take_over_from_each_other() -> None:
    for equal in on_ranks(switched, 2):
        assert all(equal)


def refused() -> list[str]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with tw.attach(model, optimizer, tw.method("asgd:servers=1"), min_size=0) as wire:
        told = "" if wire.trains else said(lambda: train(model, optimizer, range(1)))
        assert wire.batch(64) == 64
        assert "batch(0): write how many samples" in said(lambda: wire.batch(0))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    return [
        told,
        said(lambda: tw.ddp_hook(tw.method("asgd"), ddp, optimizer)),
        said(lambda: tw.attach(model, optimizer, tw.method("backup-workers:spares=2"))),
        said(lambda: tw.attach(model, optimizer, tw.method("asgd"), drop_dead=True)),
    ]


def test_what_a_server_cannot_do_is_refused() -> None:
    parts = [
        "write `if wire.trains:` before the training loop",
        "write tw.attach(model.module, optimizer, method)",
        "waits for nobody",
        "leave drop_dead out",
    ]
    worker, server = on_ranks(refused, 2)
    assert not worker[0]
    for told in (worker[1:], server):
        for text, part in zip(told, parts[-len(told) :], strict=True):
            assert part in text
