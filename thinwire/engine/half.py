"""Half: a worker's half, of a server's rule or of its own, on the parameters that it trains, shard by shard.

lean    before a step of the worker's own, where the rule has some
push    what is sent of one shard, of its model, its gradient and what else the rule wants
pull    answers become the model to go on with
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor

from thinwire.engine.optimizers import name_of_optimizer, parts_of
from thinwire.engine.parameters import check_dense
from thinwire.server.keys import Keyed
from thinwire.server.steppers import Idle, Like, Outer, Stepper
from thinwire.server.ways import Ways
from thinwire.server.worker import Work
from thinwire.sync.delta import Delta

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.core.signals import Signal
    from thinwire.core.types import Key, State
    from thinwire.engine.loop import Loop
    from thinwire.engine.parameters import Trained
    from thinwire.server.rule import Rule
    from thinwire.server.shards import Shard
    from thinwire.server.worker import WorkerHalf


@final
class Half:
    """`states` is what it remembers on this worker, by shard: plain tensors by name."""

    def __init__(self, rule: WorkerHalf, loop: Loop, shards: Sequence[Shard], workers: int) -> None:
        self._rule, self._loop, self._shards, self._workers = rule, loop, shards, workers
        self._members = [one for members in loop.members for one in members]
        self.states: list[State] = []
        self.begin(loop.model())

    def begin(self, x: Tensor) -> None:
        """Remember nothing but the common model."""
        self.states = [self._rule.worker(shard.take(x), self._workers) for shard in self._shards]

    @property
    def lrs(self) -> tuple[float, ...]:
        """The learning rates of the parameter groups."""
        return tuple(float(group["lr"]) for group in cast(Any, self._loop.optimizer).param_groups)

    @torch.no_grad()
    def lean(self) -> None:
        """Set the gradients to those that the worker's own step takes."""
        x, g = self._loop.model(), self._gradient()
        for shard, state in zip(self._shards, self.states, strict=True):
            shard.put(self._rule.lean(shard.take(x), shard.take(g), state), g)
        self._set(g)

    def _set(self, g: Tensor) -> None:
        for one, part in zip(self._members, g.split([one.item.numel for one in self._members]), strict=True):
            p = one.parameter
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(part.view(p.shape))

    async def again(self, x: Tensor) -> dict[str, Tensor]:
        """The gradient of this step's batch at another model, where the rule wants it; `x` is this one."""
        loop, there = self._loop, x.clone()
        for shard, state in zip(self._shards, self.states, strict=True):
            part = self._rule.elsewhere(state)
            if part is None:
                return {}
            shard.put(part, there)
        if loop.again is None:
            raise ValueError(
                f"{self._rule.id} computes two gradients of a batch; write optimizer.step(closure), "
                "where closure() sets the gradients to zero, computes the loss, calls backward and returns the loss"
            )
        here = self._gradient()
        loop.set(there)
        await loop.again()
        second = self._gradient()
        loop.set(x)
        self._set(here)
        return {"again": second}

    @torch.no_grad()
    def push(
        self, x: Tensor, keys: Sequence[Key], again: Mapping[str, Tensor], *, finite: bool = True
    ) -> list[Tensor | Keyed] | None:
        """What is sent of each shard, or None; `x` is the model. Without a `finite` gradient it is empty or zero."""
        if not finite:
            parts = [torch.zeros_like(shard.take(x)) for shard in self._shards]
            return [Keyed(one[:0].long(), one[None, :0]) if self._rule.sparse else one for one in parts]
        g, lr = self._gradient(), self._lr(x)
        more = {name: _flat([_attribute(one, name) for one in self._members]) for name in self._rule.wants}
        more |= again
        pushes: list[Tensor | Keyed] = []
        for shard, state, key in zip(self._shards, self.states, keys, strict=True):
            some = {name: shard.take(one) for name, one in more.items()}
            rate = shard.take(lr) if lr.numel() > 1 else lr
            v = self._rule.push(Work(shard.take(x), shard.take(g), rate, key, some), state)
            if v is None:
                return None
            pushes.append(v)
        return pushes

    def precise(self, shard: Shard) -> bool:
        """Whether what was pushed goes up in float32."""
        return self._rule.precise(self.states[shard.number])

    def sent(self, shard: Shard, decoded: Tensor) -> None:
        """Tell the rule what a server decodes."""
        self._rule.sent(decoded, self.states[shard.number])

    @torch.no_grad()
    def pull(self, answers: Mapping[int, Tensor]) -> None:
        """Set the model, given the answers by shard."""
        x = self._loop.model()
        for shard, state in zip(self._shards, self.states, strict=True):
            if shard.number in answers:
                shard.put(self._rule.pull(shard.take(x), answers[shard.number], state), x)
        self._loop.set(x)

    def _gradient(self) -> Tensor:
        for one in self._members:
            check_dense(one.parameter.grad, one.item.name)
        some = [one.parameter for one in self._members]
        return _flat([torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in some])

    def _lr(self, x: Tensor) -> Tensor:
        lrs = self.lrs
        if len(set(lrs)) == 1:
            return torch.tensor(lrs[0], device=x.device)
        return torch.cat([torch.full((one.item.numel,), lrs[one.item.group]) for one in self._members]).to(x.device)


def worker_half(of: Signal, rule: Rule) -> WorkerHalf:
    """What workers do: as the rule says, unless what they exchange is the way of local steps."""
    return Ways() if of.outer_loop else rule


def stepper_of(of: Signal, rule: Rule, like: Optimizer) -> Stepper:
    """Which optimizer a server has."""
    if isinstance(of, Delta):
        return Outer(of.outer)
    if not rule.steps:
        return Idle()
    if len(parts_of(like)) > 1:
        raise ValueError(
            f"a server steps with one optimizer like the workers', and got {name_of_optimizer(like)}; write one of "
            "torch's for the whole model, or a method without a server"
        )
    return Like(like)


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
