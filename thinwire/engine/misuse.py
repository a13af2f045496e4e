"""Misuse that would go unnoticed or end in an error about something else: each is refused in one sentence."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from thinwire.core.method import Method

attached: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def check_method_type(method: Any, call: str) -> None:
    """Refuse what is not a Method; `call` is the call that the user made, with {} in the method's place."""
    if isinstance(method, str):
        raise TypeError(f"{method!r} is a string; write " + call.format(f"tw.method({method!r})"))
    if not isinstance(method, Method):
        raise TypeError(f"{method!r} is not a Method; write " + call.format("tw.methods.qsgd()"))


def check_model(model: nn.Module) -> None:
    """Refuse wrappers that exchange gradients themselves."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"attach takes a torch.nn.Module; got {type(model).__name__}")
    if isinstance(model, DistributedDataParallel | DataParallel):
        raise ValueError(
            f"{type(model).__name__} exchanges gradients itself; write tw.attach(model.module, ...), or "
            "model.register_comm_hook(*tw.ddp_hook(method, model))"
        )


def check_optimizer(optimizer: Any) -> None:
    """Refuse wrappers: when one hands its work to another, its own hooks are not called, or at other times."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):
        raise ValueError(
            f"{type(optimizer).__name__} is a wrapper around {type(inner).__name__}; "
            "write tw.attach(model, optimizer.optimizer, ...)"
        )
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"attach takes a torch.optim.Optimizer; got {type(optimizer).__name__}")


def check_initialised() -> None:
    """Refuse to start without a process group."""
    if not dist.is_initialized():
        raise ValueError(
            'attach needs a process group; write torch.distributed.init_process_group("gloo") before it, '
            "and start the script with torchrun"
        )


def check_free(optimizer: Optimizer) -> None:
    """Refuse a second wire on one optimizer: its gradients would be exchanged twice."""
    if optimizer in attached:
        raise ValueError("this optimizer is attached already; write wire.switch(method), or wire.detach() first")


def tuple_of(exclude: Sequence[str]) -> tuple[str, ...]:
    """The patterns as a tuple; a single string is refused."""
    if isinstance(exclude, str):
        raise TypeError(f"exclude takes a list of patterns; write exclude=[{exclude!r}]")
    return tuple(exclude)


def refuse_ddp(model: nn.Module) -> RemovableHandle:
    """Raise in the first forward pass that DistributedDataParallel makes with `model`: both would exchange.

    DDP marks the passes that it makes; torch has no other trace of it in the model.
    """

    def before_forward(module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        outer = DistributedDataParallel._get_active_ddp_module()
        if outer is not None and any(inner is module for inner in outer.modules()):
            raise ValueError(
                "this model is attached, and DistributedDataParallel around it exchanges its gradients uncompressed; "
                "write tw.attach(model, ...) without DDP, or model.register_comm_hook(*tw.ddp_hook(method, model))"
            )

    return model.register_forward_pre_hook(before_forward)
