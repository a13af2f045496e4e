"""Wrappers in the wrong order, two wires at once, and methods that DDP cannot carry: one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from nets import batch, equal_everywhere, flat, loss, net, said, train
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire.core.method import METHODS
from thinwire.engine.ddp import _check_signal
from thinwire.engine.sharding import ON_CPU

STEPS = 2


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def hook(model: DistributedDataParallel, optimizer: torch.optim.Optimizer | None = None) -> tw.Wire:
    wire, function = tw.ddp_hook(tw.methods.qsgd(), model, optimizer, min_size=0)
    model.register_comm_hook(wire, function)
    return wire


def sharded_later() -> str:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    model = net()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0):
        fully_shard(model[2], mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        return said(lambda: train(model, optimizer, range(1)))


def sharded_with_a_new_optimizer() -> str:
    """Nothing else would tell: FSDP averages gradients, and the optimizer that thinwire hears takes no steps."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    model = net()
    with tw.attach(model, sgd(model), tw.methods.qsgd(), min_size=0):
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        return said(lambda: train(model, sgd(model), range(1)))


def hooked_and_sharded() -> str:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    model: Any = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return said(lambda: tw.ddp_hook(tw.methods.qsgd(), model))


def wrapped_later() -> str:
    """DDP around a part of a model that is attached."""
    model = nn.Sequential(net(), nn.Linear(4, 4))
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0):
        model[0] = DistributedDataParallel(model[0])
        return said(lambda: train(model, optimizer, range(1)))


def sharded_before() -> str:
    from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: PLC0415

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    return said(lambda: tw.attach(model, sgd(model), tw.methods.qsgd()))


def wrapped_before() -> str:
    model = nn.Sequential(DistributedDataParallel(net()), nn.Linear(4, 4))
    return said(lambda: tw.attach(model, sgd(model), tw.methods.qsgd()))


def attached_twice() -> str:
    model = net()
    with tw.attach(model, sgd(model), tw.methods.qsgd(), min_size=0):
        return said(lambda: tw.attach(model, sgd(model), tw.methods.qsgd(), min_size=0))


def hooked_and_attached() -> str:
    model = net()
    with tw.attach(model, sgd(model), tw.methods.qsgd(), min_size=0):
        outer = DistributedDataParallel(model)
        return said(lambda: hook(outer, sgd(outer)))


def attached_and_hooked() -> str:
    outer = DistributedDataParallel(net())
    wire = hook(outer)
    told = said(lambda: tw.attach(outer.module, sgd(outer), tw.methods.qsgd(), min_size=0))
    wire.detach()
    return told


def hooked_twice() -> str:
    outer = DistributedDataParallel(net())
    hook(outer).detach()
    return said(lambda: hook(outer))


def not_registered() -> str:
    outer = DistributedDataParallel(net())
    optimizer = sgd(outer)
    wire, _ = tw.ddp_hook(tw.methods.qsgd(), outer, optimizer)
    told = said(lambda: train(outer, optimizer, range(1)))
    wire.detach()
    return told


def of_another_model() -> str:
    outer = DistributedDataParallel(net())
    return said(lambda: hook(outer, sgd(net())))


def after_detach() -> str:
    """What a wire has let go of may be attached again, and nothing is left of the refusals."""
    model = net()
    tw.attach(model, sgd(model), tw.methods.qsgd(), min_size=0).detach()
    optimizer = sgd(model)
    with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0):
        train(model, optimizer, range(STEPS))
    return f"{equal_everywhere(flat(model))} {len(optimizer._optimizer_step_pre_hooks)}"


SENTENCES: dict[Callable[[], str], str] = {
    sharded_later: "fully_shard came after attach, and has sharded 2: shard the model first, then write",
    sharded_with_a_new_optimizer: "fully_shard came after attach, and has sharded the model: shard the model first",
    hooked_and_sharded: "FSDP shards this one; write tw.fsdp(model, optimizer, method, replicas=",
    wrapped_later: "DistributedDataParallel around 0 came after attach and exchanges gradients, too; build the model",
    sharded_before: "FullyShardedDataParallel around the model exchanges the gradients of its part itself; build",
    wrapped_before: "DistributedDataParallel around 0 exchanges the gradients of its part itself; build the model",
    attached_twice: "parameter 0.weight is exchanged by another wire already; write wire.switch(method)",
    hooked_and_attached: "parameter 0.weight is exchanged by another wire already; write wire.switch(method)",
    attached_and_hooked: "parameter 0.weight is exchanged by another wire already; write wire.switch(method)",
    hooked_twice: "has a hook already, and keeps it for ever; write wire.switch(method), or model = DDP(",
    not_registered: "write model.register_comm_hook(*tw.ddp_hook(method, model, optimizer))",
    of_another_model: "the optimizer has no parameter that DDP exchanges; make it from model.parameters()",
    after_detach: "True 0",
}


def hears_of_nan() -> list[tuple[bool, float]]:
    """Steps with closures, as Lightning makes them: gradients that are not finite on rank 1 are left out."""
    out = []
    for ddp in (True, False):
        model: nn.Module = DistributedDataParallel(net()) if ddp else net()
        optimizer = sgd(model)
        if isinstance(model, DistributedDataParallel):
            wire = hook(model, optimizer)
        else:
            wire = tw.attach(model, optimizer, tw.methods.local_sgd(every=2), min_size=0)
        for step in range(4):
            factor = float("nan") if step == 1 and dist.get_rank() == 1 else 1.0
            optimizer.step(partial(evaluate, model, optimizer, step, factor))
        out.append((bool(flat(model).isfinite().all()), wire.stats()["steps_skipped"]))
        wire.detach()
    return out


def evaluate(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, factor: float) -> torch.Tensor:
    optimizer.zero_grad()
    value = factor * loss(model, batch(step))
    value.backward()
    return value


def carried() -> dict[str, str]:
    """One hook of DDP that changes to every method that it can carry, and what it says of the others."""
    model = DistributedDataParallel(net())
    optimizer = tw.optim.OneBitAdam(model.parameters(), lr=1e-3, freeze=1)
    wire = hook(model, optimizer)
    told = {}
    for name in METHODS:
        method = METHODS[name]()
        told[name] = said(partial(wire.switch, method))
        if not told[name]:
            train(model, optimizer, range(1))
            told[name] = f"equal {equal_everywhere(flat(model))}"
        else:
            plain = said(partial(_check_signal, method, optimizer))
            assert plain == told[name] or not plain, name
    wire.detach()
    with tw.attach(model.module, optimizer, METHODS["local-sgd"](every=1)) as wire:  # what the sentence suggests
        train(model.module, optimizer, range(2))
        told["attached"] = f"equal {equal_everywhere(flat(model)) and wire.stats()['rounds'] == 2}"
    return told


def everything() -> list[Any]:
    told = [case() for case in SENTENCES]
    return [told, hears_of_nan(), carried()]


def test_one_sentence_each() -> None:
    for rank, (told, broken, methods) in enumerate(on_ranks(everything, 2)):
        for case, sentence, found in zip(SENTENCES, SENTENCES.values(), told, strict=True):
            if "shard" in case.__name__ and not ON_CPU:
                continue  # FSDP2 of torch 2.6 trains on GPUs only
            assert sentence in found, case.__name__
        assert broken == [(True, 1), (True, rank)]
        assert methods.pop("attached") == "equal True"
        assert list(methods) == list(METHODS)
        for name, found in methods.items():
            models = METHODS[name]().sync.of.models or METHODS[name]().exchange.served
            line = "; write tw.attach(model.module, optimizer, method), and call model.module"
            assert (line in found) if models else found == "equal True", name
