"""Adapt: every so many rounds, each tensor gets the compressor with which all together are smallest at equal error.

    errors_l(c) = |C_c(G_l) - G_l|^2,    G_l the sum of rank 0's gradients of tensor l since the last choice
    choice      = min sum_l size_l(c_l)  subject to  sum_l errors_l(c_l) <= sum_l errors_l(uniform)

`thinwire.core.budget` has the programme; the schedule `thinwire.engine.schedules.adapted` decides on rank 0 and tells
the others. Until the first choice all tensors have the uniform compressor, each by itself. Memories stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.core.budget import BINS
from thinwire.core.compressor import Compressor
from thinwire.core.config import Config, replaced
from thinwire.core.per_tensor import PerTensor

if TYPE_CHECKING:
    from thinwire.core.exchange import Exchange


@final
@dataclass(frozen=True)
class Adapt(Config):
    """`uniform` is what the exchange has, and whose error is the budget; the choice is between it and `options`.

    It is made every `every` rounds, with the error counted in so many `bins`.
    """

    name: ClassVar[str] = "adapt"
    uniform: Compressor
    options: tuple[Compressor, ...]
    every: int = 100
    bins: int = BINS

    def __post_init__(self) -> None:
        if not all(isinstance(one, int) and one >= 1 for one in (self.every, self.bins)):
            raise ValueError(f"Adapt(every={self.every}, bins={self.bins}): write 1 or more for both, whole numbers")
        if not self.options or len(self.choices) > 255:
            raise ValueError(
                f"Adapt chooses from 1 to 254 options besides {self.uniform.id}; got {len(self.options)}"
            )
        whole = {one.whole_tensors for one in self.choices}
        if len(whole) > 1:
            raise ValueError(
                f"Adapt(options=...): all options need whole tensors, as {self.uniform.id} may do, or none does"
            )
        PerTensor(self.choices)  # refuses what cannot lie beside others

    @property
    def choices(self) -> tuple[Compressor, ...]:
        """All that a tensor may get, the uniform one first."""
        return (self.uniform, *(option for option in self.options if option != self.uniform))

    def chosen(self, exchange: Exchange, choice: Mapping[str, int]) -> Exchange:
        """The exchange with the choice that was made, by the name of the tensor.

        It compresses tensor by tensor also where all have the uniform one, since the budget is the error of that: one
        k for a whole bucket would leave out other elements than a k for each tensor.
        """
        return replaced(exchange, self.uniform, PerTensor(self.choices, tuple(sorted(choice.items()))))

    def check(self, exchange: Exchange) -> None:
        """Refuse an exchange in which there is nothing to choose."""
        if not any(channel.encoder == self.uniform for channel in exchange.channels):
            raise ValueError(
                f"the exchange does not send {self.uniform.id}, for which Adapt(uniform=...) stands; write "
                f"AllGather(Channel({self.uniform!r}))"
            )
