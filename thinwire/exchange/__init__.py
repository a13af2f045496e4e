"""Who talks to whom, one architecture per file."""

from thinwire.core.exchange import Exchange
from thinwire.exchange.admm import Admm
from thinwire.exchange.all_gather import AllGather
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.dcd import Dcd
from thinwire.exchange.ecd import Ecd
from thinwire.exchange.gossip import Gossip, trade, weighted
from thinwire.exchange.gtopk import GTopK
from thinwire.exchange.hierarchical import Hierarchical
from thinwire.exchange.marina import Marina
from thinwire.exchange.mean_of_senders import MeanOfSenders
from thinwire.exchange.mix import Mix
from thinwire.exchange.moniqua import Moniqua
from thinwire.exchange.ok_topk import OkTopk
from thinwire.exchange.pairs import Pairs
from thinwire.exchange.power_sgd import PowerSgd
from thinwire.exchange.proximal import Proximal
from thinwire.exchange.push_sum import PushSum
from thinwire.exchange.reduce_scatter import ReduceScatter
from thinwire.exchange.scatter_gather import ScatterGather
from thinwire.exchange.server import Server
from thinwire.exchange.shared_scale import SharedScale
from thinwire.exchange.sketched import Sketched

__all__ = [
    "Admm",
    "AllGather",
    "AllReduce",
    "Dcd",
    "Ecd",
    "Exchange",
    "GTopK",
    "Gossip",
    "Hierarchical",
    "Marina",
    "MeanOfSenders",
    "Mix",
    "Moniqua",
    "OkTopk",
    "Pairs",
    "PowerSgd",
    "Proximal",
    "PushSum",
    "ReduceScatter",
    "ScatterGather",
    "Server",
    "SharedScale",
    "Sketched",
    "trade",
    "weighted",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
