"""A gradient that is not finite on one rank: NaN everywhere, memories untouched, the next step right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said, train
from ranks import on_ranks

import thinwire as tw
from thinwire.core.method import METHODS
from thinwire.exchange import AllReduce

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
                    wire._runner.round = step  # the same noise in step 2, with and without step 1
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
            assert got["skipped"] == 1, name


OVERFLOWS = {
    "fp16": (1e10, 1),
    "fp16 into forward": (1e10, 1),
    "fp16 under DDP": (1e10, 1),
    "powersgd": (3.3e38, 1),
    "sgd in sums": (3e38, 1),
    "topk:ratio=0.5": (3.3e38, 2),
    "dgc": (3.3e38, 2),
}
"""Gradients that are finite, and what the exchange makes of them is not: at once, or with what it has kept."""


def overflowing(name: str, big: float, times: int) -> dict[str, Any]:
    """The last of some steps with large gradients overflows; afterwards a loop without it."""
    models, method = [], tw.method(name.split(maxsplit=1)[0])
    if "forward" in name:
        method = replace(method, overlap=tw.Overlap(into_forward="need", chunk_mb=1.0))
    for steps in (range(times + 2), [*range(times), times + 1]):
        model: Any = net()
        inner, optimizer = model, torch.optim.AdamW(model.parameters(), lr=0.01)
        if "DDP" in name:
            model = torch.nn.parallel.DistributedDataParallel(model)
            wire, hook = tw.ddp_hook(method, model, optimizer, min_size=0)
            model.register_comm_hook(wire, hook)
        else:
            wire = tw.attach(inner, optimizer, method, min_size=0, reduce="sum" if "sums" in name else "mean")
        for step in steps:
            optimizer.zero_grad()
            wire._runner.round = step  # the same noise in the last step, with and without the one before it
            before = tensors(wire)
            value, noise = loss(model, batch(step)), torch.Generator().manual_seed(2 * step + dist.get_rank())
            if 1 <= step <= times:
                value = value * 0
                for p in inner.parameters():
                    r = 2 * torch.rand(p.shape, generator=noise) - 1 if times > 1 else 1.0
                    value = value + (p * (r * big)).sum()
            value.backward()
            optimizer.step()
            if step == times and step in steps:
                wire.settle()
                after = tensors(wire)
                kept = all(torch.equal(before[key], after[key]) for key in before)
                skipped = wire.stats()["steps_skipped"]
        wire.settle()
        models.append(flat(inner))
        wire.detach()
    return {
        "kept": kept,
        "skipped": skipped,
        "as if it had not been": torch.equal(*models),
        "finite": bool(models[0].isfinite().all()),
        "equal": equal_everywhere(models[0]),
    }


def far_away() -> str:
    """A model that has moved too far for what an outer loop sends."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    method = tw.Method(AllReduce(wire="fp16"), tw.Sync(of=tw.sync.Delta(), every=1))
    with tw.attach(model, optimizer, method, min_size=0):
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e10)
        return said(optimizer.step)


def overflown() -> tuple[dict[str, dict[str, Any]], str]:
    return {name: overflowing(name, *big) for name, big in OVERFLOWS.items()}, far_away()


def test_what_the_exchange_makes_infinite_is_skipped_everywhere() -> None:
    for found, outer in on_ranks(overflown, 2):
        assert "the mean of the models is not finite in round 0" in outer
        for name, got in found.items():
            assert got["finite"], name
            assert got["skipped"] == 1, (name, got)
            assert got["kept"], name
            assert got["as if it had not been"], name
            assert got["equal"], name


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


def scaled_both_ways() -> list[dict[str, Any]]:
    return [scaled(False), scaled(True)]


def test_a_grad_scaler_skips_the_step_on_every_rank() -> None:
    """By attach, and by ddp_hook."""
    for one, other in zip(*on_ranks(scaled_both_ways, 2), strict=True):
        assert one["scales"] == other["scales"]
        assert one["scales"][-1] == 2.0**36
        assert one["equal"]
        assert one["last"] < 0.7 * one["first"]


def without_scaler(name: str, kind: str) -> dict[str, Any]:
    """Rank 1 has a NaN in step 2, and only thinwire looks. Adam's moments and weight decay must not act either."""
    model: Any = net()
    if kind == "ddp_hook":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    method = METHODS.parse(name)
    if kind == "ddp_hook":
        wire, hook = tw.ddp_hook(method, model, optimizer, min_size=0)
        model.register_comm_hook(wire, hook)
    else:
        wire = tw.attach(model, optimizer, method, min_size=0)
    still, grads = True, True
    for step in range(5):
        before = flat(model)
        optimizer.zero_grad()

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(model, batch(step))
            if step == 2 and dist.get_rank() == 1:
                value = value * float("nan")
            value.backward()
            return value

        if kind == "closure":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        if step == 2:
            still = torch.equal(before, flat(model))
            grads = any(bool(p.grad.isnan().any()) for p in model.parameters() if p.grad is not None)
    skipped = wire.stats()["steps_skipped"]
    steps = {int(state["step"]) for state in optimizer.state.values()}
    wire.detach()
    return {
        "still": still,
        "grads": grads,
        "skipped": skipped,
        "steps": steps,
        "finite": bool(flat(model).isfinite().all()),
        "equal": equal_everywhere(flat(model)),
    }


TOGETHER = [("sgd", "loop"), ("ecq-sgd", "loop"), ("qsgd", "closure"), ("ecq-sgd", "ddp_hook")]
ALONE = [(name, "loop") for name in ("local-sgd", "deepsqueeze", "ad-psgd", "choco-sgd")]


def every_way() -> list[dict[str, Any]]:
    return [without_scaler(*way) for way in (*TOGETHER, *ALONE)]


@pytest.fixture(scope="module")
def ways() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What each rank found, by name and kind."""
    return dict(zip((*TOGETHER, *ALONE), map(list, zip(*on_ranks(every_way, 2), strict=True)), strict=True))


@pytest.mark.parametrize(("name", "kind"), TOGETHER)
def test_the_optimizer_does_not_step(name: str, kind: str, ways: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    for got in ways[name, kind]:
        assert got["still"]
        assert got["grads"]  # whoever looks at the gradients after the step sees them as they were
        assert got["skipped"] == 1
        assert got["steps"] == {4}
        assert got["finite"]
        assert got["equal"]


@pytest.mark.parametrize(("name", "kind"), ALONE)
def test_where_models_are_exchanged_the_rank_alone_does_not_step(
    name: str, kind: str, ways: dict[tuple[str, str], list[dict[str, Any]]]
) -> None:
    one, other = ways[name, kind]
    assert [one["skipped"], other["skipped"]] == [0, 1]
    assert [one["steps"], other["steps"]] == [{5}, {4}]
    assert one["finite"]
    assert other["finite"]


def policies() -> list[str]:
    told = []
    for policy in ("raise", "keep", "ignore"):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        try:
            with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0, on_nonfinite=policy):  # type: ignore[arg-type]
                value = loss(model, batch(0)) * (float("nan") if dist.get_rank() == 1 else 1.0)
                value.backward()
                optimizer.step()
            told.append(f"all NaN: {bool(flat(model).isnan().all())}")
        except (FloatingPointError, ValueError) as error:
            told.append(str(error))
    return told


def test_other_policies() -> None:
    for raised, kept, wrong in on_ranks(policies, 2):
        assert raised == "the gradients of step 1 are not finite"
        assert kept == "all NaN: True"
        assert wrong == "on_nonfinite='ignore': write one of 'skip', 'raise', 'keep'"


def broken_model() -> str:
    """The model itself is not finite on one rank: averaging must not spread it silently."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tw.attach(model, optimizer, tw.methods.local_sgd(every=1), min_size=0):
        train(model, optimizer, range(1))
        loss(model, batch(0)).backward()
        if dist.get_rank() == 1:
            with torch.no_grad():
                next(model.parameters()).fill_(float("inf"))
        try:
            optimizer.step()
        except FloatingPointError as error:
            return str(error)
    return ""


def test_a_model_that_is_not_finite_is_an_error_on_every_rank() -> None:
    assert on_ranks(broken_model, 2) == ["the model of rank 1 is not finite in round 1"] * 2
