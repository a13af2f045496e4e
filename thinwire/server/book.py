"""Book: a server's shard of the model, its optimizer, and what it knows of every worker.

The optimizer runs where the model is, on the server's own tensors: mostly it is of the worker's kind, with the same
settings and parameter groups, and learning rates that came with the gradient (`thinwire/server/steppers.py`).

A worker that saves a checkpoint is paused, and for the rule as good as gone; when nobody is left to wait for, the
book can be saved, and all go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor, nn

from thinwire.server.down import Sender
from thinwire.server.plain import copied, plain, restored
from thinwire.server.rule import Push, Rule
from thinwire.server.words import Reply

if TYPE_CHECKING:
    from thinwire.core.clock import Now
    from thinwire.server.steppers import Stepper


class Part(NamedTuple):
    """One tensor of the model, and the parameter group that it belongs to."""

    name: str
    shape: tuple[int, ...]
    group: int


@final
class Book:
    """`answers` and `grants` hold whom the rule has just let go on; the server sends them."""

    def __init__(
        self,
        rule: Rule,
        x: Tensor,
        parts: Sequence[Part],
        stepper: Stepper,
        workers: int,
        now: Now,
        bound: int | None,
        down: Sender,
        groups: int = 1,
    ) -> None:
        """`groups` is how many parameter groups the workers have."""
        self.x = x.detach().clone()
        self.rule, self.workers, self.now, self.bound, self.down = rule, workers, now, bound, down
        self.parts = tuple(parts)
        self.version = 0  # updates so far
        self.alive = set(range(workers))  # whom the rule may wait for
        self.paused: set[int] = set()
        self.away: set[int] = set()  # who will be back with its next gradient
        self.clocks = [0] * workers  # gradients that each has pushed
        self.backup = {rank: self.x.clone() for rank in range(workers)} if rule.backups else {}
        self.state: Any = rule.init(workers)
        self.answers: dict[int, Reply] = {}
        self.grants: dict[int, float] = {}
        self.pushes = self.used = self.dropped = self.lost = 0
        self.staleness: Counter[int] = Counter()
        self._views, self._stepper, self._groups = _views(self.x, parts), stepper, groups
        self._optimizer = stepper.optimizer(
            [
                [p for part, (p, _) in zip(parts, self._views, strict=True) if part.group == group]
                for group in range(groups)
            ]
        )
        self._group = {start: part.group for part, (_, start) in zip(parts, self._views, strict=True)}

    @property
    def slowest(self) -> int:
        """The smallest clock of those that are still there."""
        return min((self.clocks[rank] for rank in self.alive), default=0)

    @property
    def over(self) -> bool:
        """Whether all have ended: nobody will complete what is not complete."""
        return not (self.alive or self.paused or self.away)

    @torch.no_grad()
    def arrived(self, push: Push, *, finite: bool = True) -> None:
        """Let the rule take a gradient; one that is not `finite` is as good as one that came too late."""
        self.pushes += 1
        self.clocks[push.rank] += 1
        if finite:
            self.rule.arrived(push, self)
        else:
            self.rule.refused(push, self)

    @torch.no_grad()
    def apply(self, pushes: Sequence[Push], *, scale: float = 1.0, gradient: Tensor | None = None) -> None:
        """One step with the mean of the gradients, added in the order of ranks, or with `gradient`."""
        some = by_rank(pushes)
        if gradient is None:
            gradient = mean(some)
        assert self._optimizer is not None
        weight = self._stepper.prepare(self._optimizer, some[-1].lrs, scale)
        if weight != 1.0:
            gradient = weight * gradient
        for p, start in self._views:
            p.grad = gradient[start : start + p.numel()].view(p.shape)
        self._optimizer.step()
        self._updated(some)

    @torch.no_grad()
    def replace(self, x: Tensor, pushes: Sequence[Push]) -> None:
        """Set the model to one that the rule has made of these pushes, without the optimizer."""
        self.x.copy_(x)
        self._updated(pushes)

    def _updated(self, pushes: Sequence[Push]) -> None:
        for push in pushes:
            self.staleness[self.version - push.tag] += 1
        self.used += len(pushes)
        self.version += 1

    def drop(self, push: Push) -> None:
        """Count a gradient that is not used."""
        self.dropped += 1

    def answer(self, rank: int, *, model: Tensor | None = None, empty: bool = False) -> None:
        """Let a worker go on, with the model as it is now unless another is given, or `empty` without one."""
        data = None
        if not empty:
            data = self.down.send(rank, self.x if model is None else model, self.backup.get(rank))
        self.answers[rank] = Reply(self.version, self.rule.share(rank, self), data)

    def grant(self, rank: int, when: float = 0.0) -> None:
        """Let a worker push, not before that time."""
        self.grants[rank] = when

    def descend(self, x: Tensor, push: Push, weight: float) -> None:
        """A plain step of gradient descent on a copy, with a gradient that counts `weight` times."""
        for p, start in self._views:
            lr = weight * self._stepper.rate(push.lrs[self._group[start]])
            x[start : start + p.numel()].sub_(push.gradient[start : start + p.numel()], alpha=lr)

    def lr(self, push: Push) -> Tensor:
        """The learning rate of every element, or one for all."""
        if len(set(push.lrs)) == 1:
            return self.x.new_tensor(push.lrs[0])
        return torch.cat([self.x.new_full((p.numel(),), push.lrs[self._group[start]]) for p, start in self._views])

    @torch.no_grad()
    def leave(self, rank: int) -> None:
        """A worker has ended or died."""
        for some in (self.alive, self.paused, self.away):
            some.discard(rank)
        self.rule.left(rank, self)

    @torch.no_grad()
    def pause(self, rank: int) -> None:
        """A worker has stopped between two steps, to save."""
        self.alive.discard(rank)
        self.paused.add(rank)
        self.rule.left(rank, self)

    @torch.no_grad()
    def step_out(self, rank: int) -> None:
        """A worker meets others elsewhere, and is not waited for until it is back."""
        self.alive.discard(rank)
        self.away.add(rank)
        self.rule.left(rank, self)

    def back(self, rank: int) -> None:
        """A worker is heard of; it may have been away."""
        if rank in self.away:
            self.away.discard(rank)
            self.alive.add(rank)

    def all_back(self) -> None:
        """Nobody is left who could wait for those that are away; they are waited for again, lest one goes alone."""
        self.alive |= self.away
        self.away = set()

    def go_on(self) -> None:
        """Those that were paused are waited for again."""
        self.alive |= self.paused
        self.paused = set()

    def save(self) -> dict[str, Any]:
        """Plain values and tensors, by the names of the model's tensors where they are of its shape."""
        cuts = zip(self.parts, self._views, strict=True)
        moments: Mapping[Any, Any] = {} if self._optimizer is None else self._optimizer.state
        state = {part.name: dict(moments.get(p, {})) for part, (p, _) in cuts}
        return {
            "x": {part.name: p.detach().clone() for part, (p, _) in zip(self.parts, self._views, strict=True)},
            "optimizer": {name: {key: copied(value) for key, value in one.items()} for name, one in state.items()},
            "version": self.version,
            "clocks": list(self.clocks),
            "counts": [self.pushes, self.used, self.dropped, self.lost],
            "staleness": [[age, count] for age, count in self.staleness.items()],
            "backup": [[rank, x.clone()] for rank, x in self.backup.items()],
            "rule": plain(self.state),
            "down": copied(self.down.save()),
        }

    @property
    def moments_of(self) -> dict[str, tuple[Stepper, Tensor, int]]:
        """By tensor of the model who steps it, a tensor like it, and the number of parameter groups."""
        cuts = zip(self.parts, self._views, strict=True)
        return {part.name: (self._stepper, p.detach(), self._groups) for part, (p, _) in cuts}

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on where `save` was called, with as many workers."""
        self.adopt(saved["x"], saved["optimizer"], saved["version"], 0)
        self.clocks = list(saved["clocks"])
        self.pushes, self.used, self.dropped, self.lost = saved["counts"]
        self.staleness = Counter(dict(saved["staleness"]))
        for rank, x in saved["backup"]:
            self.backup[rank].copy_(x)
        self.state = restored(saved["rule"], self.rule.init(self.workers))
        self.down.load(saved["down"])

    @torch.no_grad()
    def adopt(self, x: Mapping[str, Tensor], optimizer: Mapping[str, Any], version: int, clock: int) -> None:
        """Begin with this model and these moments, which all workers have: the number of workers may be another."""
        for part, (p, _) in zip(self.parts, self._views, strict=True):
            p.copy_(x[part.name])
            moments = {key: copied(value) for key, value in optimizer[part.name].items()}
            if moments and self._optimizer is not None:
                self._optimizer.state[p] = moments
        self.version, self.clocks = version, [clock] * self.workers
        self.state = self.rule.init(self.workers)
        for has in self.backup.values():
            has.copy_(self.x)
        self.down.restart(self.x)

    def report(self) -> dict[str, float]:
        """Updates, what became of the gradients, and how many updates each did not know of."""
        stale = self.staleness
        mean = sum(age * count for age, count in stale.items()) / max(1, self.used)
        return {
            "updates": self.version,
            "pushes": self.pushes,
            "used": self.used,
            "dropped": self.dropped,
            "workers_lost": self.lost,
            "staleness_mean": mean,
            "staleness_max": max(stale, default=0),
            **{f"staleness_{age}": count for age, count in sorted(stale.items())},
            **self.rule.figures(self),
        }


def by_rank(pushes: Sequence[Push]) -> list[Push]:
    """The pushes in the order of ranks, in which they are added up: whoever came first, the bits are the same."""
    return sorted(pushes, key=lambda push: push.rank)


def mean(pushes: Sequence[Push]) -> Tensor:
    """The mean of their gradients, added in this order; of one, the gradient itself."""
    if len(pushes) == 1:
        return pushes[0].gradient
    total = pushes[0].gradient.clone()
    for push in pushes[1:]:
        total += push.gradient
    return total.div_(len(pushes))


def _views(x: Tensor, parts: Sequence[Part]) -> list[tuple[nn.Parameter, int]]:
    """Parameters that lie in `x`, and where each begins."""
    views, start = [], 0
    for _, shape, _ in parts:
        size = torch.Size(shape).numel()
        views.append((nn.Parameter(x[start : start + size].view(shape)), start))
        start += size
    return views
