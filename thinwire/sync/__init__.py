"""What is exchanged, how often, and how stale it may be."""

from thinwire.core.schedule import Sync
from thinwire.core.signals import Delta, Grad, Momentum, Param, Signal

__all__ = ["Delta", "Grad", "Momentum", "Param", "Signal", "Sync"]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
