"""Loops that do more than zero, backward and step: each is compared with one process that sees the batches of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said
from ranks import endings, on_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw

Loss = Callable[[int], Tensor]
STEPS = 6


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def of_all(model: nn.Module, step: int) -> Tensor:
    """The loss that one process has for all ranks."""
    size = dist.get_world_size()
    losses = [loss(model, batch(step, rank)) for rank in range(size)]
    return torch.stack(losses).mean()


def beside_one_process(loop: Callable[[nn.Module, torch.optim.Optimizer, Loss], None], method: str) -> list[Any]:
    """How far a loop under `attach` ends from the same loop in one process, and whether all ranks end alike."""
    model, alone = net(), net()
    with tw.attach(model, optimizer := sgd(model), tw.method(method), min_size=0):
        loop(model, optimizer, lambda step: loss(model, batch(step)))
    loop(alone, sgd(alone), lambda step: of_all(alone, step))
    return [float((flat(model) - flat(alone)).abs().max()), equal_everywhere(flat(model))]


def cast(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
    """`half` gives the tensors in `p.grad` other memory."""
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
        if step == STEPS // 2:
            model.half().float()


def replaced(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> None:
    """As older loops clip."""
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(step).backward()
        for p in model.parameters():
            assert p.grad is not None
            p.grad.data = p.grad.data.clamp(-0.01, 0.01)
        optimizer.step()


def other_memory() -> list[list[Any]]:
    return [beside_one_process(loop, method) for loop in (cast, replaced) for method in ("sgd", "qsgd")]


def test_gradients_may_be_given_other_memory() -> None:
    for found in on_ranks(other_memory, 2):
        assert [equal for _, equal in found] == [True] * 4
        assert max(found[0][0], found[2][0]) < 1e-6


def compiled_steps(way: str, *, compiled: bool) -> Tensor:
    """One function computes gradients and steps; torch would compile the hooks that it calls."""
    model: nn.Module = net()
    optimizer = sgd(model)
    if way == "ddp":
        model = DistributedDataParallel(model)
        wire, hook = tw.ddp_hook(tw.methods.qsgd(), model, optimizer, min_size=0)
        model.register_comm_hook(wire, hook)
    else:
        wire = tw.attach(model, optimizer, tw.method(way), min_size=0)

    def step(data: tuple[Tensor, Tensor]) -> None:
        optimizer.zero_grad()
        loss(model, data).backward()
        optimizer.step()

    take = torch.compile(step, backend="eager") if compiled else step
    for number in range(3):
        take(batch(number))
    wire.detach()
    return flat(model)


def compiled_in_all_ways() -> list[list[Any]]:
    found = []
    for way in ("qsgd", "ddp", "local-sgd:every=2"):
        whole = compiled_steps(way, compiled=True)
        found.append([torch.equal(whole, compiled_steps(way, compiled=False)), equal_everywhere(whole)])
    return found


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_may_compute_gradients_and_step() -> None:
    for qsgd, ddp, local in on_ranks(compiled_in_all_ways, 2):
        assert qsgd == [True, True]
        assert ddp == [True, True]
        assert local[0]


class Fails(torch.autograd.Function):
    """A layer whose backward pass raises while `now`."""

    now = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        if Fails.now:
            raise ZeroDivisionError
        return g


class Failing(nn.Module):
    """A net that can fail between its second and its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net[1:](Fails.apply(self.net[0](x)))  # type: ignore[no-untyped-call]
        return out


def survived(method: tw.Method, ranks: tuple[int, ...], *, step_all_the_same: bool) -> list[Any]:
    """Step 3 fails in its backward pass on these ranks; the loop leaves it out there, or steps without it."""
    model, alone = Failing(), net()
    others = sgd(alone)
    with tw.attach(model, optimizer := sgd(model), method, min_size=0, timeout=20):
        for step in range(STEPS):
            optimizer.zero_grad()
            Fails.now = step == 3 and dist.get_rank() in ranks
            try:
                loss(model, batch(step)).backward()
            except ZeroDivisionError:
                if not step_all_the_same:
                    continue
            optimizer.step()
    for step in range(STEPS):
        if step != 3:
            others.zero_grad()
            of_all(alone, step).backward()
            others.step()
    return [float((flat(model) - flat(alone)).abs().max()), equal_everywhere(flat(model))]


def all_ways_to_survive() -> list[Any]:
    sgd, ahead = tw.methods.sgd(), replace(tw.methods.sgd(), overlap=tw.Overlap(into_forward="need"))
    everybody = [survived(one, (0, 1), step_all_the_same=False) for one in (sgd, ahead)]
    one = [survived(one, (1,), step_all_the_same=True) for one in (sgd, tw.methods.ecq_sgd())]
    return [everybody, one]


def test_after_a_backward_pass_that_failed_the_next_one_is_right() -> None:
    """With one bucket nothing has been sent when a pass fails in its middle."""
    for everybody, one in on_ranks(all_ways_to_survive, 2):
        assert [equal for _, equal in everybody + one] == [True] * 4
        assert max(apart for apart, _ in everybody) < 1e-6


def failed_on_the_way() -> None:
    small = replace(tw.methods.sgd(), overlap=tw.Overlap(bucket_mb=1024 / 2**20))
    survived(small, (1,), step_all_the_same=False)


@pytest.mark.timeout(120)
def test_a_backward_pass_that_failed_with_buckets_on_their_way_is_told_of() -> None:
    waits, failed = endings(failed_on_the_way, 2)
    assert "an exception ended the last backward pass when" in failed.error
    assert "PeerError: rank 1 of 2" in waits.error


def searched(way: str) -> list[Any]:
    """LBFGS searches along a line by the losses that its closure returns."""
    model = net()
    wrapped = DistributedDataParallel(model) if way == "ddp" else model
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    if way == "ddp":
        wire, hook = tw.ddp_hook(tw.methods.sgd(), wrapped, optimizer)  # type: ignore[arg-type]
        wrapped.register_comm_hook(wire, hook)  # type: ignore[operator]
    elif way == "attach":
        wire = tw.attach(model, optimizer, tw.methods.sgd())
    losses, passes = [], 0
    for step in range(3):

        def closure(step: int = step) -> Tensor:
            nonlocal passes
            passes += 1
            optimizer.zero_grad()
            value = of_all(model, step) if way == "alone" else loss(wrapped, batch(step))
            value.backward()
            return value

        losses.append(float(optimizer.step(closure)))
    if way != "alone":
        found = wire.stats()
        assert (found["steps"], found["ddp_bytes"]) == (3, passes * 4 * flat(model).numel())
        wire.detach()
    return [flat(model), losses, equal_everywhere(flat(model))]


def searched_in_all_ways() -> list[Any]:
    return [searched(way) for way in ("alone", "attach", "ddp")]


def test_a_line_search_takes_one_step_on_all_ranks() -> None:
    for (alone, losses, _), *found in on_ranks(searched_in_all_ways, 2):
        for model, its, equal in found:
            assert equal
            assert torch.allclose(model, alone, atol=1e-5)
            assert its == pytest.approx(losses, abs=1e-6)


def out_of_step(way: str, method: str) -> str:
    """Rank 1 leaves out a step that rank 0 takes, or rank 0 alone computes gradients between two steps."""
    model = net()
    optimizer = sgd(model)
    first = dist.get_rank() == 0
    with tw.attach(model, optimizer, tw.method(method), min_size=0, timeout=20):
        for step in range(4):
            optimizer.zero_grad()
            told = said(loss(model, batch(step)).backward)
            if told:
                return told
            if way == "step" and step == 1 and not first:
                continue
            optimizer.step()
            if way == "backward" and step == 1 and first:
                loss(model, batch(99)).backward()
    return ""


def out_of_step_in_all_ways() -> list[str]:
    return [out_of_step(way, method) for way in ("step", "backward") for method in ("sgd", "qsgd")]


def test_ranks_that_are_out_of_step_are_told_so() -> None:
    skipped = "ValueError: some ranks have called optimizer.step() since the last exchange and others have not"
    for told in on_ranks(out_of_step_in_all_ways, 2):
        assert all(one.startswith(skipped) for one in told), told


def sparse() -> list[str]:
    told = []
    for name in ("sgd", "asgd"):
        model = nn.Embedding(4, 2, sparse=True)
        optimizer = sgd(model)
        with tw.attach(model, optimizer, tw.method(name)):
            told.append(said(lambda: (model(torch.tensor([1])).sum().backward(), optimizer.step())))  # noqa: B023
    return told


def test_sparse_gradients_are_refused_in_one_sentence() -> None:
    for told in on_ranks(sparse, 1)[0]:
        assert told == "ValueError: weight has a sparse gradient; write nn.Embedding(..., sparse=False)"


def joined() -> list[Any]:
    """DDP's join: a rank whose batches have ended goes on exchanging zeros, without steps of its own."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    model.register_comm_hook(*tw.ddp_hook(tw.method("qsgd"), model, optimizer, min_size=0))
    steps = 0
    with model.join():
        for step in range(2 + 3 * dist.get_rank()):
            optimizer.zero_grad()
            loss(model, batch(step)).backward()
            optimizer.step()
            steps += 1
    return [steps, equal_everywhere(flat(model.module))]


def restored() -> list[str]:
    """Ranks that have stepped apart, and then load one checkpoint."""
    model = net()
    optimizer, heard = sgd(model), []
    with tw.attach(model, optimizer, tw.method("qsgd"), min_size=0) as wire:
        saved = wire.state_dict()
        for step in range(4):
            optimizer.zero_grad()
            try:
                loss(model, batch(step)).backward()
                heard.append("fine")
            except ValueError as error:
                heard.append(str(error)[:10])
                wire.load_state_dict(saved)
                continue
            if step or dist.get_rank() == 0:
                optimizer.step()
    return heard


def joined_and_restored() -> list[Any]:
    return [joined(), restored()]


@pytest.mark.filterwarnings("ignore:.*backward.*")
def test_a_rank_that_has_joined_and_ranks_that_load_are_in_step() -> None:
    first, second = on_ranks(joined_and_restored, 2)
    assert [first[0], second[0]] == [[2, True], [5, True]]
    assert first[1] == second[1] == ["fine", "some ranks", "fine", "fine"]


class Sometimes(nn.Module):
    """A net with a layer beside it that is used while `on`."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.beside, self.on = net(), nn.Linear(16, 4), True
        nn.init.zeros_(self.beside.weight)
        nn.init.zeros_(self.beside.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x) + self.beside(x) if self.on else self.net(x)
        return out


def late_with_gaps(way: str) -> list[Any]:
    """A layer has no gradient in steps 2 and 3; results are used a step late, beside one process."""
    model, alone = Sometimes(), Sometimes()
    optimizer, other = sgd(model), sgd(alone)
    wrapped: nn.Module = model
    if way == "ddp":
        wrapped = ddp = DistributedDataParallel(model, find_unused_parameters=True)
        wire, hook = tw.ddp_hook(tw.methods.pipe_sgd(), ddp, optimizer)
        ddp.register_comm_hook(wire, hook)
    else:
        wire = tw.attach(model, optimizer, tw.methods.pipe_sgd(), min_size=0)
    late: list[Tensor | None] = [torch.zeros_like(p) for p in alone.parameters()]
    for step in range(STEPS):
        model.on = alone.on = step not in (2, 3)
        optimizer.zero_grad()
        loss(wrapped, batch(step)).backward()
        optimizer.step()
        other.zero_grad()
        of_all(alone, step).backward()
        for number, p in enumerate(alone.parameters()):
            p.grad, late[number] = late[number], p.grad
        other.step()
    wire.detach()
    return [float((flat(model) - flat(alone)).abs().max()), equal_everywhere(flat(model))]


def late_with_gaps_in_both_ways() -> list[Any]:
    return [late_with_gaps("attach"), late_with_gaps("ddp")]


def test_late_results_leave_no_rank_with_a_gradient_of_its_own() -> None:
    for (apart, equal), (_, under_ddp) in on_ranks(late_with_gaps_in_both_ways, 2):
        assert equal
        assert apart < 1e-6
        assert under_ddp  # where a missing gradient is zero, and momentum goes on
