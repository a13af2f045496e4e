"""Who talks to whom, one architecture a file."""

from thinwire.core.exchange import Exchange
from thinwire.exchange.all_gather import AllGather
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.hierarchical import Hierarchical
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.exchange.shared_scale import SharedScale

__all__ = ["AllGather", "AllReduce", "Exchange", "Hierarchical", "ScatterGather", "SharedScale"]
