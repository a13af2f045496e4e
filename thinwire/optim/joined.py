"""Joined: several optimizers as one, each with parameters of its own.

    optimizer = Joined(torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=4e-4))

Its groups are theirs, so that a scheduler or a loop that sets "lr" reaches all of them; its state dict holds all of
them in the order in which they were given. What is hooked to it, as by `attach`, is called once per step, whether the
loop steps the whole or each part by itself: then the first part begins the step, and the last one ends it. Parts keep
their own state, and save and load it as they did alone.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from itertools import chain
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from thinwire.optim.step_hooks import on_step


@final
class Joined(Optimizer):
    """All of `parts`, which step one after the other.

    >>> a, b = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    >>> both = Joined(torch.optim.SGD([a], lr=0.1), torch.optim.AdamW([b], lr=0.01))
    >>> [group["lr"] for group in both.param_groups]
    [0.1, 0.01]
    """

    def __init__(self, *parts: Optimizer) -> None:
        if not parts or not all(isinstance(part, Optimizer) for part in parts):
            raise ValueError(f"Joined takes optimizers; got {parts!r}: write Joined(Muon(matrices), AdamW(rest))")
        self._waiting: list[Optimizer] = []  # parts that have stepped, while others have not
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._join(parts)

    @property
    def parts(self) -> tuple[Optimizer, ...]:
        """The optimizers, in the order in which they were given."""
        return self._parts

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of every part; returns what `closure` does."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        whole = self.param_groups is self._linked
        self._steps_whole = True
        try:
            for part in self._parts:
                if whole:
                    part.step()
                else:  # somebody has put other groups here for the length of this step
                    self._step_some(part)
        finally:
            self._steps_whole = False
            self._waiting = []
        return loss

    def finish(self) -> None:
        """End a step that some parts have taken and that the others leave out, as when a GradScaler skips theirs."""
        if self._waiting and not self._inside:
            self._waiting = []
            for hook in list(self._optimizer_step_post_hooks.values()):
                hook(self, (self,), {})

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: hooks are not copied, as with all optimizers."""
        return {"defaults": self.defaults, "parts": self._parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy, or go on from a state dict, with all parts."""
        if "parts" in state:
            super().__setstate__({"defaults": state["defaults"]})
            self._join(state["parts"])
            return
        groups, states = iter(state["param_groups"]), state["state"]
        for part in self._parts:
            own = [next(groups) for _ in part.param_groups]
            mine: defaultdict[Any, Any] = defaultdict(dict)
            mine.update({p: states[p] for group in own for p in group["params"] if p in states})
            part.__setstate__({"param_groups": own, "state": mine})
        self._link()

    def _join(self, parts: tuple[Optimizer, ...]) -> None:
        self._parts = parts
        self._steps_whole = False  # inside `step`
        self._inside = False  # inside the step of a part that the loop has called
        self._waiting = []
        self._link()
        self.state = cast("Any", States(parts))
        begins, ends, loaded = _hooks(weakref.ref(self))
        for part in parts:
            on_step(part, begins, ends)
            part.register_load_state_dict_post_hook(loaded)

    def _link(self) -> None:
        """The groups of the parts as they are now."""
        self._linked = self.param_groups = [group for part in self._parts for group in part.param_groups]

    def _step_some(self, part: Optimizer) -> None:
        own = {id(p) for group in part.param_groups for p in group["params"]}
        groups = [group for group in self.param_groups if any(id(p) in own for p in group["params"])]
        if groups:
            kept, part.param_groups = part.param_groups, groups
            try:
                part.step()
            finally:
                part.param_groups = kept

    def _part_begins(self, part: Optimizer, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, Any] | None:
        if self._steps_whole:
            return None
        if part in self._waiting:
            self.finish()
        self._inside, changed = True, False
        if not self._waiting:
            self._link()
            for hook in list(self._optimizer_step_pre_hooks.values()):
                answer = hook(self, (self, *args[1:]), kwargs)
                if answer is not None:
                    (_, *rest), kwargs = answer
                    args, changed = (part, *rest), True
        return (args, kwargs) if changed else None

    def _part_ends(self, part: Optimizer) -> None:
        if self._steps_whole:
            return
        self._inside = False
        self._waiting.append(part)
        if len(self._waiting) == len(self._parts):
            self.finish()


@final
class States(MutableMapping[Tensor, Any]):
    """What parts remember of every parameter: a view of their own states."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = parts

    def __getitem__(self, p: Tensor) -> Any:
        return self._of(p)[p]

    def __setitem__(self, p: Tensor, value: Any) -> None:
        self._of(p)[p] = value

    def __delitem__(self, p: Tensor) -> None:
        del self._of(p)[p]

    def __contains__(self, p: object) -> bool:
        return any(p in part.state for part in self._parts)

    def __iter__(self) -> Iterator[Tensor]:
        return chain.from_iterable(part.state for part in self._parts)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)

    def get(self, p: Tensor, default: Any = None) -> Any:
        """As of a dict: a parameter without a state gets none."""
        return self[p] if p in self else default  # noqa: SIM401  (this is what it does)

    def _of(self, p: Tensor) -> MutableMapping[Tensor, Any]:
        """The state of the part that has the parameter."""
        for part in self._parts:
            if p in part.state or any(p is one for group in part.param_groups for one in group["params"]):
                return part.state
        raise KeyError(p)


def _hooks(joined: weakref.ref[Joined]) -> tuple[Callable[..., Any], Callable[..., None], Callable[..., None]]:
    """For a part: before its step, after it, and when it has loaded. They keep nothing alive."""

    def begins(part: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        whole = joined()
        return None if whole is None else whole._part_begins(part, args, kwargs)

    def ends(part: Optimizer, args: Any, kwargs: Any) -> None:
        if (whole := joined()) is not None:
            whole._part_ends(part)

    def loaded(part: Optimizer) -> None:
        if (whole := joined()) is not None:
            whole._link()

    return begins, ends, loaded
