"""Which schedule a method asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thinwire.engine.schedules.adapted import Adapted
from thinwire.engine.schedules.batched import Batched
from thinwire.engine.schedules.forward import Forward
from thinwire.engine.schedules.gradients import Gradients
from thinwire.engine.schedules.late import Late
from thinwire.engine.schedules.models import Models
from thinwire.engine.schedules.outer import Outer
from thinwire.engine.schedules.pairs import Pairs
from thinwire.engine.schedules.served import Served

if TYPE_CHECKING:
    from thinwire.engine.loop import Loop
    from thinwire.engine.schedules.base import Schedule


def schedule(loop: Loop) -> Schedule:
    """By what is exchanged, whom a rank waits for, and how old results may be."""
    sync, exchange = loop.method.sync, loop.method.exchange
    if exchange.served:
        return Served(loop)
    if sync.of.outer_loop:
        return Outer(loop)
    if sync.of.models:
        return Pairs(loop) if sync.staleness is None else Models(loop)
    if sync.batches is not None:
        return Batched(loop)
    if sync.adapt is not None:
        return Adapted(loop)
    if loop.method.overlap.into_forward is not None:
        return Forward(loop)
    return Late(loop) if sync.staleness else Gradients(loop)
