"""The parameters that are trained: those of the optimizer that require a gradient, with their names in the model."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire.core.compressor import DTYPES
from thinwire.engine.local import is_sharded, local
from thinwire.engine.optimizers import check_all_have_one
from thinwire.engine.plan import Item

COMPILED = "_orig_mod."  # what torch.compile puts before every name


class Trained(NamedTuple):
    """A parameter and what the plan calls it."""

    parameter: nn.Parameter
    item: Item

    @property
    def local(self) -> Tensor:
        """The part of the parameter that lies on this rank."""
        return local(self.parameter)


def trained(model: nn.Module, optimizer: Optimizer) -> list[Trained]:
    """The parameters in the order of the model; a tied one is listed once, a frozen one not at all."""
    names = {id(p): name.replace(COMPILED, "") for name, p in model.named_parameters()}
    order = {number: at for at, number in enumerate(names)}
    found: dict[int, Trained] = {}
    for index, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p.requires_grad:
                found[id(p)] = Trained(p, Item(name_of(p, names, index), tuple(p.shape), p.device, index))
    if not found:
        raise ValueError("no parameter of the optimizer requires a gradient; there is nothing to exchange")
    for p, item in found.values():
        check_parameter(p, item.name)
    check_all_have_one(model, optimizer)
    return sorted(found.values(), key=lambda t: order[id(t.parameter)])


def exchanged_by_ddp(model: DistributedDataParallel, optimizer: Optimizer | None) -> list[Trained]:
    """What DDP exchanges: every parameter that requires a gradient. The optimizer, if any, must have them all."""
    groups = [] if optimizer is None else optimizer.param_groups
    group_of = {id(p): index for index, group in enumerate(groups) for p in group["params"]}
    ignored = getattr(model.module, "_ddp_params_and_buffers_to_ignore", ())
    found: list[Trained] = []
    for name, p in model.module.named_parameters():
        if p.requires_grad and name not in ignored:
            check_parameter(p, name)
            item = Item(name.replace(COMPILED, ""), tuple(p.shape), p.device, group_of.get(id(p), 0))
            found.append(Trained(p, item))
    if optimizer is not None:
        if not any(id(one.parameter) in group_of for one in found):
            raise ValueError(
                "the optimizer has no parameter that DDP exchanges; make it from model.parameters(), and write "
                "tw.ddp_hook(method, model, optimizer)"
            )
        check_all_have_one(model.module, optimizer, ignored)
    return found


def check_parameter(p: nn.Parameter, name: str) -> None:
    """Refuse what buckets of float32 cannot hold."""
    if is_sharded(p):
        raise ValueError(
            f"parameter {name} is a DTensor: FSDP or tensor parallelism shards it and exchanges its gradients; write "
            'tw.fsdp(model, optimizer, method, replicas=mesh["replicate"]) after fully_shard(model, '
            'mesh=mesh["shard"]), or tw.attach(model, ...) with a model that every rank holds whole'
        )
    if p.is_meta:
        raise ValueError(
            f"parameter {name} is on the device 'meta' and has no elements; write model.to_empty(device=...), set "
            "its parameters, and make the optimizer of them"
        )
    if p.dtype not in DTYPES:
        raise ValueError(f"parameter {name} is {p.dtype}; write model.float(), model.bfloat16() or model.half()")


def check_dense(grad: Tensor | None, name: str) -> None:
    """Refuse the gradient of a sparse embedding, which has no place in a bucket."""
    if grad is not None and grad.is_sparse:
        raise ValueError(f"{name} has a sparse gradient; write nn.Embedding(..., sparse=False)")


def name_of(p: nn.Parameter, names: dict[int, str], group: int) -> str:
    """The parameter's name, or an error: an optimizer of another model is a mistake that trains nothing."""
    if id(p) not in names:
        raise ValueError(
            f"group {group} of the optimizer holds a parameter of shape {tuple(p.shape)} that is not in the model; "
            "make the optimizer from model.parameters()"
        )
    return names[id(p)]


def newcomer(optimizer: Optimizer, known: set[int]) -> str:
    """What joined the optimizer, or began to require a gradient, after attach; empty if nothing did."""
    for index, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p.requires_grad and id(p) not in known:
                return f"a parameter of shape {tuple(p.shape)} in group {index}"
    return ""
