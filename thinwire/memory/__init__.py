"""What both ends of a channel remember, one idea a file."""

from thinwire.core.memory import Memory, NoMemory
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
    "Velocity",
]
