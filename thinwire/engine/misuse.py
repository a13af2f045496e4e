"""Misuse that would go unnoticed or end in an error about something else: each is refused in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from thinwire.core.method import Method
from thinwire.engine.local import is_sharded
from thinwire.engine.optimizers import claim_optimizer, unclaim_optimizer
from thinwire.engine.uncopied import Uncopied

if TYPE_CHECKING:
    from thinwire.engine.parameters import Trained

_parameters = WeakIdKeyDictionary()  # a tensor's == compares its elements, so that a WeakSet does not serve


def check_method_type(method: Any, call: str) -> None:
    """Refuse what is not a Method; `call` is the call that the user made, with {} in the method's place."""
    if isinstance(method, str):
        raise TypeError(f"{method!r} is a string; write " + call.format(f"tw.method({method!r})"))
    if isinstance(method, FunctionType):
        raise TypeError(f"{method.__name__} is a function; write " + call.format(f"tw.methods.{method.__name__}()"))
    if not isinstance(method, Method):
        raise TypeError(f"{type(method).__name__} is not a Method; write " + call.format("tw.methods.qsgd()"))


def check_model(model: nn.Module) -> None:
    """Refuse wrappers that exchange gradients themselves, and models with such a wrapper inside."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"attach takes a torch.nn.Module; got {type(model).__name__}: write tw.attach(model, optimizer, method)"
        )
    if isinstance(model, DistributedDataParallel | DataParallel):
        raise ValueError(
            f"{type(model).__name__} exchanges gradients itself; write tw.attach(model.module, ...), or "
            "model.register_comm_hook(*tw.ddp_hook(method, model))"
        )
    if inside := wrapper_in(model):
        raise ValueError(
            f"{inside} exchanges the gradients of its part itself; build the model without that wrapper, and write "
            "tw.attach(model, ...)"
        )


def wrapper_in(model: nn.Module) -> str:
    """A wrapper in the model that exchanges gradients, in words; empty if there is none."""
    kinds: tuple[type, ...] = (DistributedDataParallel, DataParallel)
    sharding = sys.modules.get("torch.distributed.fsdp")  # if it was never imported, nothing is wrapped in it
    if sharding is not None:
        kinds += (sharding.FullyShardedDataParallel,)
    for name, module in model.named_modules():
        if isinstance(module, kinds):
            return f"{type(module).__name__} around {name or 'the model'}"
    return ""


def check_initialised() -> None:
    """Refuse to start without a process group."""
    if not dist.is_initialized():
        raise ValueError(
            'attach needs a process group; write torch.distributed.init_process_group("gloo") before it, '
            "and start the script with torchrun"
        )


def check_surroundings() -> None:
    """Refuse settings of torch under which the vectors that a wire makes would be other than it takes them for."""
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(
            f"torch's default dtype is {torch.get_default_dtype()}, and gradients are exchanged in float32; write "
            "torch.set_default_dtype(torch.float32) when the model has been made"
        )
    if torch.is_inference_mode_enabled():
        raise ValueError("in torch.inference_mode() nothing can be trained; attach outside of it")


def group_of(given: Any) -> dist.ProcessGroup:
    """The process group to exchange in; everybody's if none is given."""
    group = dist.group.WORLD if given is None else given
    if not isinstance(group, dist.ProcessGroup):  # for ranks outside of a group, torch has a number in its place
        raise TypeError(
            f"process_group takes a process group that this rank is in; got {type(group).__name__}: write "
            "process_group=mesh.get_group() for a mesh, or dist.new_group(ranks), and attach on these ranks alone"
        )
    return group


def check_unclaimed(members: Iterable[Trained]) -> None:
    """Refuse a second wire on one parameter, whichever optimizers the two have."""
    for p, item in members:
        if p in _parameters:
            raise ValueError(
                f"parameter {item.name} is exchanged by another wire already; write wire.switch(method), or "
                "wire.detach() first"
            )


def claim(members: Iterable[Trained], optimizer: Optimizer | None) -> None:
    """Remember what a wire exchanges."""
    if optimizer is not None:
        claim_optimizer(optimizer)
    for p, _ in members:
        _parameters[p] = True


def unclaim(members: Iterable[Trained], optimizer: Optimizer | None) -> None:
    """Forget it, when the wire is closed."""
    if optimizer is not None:
        unclaim_optimizer(optimizer)
    for p, _ in members:
        _parameters.pop(p, None)


def check_ddp(model: Any) -> None:
    """Refuse what is not wrapped in DDP, or in something else as well."""
    if isinstance(model, DistributedDataParallel):
        return
    if isinstance(getattr(model, "_orig_mod", None), DistributedDataParallel):
        raise ValueError(
            "torch.compile is around DistributedDataParallel; write "
            "ddp.register_comm_hook(*tw.ddp_hook(method, ddp)) first, then model = torch.compile(ddp)"
        )
    if isinstance(model, nn.Module) and any(map(is_sharded, model.parameters())):
        raise ValueError(
            "ddp_hook takes a model wrapped in DistributedDataParallel, and FSDP shards this one; write "
            'tw.fsdp(model, optimizer, method, replicas=mesh["replicate"])'
        )
    raise ValueError(
        f"ddp_hook takes a model wrapped in DistributedDataParallel; got {type(model).__name__}: "
        "write model = DDP(model), or tw.attach(model, optimizer, method)"
    )


def check_no_hook(model: DistributedDataParallel) -> None:
    """Refuse a model of DDP that has a hook: it takes one, and keeps it for ever."""
    if model._comm_hooks:
        raise ValueError(
            "this DistributedDataParallel has a hook already, and keeps it for ever; write wire.switch(method), or "
            "model = DDP(model.module)"
        )


def refuse_compiled_backward() -> None:
    """RuntimeError in a backward pass that torch has compiled: what is to be called at its end is never called."""
    compiling = sys.modules.get("torch._dynamo.compiled_autograd")  # if it was never imported, nothing is compiled
    if getattr(compiling, "in_compiled_autograd_region", False):
        raise RuntimeError(
            "compiled autograd runs this backward pass, and does not say when it ends, so that gradients cannot be "
            "exchanged; write torch._dynamo.config.compiled_autograd = False. torch.compile(model) may stay"
        )


def tuple_of(exclude: Sequence[str]) -> tuple[str, ...]:
    """The patterns as a tuple; a single string is refused."""
    if isinstance(exclude, str):
        raise TypeError(f"exclude takes a list of patterns; write exclude=[{exclude!r}]")
    if not isinstance(exclude, Iterable):
        raise TypeError(f"exclude takes a list of patterns; got {exclude!r}: write exclude=[] to leave nothing out")
    return tuple(exclude)


def _sharded_in(model: nn.Module) -> dict[int, str]:
    """The modules in the model that `fully_shard` has sharded: their names by id."""
    sharding = sys.modules.get("torch.distributed.fsdp")  # if it was never imported, nothing is sharded
    if sharding is None:
        return {}
    return {id(one): name for name, one in model.named_modules() if isinstance(one, sharding.FSDPModule)}


def refuse_wrapper(model: nn.Module) -> RemovableHandle:
    """Raise in the first forward pass after `fully_shard`, or that DistributedDataParallel makes with `model`.

    Both would exchange its gradients. DDP marks the passes that it makes; torch has no other trace of it in the
    model. FSDP puts other parameters in the place of those that are attached: with an optimizer of the new ones,
    nothing else would tell that thinwire exchanges nothing.
    """
    sharded, looked = _sharded_in(model), False

    def before_forward(module: nn.Module, args: Any) -> None:
        nonlocal looked
        if torch.compiler.is_compiling():
            return
        if not looked:
            looked = True
            late = [name or "the model" for key, name in _sharded_in(module).items() if key not in sharded]
            if late:
                raise ValueError(
                    f"fully_shard came after attach, and has sharded {late[0]}: shard the model first, then write "
                    "optimizer = ...(model.parameters()) and "
                    'tw.fsdp(model, optimizer, method, replicas=mesh["replicate"])'
                )
        outer = DistributedDataParallel._get_active_ddp_module()
        if outer is not None and any(inner is module for inner in outer.modules()):
            raise ValueError(
                "this model is attached, and DistributedDataParallel around it exchanges its gradients uncompressed; "
                "write tw.attach(model, ...) without DDP, or model.register_comm_hook(*tw.ddp_hook(method, model))"
            )

    return model.register_forward_pre_hook(Uncopied(before_forward))


def refuse_wrapped_later(model: nn.Module, optimizer: Optimizer, members: Sequence[Trained]) -> RemovableHandle:
    """Raise in the optimizer's first step if a wrapper has taken the model's parameters, or a part of it, meanwhile.

    FSDP puts other parameters in their place, so that those of the optimizer would never get a gradient.
    """

    looked = False

    def before_step(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal looked
        if looked:  # it stays until the wire is closed, since torch is going through the hooks now
            return
        looked = True
        now = {id(p): tuple(p.shape) for p in model.parameters()}
        gone = next((item.name for p, item in members if now.get(id(p)) != item.shape), "")
        if gone:
            raise ValueError(
                f"parameter {gone} is not in the model any more, as after fully_shard(model): wrap the model first, "
                "then write optimizer = ...(model.parameters()) and tw.attach(model, optimizer, method)"
            )
        if inside := wrapper_in(model):
            raise ValueError(
                f"{inside} came after attach and exchanges gradients, too; build the model without that wrapper, and "
                "write tw.attach(model, ...)"
            )

    handle: RemovableHandle = optimizer.register_step_pre_hook(before_step)
    return handle
