"""Graphs, mixing matrices and their spectral gap: who a rank gossips with."""

from thinwire.topology.base import TOPOLOGIES, Around, Topology
from thinwire.topology.complete import Complete
from thinwire.topology.edges import Edges, from_edges, from_networkx
from thinwire.topology.erdos_renyi import ErdosRenyi
from thinwire.topology.exponential import Exponential
from thinwire.topology.hypercube import Hypercube
from thinwire.topology.matching import Matching
from thinwire.topology.mixing import (
    check,
    check_topology,
    circulant,
    colouring,
    gap,
    largest_pull,
    matrices,
    metropolis,
    spectral_gap,
)
from thinwire.topology.one_peer import OnePeer
from thinwire.topology.ring import Ring
from thinwire.topology.star import Star
from thinwire.topology.torus import Torus
from thinwire.topology.weights import Weights

__all__ = [
    "TOPOLOGIES",
    "Around",
    "Complete",
    "Edges",
    "ErdosRenyi",
    "Exponential",
    "Hypercube",
    "Matching",
    "OnePeer",
    "Ring",
    "Star",
    "Topology",
    "Torus",
    "Weights",
    "check",
    "check_topology",
    "circulant",
    "colouring",
    "from_edges",
    "from_networkx",
    "gap",
    "get",
    "largest_pull",
    "matrices",
    "metropolis",
    "spectral_gap",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)


def get(topology: str | Topology) -> Topology:
    """The topology of an id, or the topology itself.

    >>> get("torus:rows=4")
    Torus(rows=4)
    >>> get(Ring())
    Ring()
    """
    if isinstance(topology, Topology):
        return topology
    if not isinstance(topology, str):
        raise ValueError(
            f"a topology is an id or a Topology, not a {type(topology).__name__}; "
            'write get("ring"), from_edges(...), from_networkx(...) or Weights(...)'
        )
    return TOPOLOGIES.parse(topology)
