"""Simulation: whole training runs of many workers in one process, on virtual time and with real numbers."""

from thinwire.comm.network import Network
from thinwire.comm.stragglers import Constant, Exponential, LogNormal, ShiftedExponential, Stragglers, Transient
from thinwire.core.errors import DeadlockError
from thinwire.sim.problem import Problem
from thinwire.sim.simulate import Moment, Simulation, simulate

__all__ = [
    "Constant",
    "DeadlockError",
    "Exponential",
    "LogNormal",
    "Moment",
    "Network",
    "Problem",
    "ShiftedExponential",
    "Simulation",
    "Stragglers",
    "Transient",
    "simulate",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
