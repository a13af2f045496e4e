"""Which schedule a method asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thinwire.engine.schedules.gradients import Gradients
from thinwire.engine.schedules.models import Models
from thinwire.engine.schedules.pairs import Pairs

if TYPE_CHECKING:
    from thinwire.engine.loop import Loop
    from thinwire.engine.schedules.base import Schedule


def schedule(loop: Loop) -> Schedule:
    """By what is exchanged, and by how old results may be."""
    sync = loop.method.sync
    if not sync.of.models:
        return Gradients(loop)
    return Models(loop) if sync.staleness is not None else Pairs(loop)
