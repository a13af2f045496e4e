"""Who talks to whom, one architecture a file."""

from thinwire.core.exchange import Exchange
from thinwire.exchange.all_gather import AllGather
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.gtopk import GTopK
from thinwire.exchange.hierarchical import Hierarchical
from thinwire.exchange.marina import Marina
from thinwire.exchange.mean_of_senders import MeanOfSenders
from thinwire.exchange.ok_topk import OkTopk
from thinwire.exchange.power_sgd import PowerSgd
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.exchange.shared_scale import SharedScale
from thinwire.exchange.sketched import Sketched

__all__ = [
    "AllGather",
    "AllReduce",
    "Exchange",
    "GTopK",
    "Hierarchical",
    "Marina",
    "MeanOfSenders",
    "OkTopk",
    "PowerSgd",
    "ScatterGather",
    "SharedScale",
    "Sketched",
]
