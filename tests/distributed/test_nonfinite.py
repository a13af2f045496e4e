"""A gradient that is not finite on one rank: NaN everywhere, memories untouched, the next step right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net
from ranks import on_ranks

import thinwire as tw
from thinwire.core.method import METHODS

WITH_MEMORY = ["ecq-sgd", "ef-signsgd", "one-bit-sgd", "diana", "ef21", "signum"]
METHODS_TRIED = ["sgd", "qsgd", "terngrad", "majority-vote", *WITH_MEMORY]


def tensors(wire: tw.Wire) -> dict[str, torch.Tensor]:
    state = wire.state_dict()[f"rank{dist.get_rank()}"]["tensors"]
    return {name: t.clone() for name, t in state.items()}


def poisoned(names: list[str]) -> dict[str, dict[str, Any]]:
    """Step 1 has a NaN (or an inf) on rank 1 only and is skipped by hand; steps 0 and 2 are as usual."""
    out = {}
    for name in names:
        models = []
        for bad_step in (True, False):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            with tw.attach(model, optimizer, METHODS.parse(name), min_size=0) as wire:
                for step in (0, 1, 2) if bad_step else (0, 2):
                    optimizer.zero_grad()
                    wire._exchanger.round = step  # the same noise in step 2, with and without step 1
                    before = tensors(wire)
                    value = loss(model, batch(step))
                    if step == 1 and dist.get_rank() == 1:
                        value = value * float("nan" if name != "qsgd" else "inf")
                    value.backward()
                    if step == 1:
                        nan = all(bool(p.grad.isnan().all()) for p in model.parameters() if p.grad is not None)
                        after = tensors(wire)
                        kept = all(torch.equal(before[key], after[key]) for key in before)
                        skipped = wire.stats()["skipped"]
                    else:
                        optimizer.step()
            models.append(flat(model))
        out[name] = {
            "nan": nan,
            "kept": kept,
            "skipped": skipped,
            "as if it had not been": torch.equal(*models),
            "equal": equal_everywhere(models[0]),
        }
    return out


def test_the_step_is_skipped_everywhere_and_the_next_one_is_right() -> None:
    for result in on_ranks(poisoned, 2, METHODS_TRIED):
        for name, got in result.items():
            assert got["nan"], name
            assert got["kept"], name
            assert got["as if it had not been"], name
            assert got["equal"], name
            assert got["skipped"] == (0 if name == "sgd" else 1), name  # a plain sum carries the NaN by itself


def scaled(hook: bool) -> dict[str, Any]:
    """A GradScaler that starts so high that the first steps overflow in float16 on rank 1 only."""
    model: Any = net()
    if hook:
        model = torch.nn.parallel.DistributedDataParallel(model)
        state, hooked = tw.ddp_hook(tw.methods.ecq_sgd(), model, min_size=0)
        model.register_comm_hook(state, hooked)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1000)
    wire = None if hook else tw.attach(model, optimizer, tw.methods.ecq_sgd(), min_size=0)
    losses, scales = [], []
    for step in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(model, batch(step))
        value = scaler.scale(value)
        if dist.get_rank() == 1 and scaler.get_scale() > 2.0**36:
            value = value * torch.tensor(3e38)  # overflows here, and only here
        value.backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(value.item() / scaler.get_scale())
        scales.append(scaler.get_scale())
    if wire is not None:
        wire.detach()
    return {
        "scales": scales,
        "first": loss(net(), batch(0, 0)).item(),
        "last": loss(model.module if hook else model, batch(0, 0)).item(),
        "equal": equal_everywhere(flat(model)),
    }


@pytest.mark.parametrize("hook", [False, True], ids=["attach", "ddp_hook"])
def test_a_grad_scaler_skips_the_step_on_every_rank(hook: bool) -> None:
    one, other = on_ranks(scaled, 2, hook)
    assert one["scales"] == other["scales"]
    assert one["scales"][-1] == 2.0**36
    assert one["equal"]
    assert one["last"] < 0.7 * one["first"]
