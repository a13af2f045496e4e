"""Simulation: training of many workers in one process on virtual time, with real numbers or with shapes alone."""

from thinwire.comm.network import Network
from thinwire.comm.stragglers import Constant, Exponential, LogNormal, ShiftedExponential, Stragglers, Transient
from thinwire.core.errors import DeadlockError
from thinwire.sim.costs import Costs, Pass
from thinwire.sim.foresee import Forecast, binds, foresee
from thinwire.sim.load import Load, Ready
from thinwire.sim.models import MODELS, Weight
from thinwire.sim.problem import Problem
from thinwire.sim.simulate import Moment, Simulation, simulate

__all__ = [
    "MODELS",
    "Constant",
    "Costs",
    "DeadlockError",
    "Exponential",
    "Forecast",
    "Load",
    "LogNormal",
    "Moment",
    "Network",
    "Pass",
    "Problem",
    "Ready",
    "ShiftedExponential",
    "Simulation",
    "Stragglers",
    "Transient",
    "Weight",
    "binds",
    "foresee",
    "simulate",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
