"""Stepping: whether the loop steps the optimizer that the wire follows, and whether that one sends things itself.

`Steps` counts the steps of that optimizer. If another one steps the same parameters in its place, or something else
moves them, ranks that exchange models never meet, and no residual follows a learning rate. Nothing else would tell.

`Resumed` looks whether the optimizer goes on from earlier training, and the wire does not.

`Traffic` compares torch's counts of collectives before and after the first steps: an optimizer that averages by
itself sends in float32, beside what is compressed and counted.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from thinwire.engine.groups import ours
from thinwire.engine.local import local
from thinwire.engine.optimizers import name_of_optimizer, parts_of
from thinwire.optim.step_hooks import on_step
from thinwire.sync.delta import Delta

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from thinwire.core.method import Method
    from thinwire.engine.parameters import Trained

SAMPLE = 16  # elements of every parameter that are compared
LOOKS = 3  # steps in which collectives are counted

OTHER = (
    "{other} has stepped parameters of a wire that follows {own}, which has taken no step {since}; write the "
    "optimizers that the loop steps in its place, as tw.attach(model, [first, second], method), or wire.detach() and "
    "attach with the new one"
)
MOVED = (
    "parameters have changed between two backward passes, and {own}, whose steps the wire follows, has taken none; "
    "write the optimizers that the loop steps in its place, as tw.attach(model, [first, second], method)"
)
SENDS = (
    "{own} communicates in its step ({count} collectives on torch.distributed), which is neither compressed nor in "
    "wire.stats(); write an optimizer that leaves this to the wire, such as torch.optim.AdamW or torch.optim.Muon"
)
FRESH = (
    "%s goes on from earlier steps, and what %s keeps between steps (residuals, an outer momentum) starts at zero; "
    "to resume both, write wire.load_state_dict(state) with what wire.state_dict() returned then"
)

log = logging.getLogger("thinwire")


@final
class Steps:
    """Those of one optimizer; `remove` when the wire ends."""

    def __init__(self, optimizer: Optimizer, members: Sequence[Trained]) -> None:
        self.count = 0
        self._optimizer, self._inside = optimizer, False
        self._known = {id(p) for p, _ in members}
        self._by_other = 0  # our steps when another optimizer stepped
        self._samples: dict[int, tuple[Tensor, Tensor]] = {}  # parameters as the first backward pass found them
        self._warned = False
        me = weakref.ref(self)
        self._hooks = [
            *on_step(optimizer, _calling(me, Steps._begins), _calling(me, Steps._ends)),
            register_optimizer_step_post_hook(_calling(me, Steps._somebody)),
        ]
        weakref.finalize(self, self._hooks[-1].remove)  # torch has it for all optimizers of the process
        self._first: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(_calling(me, Steps._accumulated)) for p, _ in members
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in (*self._hooks, *self._first):
            hook.remove()
        self._first, self._samples = [], {}

    def forget(self) -> None:
        """Somebody has loaded other parameters."""
        self._samples = {}

    def elsewhere(self) -> bool:
        """Whether something else has stepped since our last step. Of what is no optimizer of torch it warns, once."""
        if self.count and self.count == self._by_other:
            return True  # its next step is refused
        return any(self._compare(p, sample) for p, sample in [*self._samples.values()])

    def without_round(self) -> str:
        """Why there was no round, in words; empty if nobody has trained."""
        own = name_of_optimizer(self._optimizer)
        if self.count:
            return f"{own} took {self.count} steps, fewer than there are in a round"
        return f"{own} took no step; write the optimizers that the loop steps in its place" if self._samples else ""

    def _compare(self, p: Tensor, sample: Tensor) -> bool:
        if not self._warned and not _sample(p).equal(sample):
            self._warned = True
            warnings.warn(MOVED.format(own=name_of_optimizer(self._optimizer)), stacklevel=2)
        return self._warned

    def _accumulated(self, p: Tensor) -> None:
        _, sample = self._samples.setdefault(id(p), (p, _sample(p)))
        self._compare(p, sample)

    def _begins(self, *_: Any) -> None:
        self._inside = True

    def _ends(self, *_: Any) -> None:
        self._inside, self.count = False, self.count + 1
        for hook in self._first:
            hook.remove()
        self._first, self._samples = [], {}

    def _somebody(self, stepping: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped: ours, a part of it, one inside it or around it, or another one."""
        if self._inside or stepping in (self._optimizer, *parts_of(self._optimizer)):
            return
        groups = [group for group in stepping.param_groups if group.get("lr", 1.0) != 0]  # others move nothing
        if not any(id(p) in self._known for group in groups for p in group["params"]):
            return
        if self.count == self._by_other:
            since = "since then" if self.count else "so far"
            other, own = type(stepping).__name__, name_of_optimizer(self._optimizer)
            raise ValueError(OTHER.format(other=other, own=own, since=since))
        self._by_other = self.count


def _sample(p: Tensor) -> Tensor:
    return local(p).detach().reshape(-1)[:SAMPLE].clone()


def _calling(me: weakref.ref[Steps], what: Callable[..., None]) -> Callable[..., None]:
    """A hook that keeps nothing alive, and that torch does not compile with the function that calls it."""

    def hook(*args: Any) -> None:
        steps = me()
        if steps is not None:
            what(steps, *args)

    disabled: Callable[..., None] = torch.compiler.disable(hook)
    return disabled


def warn_without_round(method: Method, rounds: int, steps: Steps | None) -> None:
    """Say that a wire has ended before its ranks met for the first time."""
    of, exchange = method.sync.of, method.exchange
    if rounds or steps is None or not of.models or exchange.served or exchange.asynchronous:
        return
    if why := steps.without_round():
        warnings.warn(f"{method.id} has exchanged nothing, and the models of ranks differ: {why}", stacklevel=2)


def keeps_something(method: Method) -> bool:
    """Whether it has residuals, predictions or an outer momentum, without which a resumed run is another one."""
    of = method.sync.of
    momentum = isinstance(of, Delta) and not of.outer.adds_up
    return momentum or any(channel.memory.remembers for channel in method.exchange.channels)


@final
class Resumed:
    """Says so, once, unless the wire's own state has been loaded by the first step."""

    def __init__(self, optimizer: Optimizer, method: Method) -> None:
        self._optimizer, self._method = optimizer, method
        self._hooks = on_step(optimizer, self._begins, lambda *_: self.remove()) if keeps_something(method) else []

    def remove(self) -> None:
        """Look no longer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _begins(self, *_: Any) -> None:
        kept = [value for state in self._optimizer.state.values() for value in state.values()]
        if any(isinstance(value, Tensor) and value.dim() and bool(local(value).any()) for value in kept):
            log.warning(FRESH, name_of_optimizer(self._optimizer), self._method.id)


@final
class Traffic:
    """Warns once if an optimizer communicates in its step with the ranks of `group`; `remove` when the wire ends."""

    def __init__(self, optimizer: Optimizer, group: dist.ProcessGroup) -> None:
        self._ranks = set(dist.get_process_group_ranks(group))
        self._looks, self._before = 0, 0
        self._hooks = on_step(optimizer, self._begins, self._ends)

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _begins(self, *_: Any) -> None:
        if self._looks < LOOKS:
            self._before = _collectives(self._ranks)

    def _ends(self, optimizer: Optimizer, *_: Any) -> None:
        if self._looks < LOOKS:
            self._looks += 1
            count = _collectives(self._ranks) - self._before
            if count > 0:
                self._looks = LOOKS
                warnings.warn(SENDS.format(own=name_of_optimizer(optimizer), count=count), stacklevel=2)


def _collectives(ranks: Collection[int]) -> int:
    """How many there have been, in groups that are not ours and in which two of `ranks` could meet."""
    backends = {
        group._get_backend(kind)
        for group in list(dist.distributed_c10d._world.pg_map)
        if group not in ours and len(set(dist.get_process_group_ranks(group)) & {*ranks}) > 1
        for kind in group._device_types
    }
    total = 0
    for backend in backends:
        with suppress(RuntimeError):  # of one that does not count
            total += backend._get_sequence_number_for_group()  # type: ignore[attr-defined]
    return total
