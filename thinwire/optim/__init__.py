"""Optimizers that methods need and torch does not have."""

from thinwire.optim.joined import Joined
from thinwire.optim.one_bit_adam import OneBitAdam
from thinwire.optim.proximal_sgd import ProximalSGD

__all__ = ["Joined", "OneBitAdam", "ProximalSGD"]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
