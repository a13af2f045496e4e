"""Joining: ranks whose batches end sooner take part in what the others exchange, until all have ended.

    gradients     a rank that has ended sends zeros (and what its memories hold back), and does not step; in the end
                  it gets model, buffers and optimizer state of a rank that trained to the last
    models        it takes part in every round with its model as it is; in the end all go on from one model
    servers       nobody waits for it, and it waits for the other workers

Means are taken over all ranks, as `torch.distributed.algorithms.Join` does unless it is told otherwise: gradients of
the last steps count as 1/n each, however few ranks still train.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from thinwire.core.comm import to_bytes, to_tensor
from thinwire.engine.local import like, local
from thinwire.engine.optimizers import parts_of
from thinwire.engine.schedules.words import Word, say

if TYPE_CHECKING:
    from thinwire.core.comm import Comm
    from thinwire.engine.hooks import HookDriver
    from thinwire.engine.loop import Loop
    from thinwire.engine.transport import ProcessTransport


@contextmanager
def joined(
    driver: HookDriver, transport: ProcessTransport, model: nn.Module | None, level: Callable[[], bool]
) -> Iterator[None]:
    """A block that a rank leaves when all have come to its end; `level` gives all ranks the mean of their models."""
    loop = driver.loop
    _check(loop, transport)
    _open.append(loop)
    loop.joining, driver.idle_rounds = True, 0
    try:
        with driver.joins():
            yield
        driver.end_step()
        driver.run(_shadow(driver))
        method = loop.method
        if driver.schedule.apart:
            if level():
                with torch.no_grad():
                    driver.schedule.restart()
                driver.again()
        elif not (method.sync.of.models or method.exchange.served):
            _go_on_from_last(driver, transport, model)
    finally:
        loop.joining = False
        _open.remove(loop)
    if driver.steps is not None:
        driver.steps.forget()


def refuse_in_join(loop: Loop, call: str) -> None:
    """ValueError where all ranks are needed at once, and some may have ended."""
    if loop.joining:
        raise ValueError(
            f"{call} needs all ranks at once, and some may have ended their batches; write it after the "
            "`with wire.join():` block"
        )


_open: list[Loop] = []
"""Those in a block, of this process."""


def _check(loop: Loop, transport: ProcessTransport) -> None:
    if _open:
        raise ValueError(
            "another join() is open in this process, and of two wires a rank that has ended cannot know which one "
            "comes next; train models with several wires on as many batches on all ranks"
        )
    if transport.drops:
        raise ValueError("join() counts on every rank; write tw.attach(..., drop_dead=False)")
    gradients = not (loop.method.sync.of.models or loop.method.exchange.served)
    if gradients and any(isinstance(part, LBFGS) for part in _parts(loop)):
        raise ValueError(
            "LBFGS compares the losses of all ranks as often as it likes, and a rank without a batch has none; write "
            "torch.optim.SGD(model.parameters(), lr=...), or take as many batches on every rank"
        )


async def _shadow(driver: HookDriver) -> None:
    """Take part in the rounds of the others until all have ended."""
    await driver.schedule.settle()
    while await driver.shadow():
        driver.idle_rounds += 1


def _go_on_from_last(driver: HookDriver, transport: ProcessTransport, model: nn.Module | None) -> None:
    """Give every rank what a rank has that was idle in no round, if some rank was; every rank calls it."""
    loop, idle = driver.loop, driver.idle_rounds > 0
    rank = loop.runner.comm.rank
    said = transport.call(say(Word(trains=0 if idle else rank + 1, moved=idle)))
    if not said.moved:
        return
    source = int(said.trains) - 1
    assert source >= 0, "somebody trained in the last round"
    about = {"kept": loop.kept, "state": _described(loop)} if rank == source else None
    told = transport.run(_told(loop, about, source))
    tensors = _state(loop, told["state"])
    if not driver.syncs_model:
        buffers = {} if model is None else dict(sorted(model.named_buffers()))
        tensors += [local(p).detach() for p, _ in loop.trained]
        tensors += [local(buffer).detach() for buffer in buffers.values()]
    tensors += driver.schedule.of_model()
    _synchronise(tensors)
    transport.direct(lambda processes: _broadcast(tensors, source, processes.everybody))
    loop.kept.update(told["kept"])


async def _told(loop: Loop, about: Any, source: int) -> Any:
    """The plain values of one rank."""
    data = to_tensor(json.dumps(about).encode())

    async def work(comm: Comm) -> list[Tensor]:
        return await comm.all_gather(data)

    return json.loads(to_bytes((await loop.transport.launch(work))[source]))


def _described(loop: Loop) -> dict[str, dict[str, Any]]:
    """By parameter and name: a plain value, or the dtype and shape of a tensor; one number travels as it is."""
    out: dict[str, dict[str, Any]] = {}
    for p, item in loop.trained if loop.optimizer is not None else ():
        entry: dict[str, Any] = {}
        for name, value in _kept(loop, p).items():
            if isinstance(value, Tensor):
                part = local(value)
                kind = str(part.dtype).removeprefix("torch.")
                whole = value.shape == p.shape
                numbers = [part.item()] if part.dim() == 0 else None
                entry[str(name)] = {"dtype": kind, "shape": list(part.shape), "like": whole, "number": numbers}
            elif value is None or isinstance(value, bool | int | float | str):
                entry[str(name)] = {"value": value}
        out[item.name] = entry
    return out


def _state(loop: Loop, about: dict[str, dict[str, Any]]) -> list[Tensor]:
    """The tensors of this rank's optimizer, made where it has none, in the order of `about`; numbers are set here."""
    out: list[Tensor] = []
    for p, item in loop.trained if loop.optimizer is not None else ():
        for name, entry in about[item.name].items():
            state = _kept(loop, p)
            if "value" in entry:
                state[name] = entry["value"]
                continue
            dtype, value = getattr(torch, entry["dtype"]), state.get(name)
            if entry["number"] is not None:
                device = value.device if isinstance(value, Tensor) else "cpu"
                state[name] = torch.tensor(entry["number"][0], dtype=dtype, device=device)
                continue
            if not isinstance(value, Tensor) or list(local(value).shape) != entry["shape"]:
                value = torch.empty(entry["shape"], dtype=dtype, device=local(p).device)
                value = state[name] = like(p, value) if entry["like"] else value
            out.append(local(value).detach())
    return out


def _parts(loop: Loop) -> Sequence[Optimizer]:
    return () if loop.optimizer is None else parts_of(loop.optimizer)


def _kept(loop: Loop, p: nn.Parameter) -> dict[Any, Any]:
    """What the optimizer that has this parameter keeps of it."""
    for part in _parts(loop):
        if any(p is other for group in part.param_groups for other in group["params"]):
            state: dict[Any, Any] = part.state[p]
            return state
    return {}


def _synchronise(tensors: Sequence[Tensor]) -> None:
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def _broadcast(tensors: Sequence[Tensor], source: int, group: dist.ProcessGroup) -> None:
    first = dist.get_global_rank(group, source)
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel():
                whole = tensor.contiguous()
                dist.broadcast(whole, first, group)
                if whole.data_ptr() != tensor.data_ptr():
                    tensor.copy_(whole)
    _synchronise(tensors)
