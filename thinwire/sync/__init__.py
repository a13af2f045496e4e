"""What is exchanged, how often, and how stale it may be."""

from thinwire.core.adapt import Adapt
from thinwire.core.batches import Batches
from thinwire.core.schedule import Sync
from thinwire.core.signals import Grad, Momentum, Param, Signal
from thinwire.sync.batches import GrowingBatches
from thinwire.sync.delta import Delta
from thinwire.sync.hiding import Layer, hidden
from thinwire.sync.merges import Carried, Elastic, Mixed, Take
from thinwire.sync.outer import Merge, OuterStep, Period, Place, Seen
from thinwire.sync.outer_steps import AnyOptimizer, Sgd, SlowMomentum
from thinwire.sync.periods import After, AtEnd, Fixed, Growing, Shrinking

__all__ = [
    "Adapt",
    "After",
    "AnyOptimizer",
    "AtEnd",
    "Batches",
    "Carried",
    "Delta",
    "Elastic",
    "Fixed",
    "Grad",
    "Growing",
    "GrowingBatches",
    "Layer",
    "Merge",
    "Mixed",
    "Momentum",
    "OuterStep",
    "Param",
    "Period",
    "Place",
    "Seen",
    "Sgd",
    "Shrinking",
    "Signal",
    "SlowMomentum",
    "Sync",
    "Take",
    "hidden",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
