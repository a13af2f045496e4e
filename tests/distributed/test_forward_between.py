"""Results in the next forward pass: what is done between backward and step, when gradients are on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from nets import batch, equal_everywhere, flat, loss, net, said, train
from ranks import on_ranks
from torch import Tensor, nn

import thinwire as tw

KB = 2**-10
FIXED = tw.Overlap(bucket_mb=1 * KB, chunk_mb=1 * KB, in_flight=2)
INTO = replace(FIXED, into_forward="ready")
Act = Callable[[tw.Wire, nn.Module, tw.Overlap], object]


def saves(wire: tw.Wire, model: nn.Module, overlap: tw.Overlap) -> None:
    wire.state_dict()


def loads(wire: tw.Wire, model: nn.Module, overlap: tw.Overlap) -> None:
    wire.load_state_dict(wire.state_dict())


def clips(wire: tw.Wire, model: nn.Module, overlap: tw.Overlap) -> None:
    wire.settle()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def switches(wire: tw.Wire, model: nn.Module, overlap: tw.Overlap) -> None:
    wire.switch(replace(tw.methods.qsgd(), overlap=overlap))


def detaches(wire: tw.Wire, model: nn.Module, overlap: tw.Overlap) -> None:
    wire.detach()


def zeroes(wire: tw.Wire, model: nn.Module, overlap: tw.Overlap) -> None:
    model.zero_grad()
    wire.settle()


ACTS: tuple[Act, ...] = (saves, loads, clips, switches, detaches, zeroes)


def trained(act: Act, overlap: tw.Overlap, *, broken: bool = False) -> Tensor:
    """Two steps, `act` between the third backward pass and its step, and one more step if the wire is still there."""
    model = net()
    weight = model.get_parameter("2.weight")
    weight.data = weight.data.t().contiguous().t()  # a gradient of another form than its place in a bucket
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    with tw.attach(model, opt, replace(tw.methods.ecq_sgd(), overlap=overlap), min_size=0) as wire:
        train(model, opt, range(2))
        opt.zero_grad()
        x, y = batch(2)
        if broken and torch.distributed.get_rank() == 1:
            y[0, 0] = torch.nan
        loss(model, (x, y)).backward()
        act(wire, model, overlap)
        opt.step()
        if act is not detaches:
            train(model, opt, range(3, 4))
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def as_in_step() -> dict[str, str]:
    """Where the numbers are not those of steps that wait, or an error is raised: by what was done."""
    wrong = {}
    for act in ACTS:
        for broken in (False, True) if act is saves else (False,):

            def compare(act: Act = act, broken: bool = broken) -> None:
                found = trained(act, INTO, broken=broken)
                if not torch.equal(found, trained(act, FIXED, broken=broken)) or not equal_everywhere(found):
                    raise ValueError("other numbers")

            if text := said(compare):
                wrong[f"{act.__name__}, {broken}"] = text
    return wrong


def test_what_waits_for_results_finds_gradients_as_in_step() -> None:
    for wrong in on_ranks(as_in_step, 2):
        assert wrong == {}


def compiled_later(overlap: tw.Overlap) -> Tensor:
    """Hooks are not traced, so that a model which is compiled after attach is never seen to read its parameters."""
    model = net()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    fast: nn.Module = torch.compile(model, backend="eager")  # type: ignore[assignment]
    with tw.attach(model, opt, replace(tw.methods.ecq_sgd(), overlap=overlap), min_size=0):
        train(fast, opt, range(3))
    return flat(model)


def compiled_as_in_step() -> bool:
    return torch.equal(compiled_later(INTO), compiled_later(FIXED))


def test_steps_of_a_model_that_is_compiled_later_wait() -> None:
    assert on_ranks(compiled_as_in_step, 1) == [True]
