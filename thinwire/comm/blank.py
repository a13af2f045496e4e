"""Blank: a message that has a size and no numbers, for simulations with shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, eq=False, slots=True)
class Blank:
    """What a clock asks of a tensor that it carries, and nothing else."""

    nbytes: int

    def numel(self) -> int:
        """A byte is an element."""
        return self.nbytes

    def element_size(self) -> int:
        """One byte."""
        return 1

    def clone(self) -> Blank:
        """Itself: there is nothing to change in it."""
        return self
