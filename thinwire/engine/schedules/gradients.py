"""Gradients: buckets are launched as backward fills them; the results are the gradients when it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from thinwire.engine.events import AllLaunched, BackwardEnds, Gradient, Overdue
from thinwire.engine.schedules.base import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from thinwire.engine.filling import Place
    from thinwire.engine.loop import Loop
    from thinwire.engine.round import Round


@final
class Gradients(Schedule):
    """Bulk-synchronous: every backward pass exchanges what it computed."""

    hears_gradients = True

    async def run(self) -> None:
        """For ever: fill, launch, wait, deliver."""
        while True:
            rounds = await launched(self.loop)
            if rounds:
                await self.loop.filling.results(rounds)


async def launched(
    loop: Loop, event: Gradient | Overdue | None = None, see: Callable[[Place, Tensor], None] | None = None
) -> list[Round]:
    """The rounds of the next backward pass, one per bucket, once every wire that hears it has launched its own.

    There are none where this rank is idle (`Wire.join`) and so are all others.
    `event` is its first, where that has been heard of already. `see` is shown each gradient before it travels.
    """
    event = event or await loop.next(Gradient, Overdue)
    filling, following = loop.filling, loop.next(Gradient, BackwardEnds)
    filling.begin()
    while isinstance(event, Gradient):
        view = filling.fill(event.place, event.grad)
        if see is not None:
            see(event.place, view)
        loop.filled(event.place, view)
        filling.launch_full()
        event = await following
    rounds = filling.launch_rest()
    await loop.next(AllLaunched)
    return rounds if not loop.idle or await filling.others_train(rounds) else []
