"""Optimizers: whose steps a wire follows. One, several that share the model, a container of several, or a wrapper."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from thinwire.optim.joined import Joined

if TYPE_CHECKING:
    from thinwire.core.method import Method

_attached: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def followed(given: Any, method: Method) -> Optimizer:
    """The optimizer whose hooks tell of every step; several become one.

    An optimizer inside a wrapper is hooked itself, because a wrapper has no hooks, or its hooks are called at other
    times.
    """
    parts = list(_parts_in(given, method))
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise TypeError(
            f"thinwire takes an optimizer, or a list of them; got {given!r}: write [muon, adamw], with every "
            "optimizer that the loop steps"
        )
    seen: set[int] = set()
    for part in parts:
        own = {id(p) for group in part.param_groups for p in group["params"]}
        if seen & own:
            raise ValueError(
                f"{type(part).__name__} has a parameter that another optimizer has, too; write one optimizer per "
                "parameter: [torch.optim.Muon(matrices), torch.optim.AdamW(rest)]"
            )
        seen |= own
    return Joined(*parts)


def _parts_in(given: Any, method: Method) -> Iterable[Optimizer]:
    several = given if isinstance(given, list | tuple) else getattr(given, "optimizers", None)
    if isinstance(several, list | tuple) and (several is given or _all_optimizers(several)):
        for part in several:
            yield from _parts_in(part, method)
        return
    name, inner = type(given).__name__, getattr(given, "optimizer", None)
    if isinstance(inner, Optimizer):
        raise ValueError(f"{name} is a wrapper around {type(inner).__name__}; write optimizer.optimizer in its place")
    if isinstance(given, Optimizer):
        yield given
        return
    base = getattr(given, "base", None)
    if not isinstance(base, Optimizer):
        raise TypeError(
            f"thinwire takes a torch.optim.Optimizer, or a list of them; got {name}: write "
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1) before it"
        )
    if method.sync.of.models or method.exchange.served:
        raise ValueError(
            f"{name} puts another point into the parameters while {type(base).__name__} steps, and {method.id} would "
            "exchange that one; write an optimizer that does it in one step, such as "
            "schedulefree.AdamWScheduleFree(model.parameters()), or a method that exchanges gradients, such as "
            "tw.methods.int4()"
        )
    yield base


def _all_optimizers(several: Sequence[Any]) -> bool:
    return bool(several) and all(isinstance(part, Optimizer) for part in several)


def parts_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """The optimizers of which it is made."""
    return optimizer.parts if isinstance(optimizer, Joined) else (optimizer,)


def name_of_optimizer(optimizer: Optimizer) -> str:
    """Its class, or those of its parts."""
    return " and ".join(type(part).__name__ for part in parts_of(optimizer))


def check_free(optimizer: Optimizer) -> None:
    """Refuse a second wire on one optimizer: its gradients would be exchanged twice."""
    if any(part in _attached for part in (optimizer, *parts_of(optimizer))):
        raise ValueError("this optimizer is attached already; write wire.switch(method), or wire.detach() first")


def claim_optimizer(optimizer: Optimizer) -> None:
    """Remember that a wire follows its steps."""
    _attached.update((optimizer, *parts_of(optimizer)))


def unclaim_optimizer(optimizer: Optimizer) -> None:
    """Forget it, when the wire is closed."""
    _attached.difference_update((optimizer, *parts_of(optimizer)))


def check_all_have_one(model: nn.Module, optimizer: Optimizer, ignored: Sequence[str] = ()) -> None:
    """Refuse to leave out what another optimizer of the loop trains: it would drift apart between ranks."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left = [
        name for name, p in model.named_parameters() if p.requires_grad and id(p) not in own and name not in ignored
    ]
    if left:
        some = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        raise ValueError(
            f"{some}: trainable, and not in {name_of_optimizer(optimizer)}, so that ranks would differ in what "
            "another optimizer makes of it; write a list of all optimizers of the loop in its place, such as "
            "[muon, adamw], or p.requires_grad_(False) for what is not to be trained"
        )
