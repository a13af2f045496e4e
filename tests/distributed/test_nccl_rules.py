"""Every method under NCCL's rules, and that each rule is kept by refusing what breaks it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_rules import Rules, pretend
from nets import BRIEF, MUON, equal_everywhere, flat, net, train
from ranks import endings, on_ranks
from torch import Tensor

import thinwire as tw
from thinwire import Comm
from thinwire.comm import backend
from thinwire.comm.processes import Processes
from thinwire.core.method import METHODS
from thinwire.lab.step_sizes import Step, optimizer_of

STEPS = 2


def trained(name: str) -> tuple[Tensor, bool]:
    model = net()
    method = METHODS.parse(name)
    optimizer = optimizer_of(method, Step(0.01), model.parameters())
    with tw.attach(model, optimizer, method, min_size=0, timeout=30.0):
        train(model, optimizer, range(STEPS), closures=method.exchange.served)
    return flat(model), method.sync.of.models or equal_everywhere(flat(model))


def both_ways(names: list[str]) -> dict[str, tuple[bool, bool, list[str]]]:
    plain = {name: trained(name)[0] for name in names}
    rules = pretend()
    out = {}
    for name in names:
        rules.calls.clear()
        model, equal = trained(name)
        out[name] = torch.equal(model.view(torch.int32), plain[name].view(torch.int32)), equal, list(rules.calls)
    return out


IN_STEP = [
    BRIEF.get(name, name)
    for name in METHODS
    if not METHODS[name]().exchange.asynchronous and (MUON or name != "muloco")
]


def check(results: list[dict[str, tuple[bool, bool, list[str]]]]) -> None:
    for result in results:
        for name, (as_gloo, equal, calls) in result.items():
            assert as_gloo, f"{name} gives other bits"
            assert equal, f"{name}: replicas differ"
            assert calls, name
    first, *others = results
    for name, (_, _, calls) in first.items():
        sums = calls.count("all_reduce")
        assert all(other[name][2].count("all_reduce") == sums for other in others), name


@pytest.mark.long
def test_every_method_on_two_ranks() -> None:
    check(on_ranks(both_ways, 2, IN_STEP))


def test_some_methods_on_three_ranks() -> None:
    check(on_ranks(both_ways, 3, ["qsgd", "ecq-sgd", "ef-signsgd", "d-psgd", "gtopk", "terngrad"]))


def asynchronous(names: list[str]) -> list[list[str]]:
    rules, out = pretend(), []
    for name in names:
        rules.calls.clear()
        trained(name)
        out.append(list(rules.calls))
    return out


def test_what_runs_beside_training_has_groups_of_gloo() -> None:
    names = [name for name in METHODS if METHODS[name]().exchange.asynchronous]
    assert names
    for calls in on_ranks(asynchronous, 2, names):
        assert all(set(one) <= {"all_reduce", "batch"} for one in calls)


def several_pieces(chunk_mb: float) -> tuple[int, bool]:
    """How many pieces of work were open at once, with lanes that take turns."""
    pretend()
    lock, now, most = threading.Lock(), 0, 0
    run = Processes.run

    def counted(self: Processes, coroutine: Coroutine[Any, Any, Any], clock: Any = None) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        try:
            time.sleep(0.002)  # as an encoder takes its time
            return run(self, coroutine, clock)
        finally:
            with lock:
                now -= 1

    Processes.run = counted  # type: ignore[method-assign]
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = tw.methods.qsgd(bits=4)
    method = tw.Method(method.exchange, overlap=tw.Overlap(bucket_mb=1.0, chunk_mb=chunk_mb, in_flight=4))
    with tw.attach(model, optimizer, method, min_size=0, timeout=30.0):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
    return most, equal_everywhere(flat(model))


def test_several_pieces_are_open_under_nccl() -> None:
    for most, equal in on_ranks(several_pieces, 2, 2048 / 2**20):
        assert most > 1
        assert equal


Program = Callable[[Comm], Coroutine[Any, Any, Any]]


async def from_anybody(comm: Comm) -> None:
    if comm.rank:
        await comm.send(0, torch.ones(3))
    else:
        await comm.recv(None)


async def other_sizes(comm: Comm) -> None:
    await comm.all_gather(torch.ones(2 + comm.rank), sizes=[2, 2])


async def other_types(comm: Comm) -> None:
    await comm.all_gather(torch.ones(2, dtype=torch.float64 if comm.rank else torch.int64), equal=True)


async def other_order(comm: Comm) -> None:
    if comm.rank:
        await comm.all_reduce(torch.ones(2))
        await comm.swap(torch.ones(2), [0], equal=True)
    else:
        await comm.swap(torch.ones(2), [1], equal=True)
        await comm.all_reduce(torch.ones(2))


async def other_sums(comm: Comm) -> None:
    await comm.all_reduce(torch.ones(2), "max" if comm.rank else "sum")


async def posted(comm: Comm) -> None:
    await comm.post(1 - comm.rank, torch.ones(3))


async def odd_type(comm: Comm) -> None:
    await comm.all_reduce(torch.ones(3, dtype=torch.int16))


BROKEN: list[Program] = [from_anybody, other_sizes, other_types, other_order, other_sums, posted, odd_type]


def broken(number: int) -> None:
    pretend()
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=1))
    driver = Processes({(0, 1): group})
    driver.run(BROKEN[number](driver.comm))


@pytest.mark.parametrize("program", BROKEN, ids=lambda p: p.__name__)
def test_what_nccl_would_refuse_is_refused(program: Program) -> None:
    said = [end.error for end in endings(broken, 2, BROKEN.index(program), timeout=20.0, grace=0.2)]
    assert any("nccl_rules.RefusedError" in one for one in said), said


def test_tensors_of_the_user_are_not_where_nccl_reads() -> None:
    rules, mine = Rules(), torch.ones(3)
    assert not rules.holds(mine)
    assert rules.holds(rules.bring(mine))
    assert rules.holds(rules.room(3, torch.float32, mine)[1:])
    with pytest.raises(AssertionError, match="lies where NCCL cannot read it"):
        rules._check(mine)


def test_two_threads_on_one_group_are_refused() -> None:
    class Group:
        group_name = "one"

    rules: Any = Rules()
    with (
        rules._on(Group(), "all_reduce"),
        pytest.raises(AssertionError, match="two threads"),
        rules._on(Group(), "x"),
    ):
        pass
    with rules._on(Group(), "all_reduce"):
        pass


def test_backends_by_name() -> None:
    assert backend.named("nccl").in_turn
    assert not backend.named("gloo").in_turn
    assert backend.named("mpi").name == "gloo"
    with pytest.raises(ValueError, match="cannot receive from anybody"):
        backend.Nccl().recv(torch.empty(1), None, None)  # type: ignore[arg-type]
