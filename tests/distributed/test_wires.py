"""Several wires in one process: side by side, in one backward pass, one after the other, and beside DDP."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from typing import Any

import torch
from nets import batch, equal_everywhere, flat, loss, net, said, train
from ranks import on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def twins(ranks: int) -> list[Any]:
    """Two nets of different shapes under one loss, each with its own wire, beside the same with one large batch."""
    models = [net(1), nn.Sequential(nn.Linear(16, 50), nn.ReLU(), nn.Linear(50, 4))]
    alone = [net(1), nn.Sequential(nn.Linear(16, 50), nn.ReLU(), nn.Linear(50, 4))]
    alone[1].load_state_dict(models[1].state_dict())
    optimizers, plain = [sgd(m) for m in models], [sgd(m) for m in alone]
    wires = [tw.attach(m, o, tw.methods.sgd()) for m, o in zip(models, optimizers, strict=True)]
    alone[1].load_state_dict(models[1].state_dict())
    for step in range(8):
        data = [batch(step, rank) for rank in range(ranks)]
        mine = data[torch.distributed.get_rank()]
        for optimizer in [*optimizers, *plain]:
            optimizer.zero_grad()
        sum((loss(m, mine) for m in models), torch.zeros(())).backward()
        (sum((loss(m, one) for m in alone for one in data), torch.zeros(())) / ranks).backward()
        for optimizer in [*optimizers, *plain]:
            optimizer.step()
    for wire in wires:
        wire.detach()
    apart = max(float((flat(a) - flat(b)).abs().max()) for a, b in zip(models, alone, strict=True))
    return [apart, *(equal_everywhere(flat(m)) for m in models)]


def test_two_wires_under_one_loss() -> None:
    for apart, *equal in on_ranks(twins, 2, 2):
        assert apart < 1e-6
        assert all(equal)


def one_fails(which: int, *, steps_other: bool) -> list[Any]:
    """In step 2 the learning rates of one of two wires differ between ranks; the loop notes the error and goes on."""
    models, alone = [net(1), net(2)], [net(1), net(2)]
    optimizers, plain = [sgd(m) for m in models], [sgd(m) for m in alone]
    small = replace(tw.methods.sgd(), overlap=tw.Overlap(bucket_mb=1024 / 2**20))
    wires = [tw.attach(m, o, small, min_size=0, timeout=20) for m, o in zip(models, optimizers, strict=True)]
    told = []
    for step in range(5):
        data = [batch(step, rank) for rank in range(torch.distributed.get_world_size())]
        for optimizer in [*optimizers, *plain]:
            optimizer.zero_grad()
        optimizers[which].param_groups[0]["lr"] = 0.1 + (step == 2) * torch.distributed.get_rank()
        total = sum((loss(m, data[torch.distributed.get_rank()]) for m in models), torch.zeros(()))
        told.append(said(total.backward))
        assert not any(bucket.open for wire in wires for bucket in wire._loop.buckets)  # nothing is under way
        (sum((loss(m, one) for m in alone for one in data), torch.zeros(())) / len(data)).backward()
        for number, (mine, other) in enumerate(zip(optimizers, plain, strict=True)):
            if step != 2 or (steps_other and number != which):
                mine.step()
                other.step()
    for wire in wires:
        wire.detach()
    apart = [float((flat(a) - flat(b)).abs().max()) for a, b in zip(models, alone, strict=True)]
    return [told, max(apart), *(equal_everywhere(flat(m)) for m in models)]


def failing_in_turn() -> list[Any]:
    return [one_fails(which, steps_other=steps) for which in (0, 1) for steps in (False, True)]


def test_when_one_of_two_wires_raises_the_other_has_ended_its_round() -> None:
    for rank in on_ranks(failing_in_turn, 2):
        for told, apart, *equal in rank:
            assert "learning rates differ between ranks in step 2" in told.pop(2)
            assert told == [""] * 4
            assert apart < 1e-6
            assert all(equal)


def gan() -> list[bool]:
    """The generator's backward pass also fills the discriminator's gradients."""
    torch.manual_seed(0)
    make, judge = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 1))
    makes, judges = sgd(make), sgd(judge)
    bce = nn.functional.binary_cross_entropy_with_logits
    with (
        tw.attach(make, makes, tw.methods.qsgd(), min_size=0) as one,
        tw.attach(judge, judges, tw.methods.ecq_sgd(), min_size=0) as other,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        for step in range(6):
            real, noise = batch(step)[0], torch.randn(8, 8)
            judges.zero_grad()
            (bce(judge(real), torch.ones(8, 1)) + bce(judge(make(noise).detach()), torch.zeros(8, 1))).backward()
            judges.step()
            makes.zero_grad()
            bce(judge(make(noise)), torch.ones(8, 1)).backward()
            makes.step()
        rounds = [one.stats()["rounds"], other.stats()["rounds"]]
    warned = sum("no_sync" in str(one.message) for one in told)
    return [equal_everywhere(flat(make)), equal_everywhere(flat(judge)), rounds == [6, 12], warned == 1]


def test_a_backward_pass_that_reaches_two_wires() -> None:
    for found in on_ranks(gan, 2):
        assert all(found)


def mixed() -> list[Any]:
    """A wire, a hook, plain DDP and a wire that gossips, in turns and under one loss; then the same again."""
    found: list[Any] = []
    for _ in range(2):
        models: list[nn.Module] = [net(1), DistributedDataParallel(net(2)), DistributedDataParallel(net(3)), net(4)]
        optimizers = [sgd(m) for m in models]
        first = tw.attach(models[0], optimizers[0], tw.methods.ecq_sgd(), min_size=0)
        hooked = models[1]
        assert isinstance(hooked, DistributedDataParallel)
        second, hook = tw.ddp_hook(tw.methods.qsgd(), hooked, optimizers[1], min_size=0)
        hooked.register_comm_hook(second, hook)
        last = tw.attach(models[3], optimizers[3], tw.methods.deepsqueeze(), min_size=0)
        for step in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum((loss(m, batch(step)) for m in models), torch.zeros(())).backward()
            for optimizer in optimizers:
                optimizer.step()
        for wire in (first, second, last):
            wire.detach()
        found.append([flat(m) for m in models[:3]])
    same = [torch.equal(a, b) for a, b in zip(*found, strict=True)]
    return [*same, *(equal_everywhere(x) for x in found[0])]


def test_wires_hooks_and_ddp_side_by_side_and_again() -> None:
    assert all(all(found) for found in on_ranks(mixed, 4))


def in_turns(times: int) -> tuple[list[Tensor], int, int]:
    """Attach, train and detach again and again: the same result, no threads and no process groups left behind."""
    found, threads = [], []
    for _ in range(times):
        model = net()
        optimizer = sgd(model)
        with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0):
            train(model, optimizer, range(3))
        hooked = DistributedDataParallel(net())
        optimizer = sgd(hooked)
        wire, hook = tw.ddp_hook(tw.methods.qsgd(), hooked, optimizer, min_size=0)
        hooked.register_comm_hook(wire, hook)
        train(hooked, optimizer, range(3))
        wire.detach()
        found += [flat(model), flat(hooked)]
        threads.append(sum(one.name.startswith("thinwire") for one in threading.enumerate()))
    groups = len(torch.distributed.distributed_c10d._world.pg_map)
    return found, max(threads), groups


def test_one_after_the_other_leaves_nothing_behind() -> None:
    for found, threads, groups in on_ranks(in_turns, 2, 4):
        assert all(torch.equal(found[0], other) for other in found)  # and a hook is bit for bit what attach is
        assert threads == 0
        assert groups == 1 + tw.Overlap().sizes("cpu").in_flight  # the next wire takes what the last one gave back


def forgotten() -> int:
    """A wire that is forgotten together with its model, without detach."""
    import gc  # noqa: PLC0415
    import time  # noqa: PLC0415

    model = net()
    optimizer = sgd(model)
    tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0)
    train(model, optimizer, range(2))
    torch.distributed.barrier()
    del model, optimizer
    gc.collect()
    time.sleep(0.5)
    return sum(one.name.startswith("thinwire") for one in threading.enumerate())


def test_a_forgotten_wire_leaves_no_threads() -> None:
    assert on_ranks(forgotten, 2) == [0, 0]


def detached_twice() -> str:
    """A wire is detached in its block, and at the end of the block another one has its model."""
    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.qsgd()) as first:
        first.detach()
        second = tw.attach(model, optimizer, tw.methods.qsgd())
    refused = said(lambda: tw.attach(model, optimizer, tw.methods.qsgd()))
    second.detach()
    return refused


def test_a_wire_that_is_detached_twice_leaves_the_next_one_alone() -> None:
    assert "attached already" in on_ranks(detached_twice, 1)[0]
