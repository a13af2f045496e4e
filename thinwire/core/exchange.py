"""Exchange: who talks to whom. An `async def` that awaits the requests of a `Comm`; a driver answers them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from thinwire.core.config import Config
from thinwire.core.slots import Entries, make
from thinwire.core.types import Layout
from thinwire.kernels.base import TAME

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from thinwire.core.channel import Channel
    from thinwire.core.comm import Comm
    from thinwire.core.compressor import Compressor
    from thinwire.core.outline import Phase, Size
    from thinwire.core.slots import Slot
    from thinwire.core.types import Context, State

LARGE = (2048, 2048)  # a shape that every compressor of matrices shrinks
MANY = 10_000  # elements that are packed together

Scope: TypeAlias = Literal["everybody", "neighbours", "server"]


class Exchange(Config, ABC):
    """The central protocol: one call exchanges one vector.

    State is a flat dict, whose keys are the prefix of a hop, "send." or "recv.", and the memory's own name. What is
    in it is declared by `slots`; drivers, and checkpoints above all, read the declaration.

    What a driver must know it asks here, and not the class: the facts below have defaults for exchanges that make one
    mean of all ranks. `thinwire.exchange.wrapper` hands on those of an exchange inside another.
    """

    @property
    @abstractmethod
    def hops(self) -> dict[str, Channel]:
        """The channel of each hop, by the prefix of its state. Facts about bits and bias are read from here."""

    @property
    @final
    def channels(self) -> tuple[Channel, ...]:
        """The channels of the hops, in order."""
        return tuple(self.hops.values())

    @property
    def keeps_scale(self) -> bool:
        """Whether the result grows with its input, as a mean of gradients does and a vote does not."""
        return all(channel.compressor.keeps_scale for channel in self.channels)

    def halves(self, shape: tuple[int, ...]) -> bool:
        """Whether tensors of this shape, packed with many others, travel in at most half of their bytes in float32.

        Where the size depends on numbers, they are taken to.
        """
        return any(_halves(channel.encoder, shape) for channel in self.channels)

    @property
    def compresses(self) -> bool:
        """Whether large matrices travel compressed. What goes to a server is its schedule's affair."""
        return not self.served and (not self.keeps_scale or self.halves(LARGE))

    @property
    @abstractmethod
    def plain(self) -> Exchange:
        """What tensors that travel uncompressed go through, and all of them in rounds of warm-up.

        Mostly that is `AllReduce()`. A state that it has is a part of the state of this exchange, by the same names.
        """

    # Facts.

    @property
    def scope(self) -> Scope:
        """Whom a rank waits for."""
        return "everybody"

    @property
    def agrees(self) -> bool:
        """Whether all ranks must agree first: all finite, one learning rate, which tensors have a gradient."""
        return True

    @property
    def remembers(self) -> bool:
        """Whether it keeps a state between rounds."""
        return any(channel.memory.remembers for channel in self.channels)

    @property
    def carries_nan(self) -> bool:
        """Whether it is a plain float32 sum: it carries what is not finite by itself, and waits for no agreement."""
        return False

    @property
    def limit(self) -> float:
        """Up to which magnitude of vectors, and of what memories hold, the result and the memories are finite."""
        return TAME

    @property
    def measurable(self) -> bool:
        """Whether the error of `channels[0].compressor` on the vector says something: it may then be sampled."""
        return self.channels[0].compressor.keeps_scale

    @property
    def whole_tensors(self) -> bool:
        """Needs tensors whole, as matrices or for their scale: the engine does not cut its buckets into chunks."""
        return any(channel.compressor.whole_tensors for channel in self.channels)

    @property
    def one_piece(self) -> bool:
        """Needs the whole model in one vector, and one lane."""
        return False

    @property
    def before_step(self) -> bool:
        """Whether models are mixed before their local step: the engine then does so during backward."""
        return False

    @property
    def asynchronous(self) -> bool:
        """Whether it can run without rounds that ranks have in common."""
        return False

    @property
    def served(self) -> bool:
        """Whether a server keeps the model, and workers push gradients to it."""
        return False

    @property
    def bounded(self) -> bool:
        """Whether that server needs a bound on how far apart workers may be."""
        return False

    @property
    def local_steps(self) -> bool:
        """Whether the workers of that server take steps of their own, and push what came of them."""
        return False

    @property
    def takes_ways(self) -> bool:
        """Whether the workers of that server may push how far they went in steps of their own."""
        return False

    @property
    def pulls(self) -> bool:
        """Whether `begin` and `penalty` change what each rank minimises between two exchanges."""
        return False

    @property
    def cannot_drop(self) -> str:
        """Empty where a neighbour may be dropped; otherwise what to write instead."""
        return "write deepsqueeze(), or d_psgd()"

    def edges(self, n: int) -> list[tuple[int, int]]:
        """Every pair of `n` ranks that may ever talk to each other; none where all ranks meet."""
        return []

    def check(self, n: int) -> None:
        """Refuse a number of ranks that the exchange does not fit."""

    # What it does.

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        """What the state of one vector holds on this rank; here, what the memories of the hops hold."""
        return {
            f"{prefix}{half}.{name}": slot
            for prefix, channel in self.hops.items()
            for half, slots in (("send", channel.memory.slots()), ("recv", channel.memory.receiver_slots()))
            for name, slot in slots.items()
        }

    def span(self, name: str, layout: Layout, comm: Comm) -> tuple[int, int]:
        """Which elements the entry `name` of the state covers on this rank."""
        return 0, layout.numel

    @final
    def cover(self, name: str, layout: Layout, comm: Comm) -> Layout:
        """The layout of those elements."""
        span = self.span(name, layout, comm)
        return layout if span == (0, layout.numel) else layout.cut(*span)

    @final
    def init(self, layout: Layout, comm: Comm, device: torch.device | None = None) -> State:
        """The state of one vector on this rank, at the start."""
        state: State = {}
        for name, slot in self.slots(layout, comm).items():
            state |= make({name: slot}, self.cover(name, layout, comm), device)
        return state

    def start(self, x: Tensor, state: State) -> None:
        """Models are `x` on every rank, so what both ends of an edge remember may start there."""

    async def begin(self, x: Tensor, state: State, ctx: Context) -> None:
        """Prepare a round before its first local step, where the exchange pulls."""

    def penalty(self, rank: int, n: int) -> float:
        """How hard the model is pulled towards zero in its local steps, where the exchange pulls."""
        return 0.0

    @abstractmethod
    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        """The exchanged vector, float32. `state` is changed; `x` belongs to the call and may be changed."""

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """What a call does on each of `n` ranks, by sizes alone; `size` says how large payloads are."""
        raise ValueError(
            f"what {self.name} sends depends on numbers, and shapes alone do not say it; simulate it with numbers: "
            'write tw.simulate(method, "digits", workers=16), or thinwire simulate METHOD --task digits'
        )

    def rounds(self) -> tuple[tuple[float, Exchange], ...]:
        """The kinds of rounds that it has: the share of each, and an exchange that has rounds of that kind alone."""
        return ((1.0, self),)

    def groups(self, size: int) -> list[tuple[int, ...]]:
        """The groups of ranks that talk among themselves, besides the group of all."""
        return []

    @final
    def rescale(self, state: State, factor: float) -> None:
        """The learning rate has changed by 1/`factor`."""
        for prefix, channel in self.hops.items():
            channel.memory.rescale(part(state, f"{prefix}send."), factor)


def _halves(encoder: Compressor, shape: tuple[int, ...]) -> bool:
    """By what as many tensors again add to the bytes: scales per tensor count, and what all share does not."""
    if not encoder.fixed_size:
        return True
    count = -(-MANY // max(1, math.prod(shape)))
    few, more = (Layout(tuple(map(str, range(n))), (shape,) * n) for n in (count, 2 * count))
    return 2 * (encoder.nbytes(more) - encoder.nbytes(few)) <= 4 * few.numel


def part(state: State, prefix: str) -> State:
    """The entries under a prefix, named without it."""
    if not state:
        return {}
    return Entries((name[len(prefix) :], t) for name, t in state.items() if name.startswith(prefix))
