"""Exchange: who talks to whom. An `async def` that awaits the requests of a `Comm`; a driver answers them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from thinwire.core.config import Config

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from thinwire.comm.base import Comm
    from thinwire.core.channel import Channel
    from thinwire.core.types import Context, Layout, State


class Exchange(Config, ABC):
    """The central protocol: one call exchanges one bucket."""

    @property
    @abstractmethod
    def channels(self) -> tuple[Channel, ...]:
        """What travels, hop by hop: where facts about bits and bias are read from."""

    @abstractmethod
    def init(self, layout: Layout, comm: Comm, device: torch.device | None = None) -> State:
        """The state of one bucket on this rank."""

    @abstractmethod
    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The exchanged vector, float32; `x` is not changed, `state` is."""
