"""Any graph by its edges, with Metropolis weights: a text such as "0-1 1-2 0-2", a list of pairs, a networkx graph.

The text is kept sorted, so two ways to write one graph make equal values with one id.

>>> Edges("2-1 1-0 0-2")
Edges(pairs='0-1 0-2 1-2')
>>> from_edges([(0, 1), (1, 2), (0, 2)]) == Edges("2-1 1-0 0-2")
True
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, SupportsIndex, final

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.mixing import check, metropolis

if TYPE_CHECKING:
    from torch import Tensor


class Graph(Protocol):
    """The part of a networkx graph that is read."""

    @property
    def edges(self) -> Iterable[Any]:
        """Tuples that start with two nodes."""

    def number_of_nodes(self) -> int:
        """How many nodes there are."""


@final
@dataclass(frozen=True)
class Edges(Topology):
    """`pairs` are undirected edges, "0-1 1-2", that connect all of the ranks 0 to n-1."""

    name: ClassVar[str] = "edges"
    pairs: str = ""  # empty is refused, with the line to write

    def __post_init__(self) -> None:
        pairs = sorted({(min(pair), max(pair)) for pair in _read(self.pairs)})
        _check_numbers(pairs)
        object.__setattr__(self, "pairs", _write(pairs))
        check(metropolis(pairs, 1 + max(max(pair) for pair in pairs)))

    @property
    def size(self) -> int | None:
        """One more than the highest rank."""
        return 1 + max(max(pair) for pair in _read(self.pairs))

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """Metropolis weights."""
        if n != self.size:
            raise ValueError(
                f"these edges are of {self.size} ranks, not {n}; write edges that join the ranks 0 to {n - 1}"
            )
        return metropolis(_read(self.pairs), n)


def from_edges(edges: Iterable[tuple[SupportsIndex, SupportsIndex]]) -> Edges:
    """The topology of pairs of ranks; each edge is listed once or twice."""
    try:
        pairs = [(operator.index(i), operator.index(j)) for i, j in edges]
    except (TypeError, ValueError) as error:
        raise ValueError(f"edges are pairs of ranks ({error}); write from_edges([(0, 1), (1, 2), (0, 2)])") from None
    return Edges(_write(pairs))


def from_networkx(graph: Graph) -> Edges:
    """The topology of an undirected networkx graph with the nodes 0 to n-1."""
    relabel = "write from_networkx(networkx.convert_node_labels_to_integers(graph))"
    if getattr(graph, "is_directed", bool)():
        raise ValueError(
            "Edges are undirected and this graph is directed; write from_networkx(graph.to_undirected()), or "
            "Weights(..., directed=True)"
        )
    n, ends = graph.number_of_nodes(), [tuple(edge)[:2] for edge in graph.edges]  # a multigraph has keys after them
    nodes = {node for pair in ends for node in pair}
    strange = sorted(map(repr, nodes - set(range(n))))
    if strange:
        raise ValueError(f"a graph of {n} nodes has the nodes 0 to {n - 1}, and this one has {strange[0]}; {relabel}")
    alone = sorted(set(range(n)) - nodes)
    if alone:
        raise ValueError(
            f"not connected: node {alone[0]} of {n} has no edges; write graph.add_edge({alone[0]}, "
            f"{1 if alone[0] == 0 else 0})"
        )
    return from_edges(ends)


def _read(text: str) -> list[tuple[int, int]]:
    if not isinstance(text, str):
        raise ValueError(f'Edges take a text such as "0-1 1-2 0-2"; got {text!r}: write from_edges(...)')
    wrong = [word for word in text.split() if not re.fullmatch(r"[0-9]+-[0-9]+", word)]
    if wrong or not text.strip():
        what = f"{wrong[0]!r} is not an edge" if wrong else "there are no edges"
        raise ValueError(f'Edges({text!r}): {what}; write Edges("0-1 1-2 0-2")')
    return [(int(i), int(j)) for i, _, j in (word.partition("-") for word in text.split())]


def _write(pairs: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{i}-{j}" for i, j in pairs)


def _check_numbers(pairs: list[tuple[int, int]]) -> None:
    loops = [i for i, j in pairs if i == j]
    if loops:
        raise ValueError(
            f"{loops[0]}-{loops[0]} joins a rank to itself; leave it out: W keeps a share at home anyway"
        )
    nodes = sorted({node for pair in pairs for node in pair})
    if nodes != list(range(len(nodes))):
        number = {node: k for k, node in enumerate(nodes)}
        better = _write((number[i], number[j]) for i, j in pairs[:8]) + (" ..." if len(pairs) > 8 else "")
        missing = next(k for k, node in enumerate(nodes) if k != node)
        raise ValueError(f'ranks are numbered from 0 without gaps, and {missing} is missing; write Edges("{better}")')


TOPOLOGIES.add(Edges.name, Edges)
