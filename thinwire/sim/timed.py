"""Timed: when the gradients of a model are complete, found by training a copy of it for some steps.

Hooks note when autograd has completed each gradient, in the time of the device that computes it. Times are medians,
counted from the start of a step, which is forward and backward: nothing is exchanged, and no optimizer takes part.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.core.given import is_whole
from thinwire.core.loss import loss_of
from thinwire.engine.parameters import COMPILED, check_dense, check_parameter

WARM = 3  # steps that are not timed
Loss = Callable[[nn.Module], Tensor]
WRITE = "write Load.measured(model, lambda net: cross_entropy(net(inputs), targets))"


class Timed(NamedTuple):
    """Shapes by name, seconds from the start of a step to each gradient, and to the end of backward."""

    shapes: dict[str, tuple[int, ...]]
    ready: dict[str, float]
    computed: float
    device: torch.device


def timed(model: nn.Module, loss: Loss, steps: int) -> Timed:
    """Leaves the model and torch's random numbers as they are."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"Load.measured takes a torch.nn.Module; got {type(model).__name__}: {WRITE}")
    if not callable(loss):
        raise TypeError(f"loss={type(loss).__name__} is no function of the model; {WRITE}")
    if not is_whole(steps, 1):
        raise ValueError(f"Load.measured(steps={steps!r}): write how many steps are timed, such as steps=10")
    net = copy.deepcopy(model.module if isinstance(model, DistributedDataParallel) else model)
    members = {name.replace(COMPILED, ""): p for name, p in net.named_parameters() if p.requires_grad}
    for name, p in members.items():
        check_parameter(p, name)
    device = _device(members)
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), torch.enable_grad():
        found = [_step(net, loss, members, device) for _ in range(WARM + int(steps))][WARM:]
    computed = median(one[""] for one in found)
    ready = {name: [one[name] for one in found if name in one] or [computed] for name in members}
    return Timed(
        {name: tuple(p.shape) for name, p in members.items()},
        {name: min(max(0.0, median(times)), computed) for name, times in ready.items()},
        computed,
        device,
    )


def _step(net: nn.Module, loss: Loss, members: dict[str, nn.Parameter], device: torch.device) -> dict[str, float]:
    """Seconds until each gradient was complete, by name, and under "" until backward had ended.

    A parameter that the loss does not use is not among them.
    """
    moments: dict[str, Any] = {}

    def note(name: str) -> Callable[[Tensor], None]:
        return lambda _: moments.__setitem__(name, _moment(device))

    for p in members.values():
        p.grad = None
    hooks = [p.register_post_accumulate_grad_hook(note(name)) for name, p in members.items()]
    try:
        start = _moment(device)
        torch.autograd.backward(loss_of(loss(net), WRITE))
        moments[""] = _moment(device)
    finally:
        for hook in hooks:
            hook.remove()
    if len(moments) == 1:
        raise ValueError(f"the loss does not use the copy of the model that it is given; {WRITE}, with net in it")
    for name, p in members.items():
        check_dense(p.grad, name)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {name: _between(start, moment) for name, moment in moments.items()}


def _device(members: dict[str, nn.Parameter]) -> torch.device:
    """Where all of the model is."""
    devices = {p.device for p in members.values()}
    if not devices:
        raise ValueError("no parameter of the model is trained; write model.requires_grad_(True)")
    if len(devices) > 1 or {one.type for one in devices} - {"cpu", "cuda"}:
        found = ", ".join(sorted(map(str, devices)))
        raise ValueError(f'models are timed on the CPU or on one GPU, not on {found}; write model.to("cuda")')
    return devices.pop()


def _moment(device: torch.device) -> Any:
    """Now, in the order of the device's work; a GPU's is read when that work is done."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _between(start: Any, end: Any) -> float:
    """Seconds."""
    return end - start if isinstance(start, float) else 1e-3 * float(start.elapsed_time(end))
