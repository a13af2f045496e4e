"""Half: the worker's half of a server's rule, on the parameters that a worker trains.

lean    before a step of the worker's own, where the rule has some
push    what is sent, of the model, its gradient and what else the rule wants
pull    the answer becomes the model to go on with
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor

from thinwire.server.keys import Keyed
from thinwire.server.rule import Work

if TYPE_CHECKING:
    from thinwire.core.types import Key, State
    from thinwire.engine.loop import Loop
    from thinwire.engine.parameters import Trained
    from thinwire.server.rule import Rule


@final
class Half:
    """`state` is what the rule remembers on this worker: plain tensors by name."""

    def __init__(self, rule: Rule, loop: Loop) -> None:
        self._rule, self._loop = rule, loop
        self._members = [one for members in loop.members for one in members]
        self.state: State = rule.worker(loop.model(), loop.runner.comm.size)

    @property
    def lrs(self) -> tuple[float, ...]:
        """The learning rates of the parameter groups."""
        return tuple(float(group["lr"]) for group in cast(Any, self._loop.optimizer).param_groups)

    @torch.no_grad()
    def lean(self) -> None:
        """Set the gradients to those that the worker's own step takes."""
        g = self._rule.lean(self._loop.model(), self._gradient(), self.state)
        for one, part in zip(self._members, g.split([one.item.numel for one in self._members]), strict=True):
            p = one.parameter
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(part.view(p.shape))

    @torch.no_grad()
    def push(self, x: Tensor, key: Key, *, finite: bool = True) -> Tensor | Keyed:
        """What is sent; `x` is the model. Without a `finite` gradient that is nothing, in the same form."""
        if not finite:
            nothing = torch.zeros_like(x)
            return Keyed(nothing[:0].long(), nothing[None, :0]) if self._rule.sparse else nothing
        more = {name: _flat([_attribute(one, name) for one in self._members]) for name in self._rule.wants}
        return self._rule.push(Work(x, self._gradient(), self._lr(x), key, more), self.state)

    @torch.no_grad()
    def pull(self, x: Tensor, answer: Tensor) -> None:
        """Set the model."""
        self._loop.set(self._rule.pull(x, answer.to(x.device), self.state))

    def _gradient(self) -> Tensor:
        some = [one.parameter for one in self._members]
        return _flat([torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in some])

    def _lr(self, x: Tensor) -> Tensor:
        lrs = self.lrs
        if len(set(lrs)) == 1:
            return torch.tensor(lrs[0], device=x.device)
        return torch.cat([torch.full((one.item.numel,), lrs[one.item.group]) for one in self._members]).to(x.device)


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten().float() for part in parts])


def _attribute(one: Trained, name: str) -> Tensor:
    value = getattr(one.parameter, name, None)
    if not isinstance(value, Tensor) or value.shape != one.parameter.shape:
        raise ValueError(
            f"the server's rule wants the attribute {name!r} of every parameter, of its shape; "
            f"write p.{name} = ... for {one.item.name} before optimizer.step()"
        )
    return value.detach()
