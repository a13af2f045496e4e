"""Moniqua: ranks send their models modulo a length B, since neighbours know roughly where a model is: near their own.

Sends one payload of b bits per element and 8 bytes to each neighbour in each step; keeps nothing. With q_j the place
of x_half_j on a circle of length B (thinwire/compressors/modulo.py), L = 2^b and delta = 1 / (2 L):

    B = 2 theta / (1 - 2 delta)
    xhat_j = ((q_j B / L - x_half_i + B/2) mod B) - B/2 + x_half_i    at rank i, also for j = i
    x_i = x_half_i + eta sum_j W_ij (xhat_j - xhat_i)

Where neighbours are nearer than theta, element by element, xhat_j is the same number at every rank, and at most delta
B from x_half_j. The columns of W - I sum to zero, so the mean of the models is then that of plain SGD. Where they are
farther apart, xhat_j may be wrong by B: the checksum in the message shows it, and the round ends with an error.

The grid's step is 2 theta / (L - 1), and models stay about that far apart: theta should be near the largest
distance that is seen, which grows with the learning rate. With few bits, W moves models by large parts of theta: a
smaller `eta` helps. With 1 bit all models within 2 theta may lie in one cell, where they cannot be told apart until
they have drifted too far: write rounding="shared", which moves the grid in every step.

Reference: Lu, De Sa, "Moniqua: modulo quantized communication in decentralized SGD", ICML 2020, arXiv 2002.11787.

Departs from the paper: models are mixed after the local step, where the paper's x_i is the model before it and -lr g
is added to what was mixed. theta is given, not derived from bounds on gradients. Each message has a checksum of the
model. The sum is over whole numbers of steps, so that xhat_i is the same number where it is taken off and where it is
added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch

from thinwire.compressors.modulo import Modulo
from thinwire.core.channel import Channel
from thinwire.exchange.gossip import Gossip, check_graph, trade
from thinwire.exchange.mix import Mix
from thinwire.topology.base import Topology
from thinwire.topology.ring import Ring

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Context, State


@final
@dataclass(frozen=True)
class Moniqua(Gossip):
    """Models modulo B, in `bits`, for neighbours nearer than `theta`."""

    name: ClassVar[str] = "moniqua"
    bits: int = 8
    theta: float = 1.0
    topology: Topology = field(default_factory=Ring)
    eta: float = 1.0
    rounding: Literal["nearest", "shared"] = "nearest"

    def __post_init__(self) -> None:
        check_graph("Moniqua", self.topology)
        if not 0 < self.eta <= 1:
            raise ValueError(f"Moniqua(eta={self.eta}) is outside 0 < eta <= 1; write eta=1.0")
        _ = self.modulo  # refuses its own settings

    @cached_property
    def modulo(self) -> Modulo:
        """The compressor that these settings describe; kept, since it keeps its digest."""
        return Modulo(self.bits, self.theta, self.rounding)

    @property
    def hops(self) -> dict[str, Channel]:
        """One hop."""
        return {"": Channel(self.modulo)}

    @property
    def plain(self) -> Mix:
        """The same graph in float32."""
        return Mix(topology=self.topology, eta=self.eta)

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The model after mixing."""
        near, modulo, channel = self.near(ctx), self.modulo, self.channels[0]
        payload = channel.send(x.float(), {}, ctx)
        assert payload is not None
        arrived = await trade(channel, payload, near, ctx)
        with ctx.clock.span("decode"):
            mine = modulo.indices(x.float(), ctx.key)
            pull = torch.zeros_like(mine)
            for j, message in arrived.items():
                k = modulo.unwrap(message, ctx.layout, x, ctx.key)
                if k is None:
                    raise ValueError(self._too_far(ctx.comm.rank, j))
                pull += near.sources[j] * (k - mine)
            return x + (pull * (self.eta * modulo.step)).to(x.dtype)

    def _too_far(self, me: int, other: int) -> str:
        coarse = self.bits == 1 and self.rounding == "nearest"
        more = ", rounding='shared', eta=0.2" if coarse else ""
        return (
            f"rank {me} cannot tell the model of rank {other}: they are more than theta={self.theta:g} apart; "
            f"write moniqua(theta={2 * self.theta:g}{more}), or a smaller learning rate"
        )
