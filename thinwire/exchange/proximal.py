"""Proximal: gossip exchanges that also change what each rank minimises between two exchanges.

    x_i = argmin f_i(x) + v_i'x + (c_i / 2) |x|^2

`begin` prepares v_i, `penalty` is c_i. The engine adds v_i + c_i x to the gradient of every local step, so that the
steps of any optimizer between two exchanges are an inexact argmin.

A round is `begin`, the local steps, then the call: `tell` and `hear`. Ranks take turns. `begin` waits for the `tell`
of ranks before this one in order, and `hear` for the `hear` of those after it. So where a model is several vectors,
`tell` must have ended for all of them before `hear` starts for one: otherwise a rank waits for another that still
waits for the second vector. And a vector's `begin`, `tell` and `hear` must run on one group of processes, since the
`begin` of one rank meets the `tell` of another; their key is that of the round.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, final

from thinwire.exchange.gossip import Gossip

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


class Proximal(Gossip):
    """Base of the exchanges around a subproblem. The engine sends a model in one piece."""

    @property
    def whole_tensors(self) -> bool:
        """Always."""
        return True

    @property
    def one_piece(self) -> bool:
        """Always: with several vectors, one would wait for a rank that waits for another vector's end."""
        return True

    @property
    def pulls(self) -> bool:
        """Always."""
        return True

    @property
    def remembers(self) -> bool:
        """At least v_i."""
        return True

    @abstractmethod
    async def begin(self, x: Tensor, state: State, ctx: Context) -> None:
        """Before the first local step of a round: hear what is needed, and write v_i into `state["linear"]`."""

    @abstractmethod
    def penalty(self, rank: int, n: int) -> float:
        """The factor c_i."""

    @abstractmethod
    async def tell(self, x: Tensor, state: State, ctx: Context) -> None:
        """After the last local step: send x_i to the ranks that wait for it in their `begin`."""

    @abstractmethod
    async def hear(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """Swap with the others and end the round; returns the model to go on with."""

    @final
    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """`tell` and `hear`, for a model that is one vector."""
        await self.tell(x, state, ctx)
        return await self.hear(x, state, ctx)
