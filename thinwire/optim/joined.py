"""Joined: several optimizers as one, each with parameters of its own.

    optimizer = Joined(torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=4e-4))

Its groups are theirs, so that a scheduler or a loop that sets "lr" reaches all of them; its state dict holds all of
them in the order in which they were given. What is hooked to it, as by `attach`, is called once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch.optim import Optimizer


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
        if any(part.state for part in parts):
            raise ValueError("an optimizer that has stepped cannot be joined; write Joined(...) before training")
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of every part; returns what `closure` does."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self._parts:
            part.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on from a state dict, with all parts."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """One state and one list of groups, which are also those of the parts."""
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
