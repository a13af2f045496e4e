"""What both ends of a channel remember, one idea per file."""

from thinwire.core.memory import Memory, NoMemory
from thinwire.core.slots import Slot
from thinwire.memory.difference import Difference
from thinwire.memory.error_feedback import ErrorFeedback
from thinwire.memory.lazy import Lazy
from thinwire.memory.momentum import LocalMomentum
from thinwire.memory.momentum_correction import MomentumCorrection
from thinwire.memory.velocity import Velocity

__all__ = [
    "Difference",
    "ErrorFeedback",
    "Lazy",
    "LocalMomentum",
    "Memory",
    "MomentumCorrection",
    "NoMemory",
    "Slot",
    "Velocity",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
