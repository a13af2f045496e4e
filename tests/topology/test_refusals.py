"""What is not a mixing matrix or not a graph is refused with its place and the line to write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import pytest
import torch
from torch import Tensor

from thinwire.topology import (
    Edges,
    ErdosRenyi,
    Exponential,
    Hypercube,
    Matching,
    OnePeer,
    Ring,
    Topology,
    Torus,
    Weights,
    check,
    check_topology,
    colouring,
    from_edges,
    from_networkx,
    get,
)

networkx: Any = pytest.importorskip("networkx")


def matrix(*rows: Iterable[float]) -> Tensor:
    return torch.tensor([list(row) for row in rows], dtype=torch.float64)


HALVES = matrix((0.5, 0.5), (0.5, 0.5))


@pytest.mark.parametrize(
    ("w", "directed", "message"),
    [
        (torch.full((2, 3), 0.5), False, "square matrix with one row per rank; got the shape (2, 3)"),
        (torch.full((3,), 0.5), False, "got the shape (3,)"),
        (torch.zeros(0, 0), False, "got the shape (0, 0)"),
        (matrix((1.5, -0.5), (-0.5, 1.5)), False, "W[0, 1] = -0.5: weights are 0 or more"),
        (matrix((0.5, 0.5), (float("nan"), 0.5)), False, "W[1, 0] = nan"),
        (matrix((0.5, 0.5), (0.5, 0.4)), False, "row 1 of W sums to 0.9, and rows sum to one"),
        (matrix((0.5, 0.5), (float("inf"), 0.5)), False, "row 1 of W sums to inf"),
        (matrix((0.5, 0), (0.5, 1)), False, "or directed=True where the columns sum to one"),
        (matrix((0.5, 0.5), (0.5, 0.4)), True, "column 1 of W sums to 0.9, and columns sum to one"),
        (
            matrix((0.5, 0.5, 0), (0.5, 0, 0.5), (0.25, 0.25, 0.5)),
            False,
            "W[0, 2] = 0 but W[2, 0] = 0.25: not symmetric; write directed=True and use a push-sum method",
        ),
        (torch.block_diag(HALVES, HALVES), False, "not connected: its parts are 0, 1 | 2, 3"),
        (torch.eye(3), False, "not connected: its parts are 0 | 1 | 2"),
        (torch.eye(20), False, "0 | 1 | 2 | 3 | 4 | ...;"),
        (matrix((0.5, 0), (0.5, 1)), True, "not connected: its parts are 0 | 1"),  # one way only
    ],
)
def test_no_mixing_matrix(w: Tensor, directed: bool, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check(w, directed=directed)


def test_what_passes() -> None:
    check(HALVES)
    check(Ring().matrix(5))
    check(Ring().matrix(5).float())
    check(Exponential().matrix(6), directed=True)
    check(matrix((0.5, 0, 1), (0.5, 0.5, 0), (0, 0.5, 0)), directed=True)


@final
@dataclass(frozen=True)
class Turns(Topology):
    """The first edge in even steps, the second in odd ones; `weight` where they should have 1/2."""

    name: ClassVar[str] = "turns"
    edges: tuple[tuple[int, int], tuple[int, int]]
    weight: float = 0.5

    def matrix(self, n: int, step: int = 0) -> Tensor:
        w = torch.eye(n, dtype=torch.float64)
        i, j = self.edges[step % 2]
        w[i, i] = w[j, j] = torch.tensor(0.5, dtype=torch.float64)
        w[i, j] = w[j, i] = torch.tensor(0.5 if step % 2 == 0 else self.weight, dtype=torch.float64)
        return w

    def period(self, n: int) -> int | None:
        return 2


def test_the_union_over_a_period_is_connected() -> None:
    check_topology(Turns(((0, 1), (1, 2))), 3)
    with pytest.raises(ValueError, match=r"with 4 ranks is not connected: its parts are 0, 1 \| 2, 3"):
        check_topology(Turns(((0, 1), (2, 3))), 4)


def test_every_step_of_a_period_is_looked_at() -> None:
    with pytest.raises(ValueError, match=r"with 3 ranks, step 1: row 1 of W sums to 0\.75"):
        check_topology(Turns(((0, 1), (1, 2)), weight=0.25), 3)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9])
def test_matchings_of_any_seed_pass(n: int) -> None:
    for seed in range(20):
        check_topology(Matching(seed), n)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Torus(rows=0), "write Torus(rows=4)"),
        (lambda: Torus(rows=3).matrix(8), "8 ranks do not make 3 equal rows; write Torus(rows=2)"),
        (lambda: Hypercube().matrix(6), "4 or 8 and not 6; write Torus()"),
        (lambda: ErdosRenyi(p=0), "write ErdosRenyi(p=0.5)"),
        (lambda: ErdosRenyi(p=1.5), "outside 0 < p <= 1"),
        (lambda: ErdosRenyi(p=0.01).matrix(16), "not connected in 100 draws; write ErdosRenyi(p=0.35)"),
        (lambda: check_topology(Ring(), 0), "0 ranks do not make a graph"),
        (lambda: Edges(""), 'there are no edges; write Edges("0-1 1-2 0-2")'),
        (lambda: Edges("0-1 1_2"), "'1_2' is not an edge"),
        (lambda: Edges("0-1 -1-2"), "'-1-2' is not an edge"),
        (lambda: Edges("0-1 1-1"), "1-1 joins a rank to itself"),
        (lambda: Edges("1-2 2-3"), '0 is missing; write Edges("0-1 1-2")'),
        (lambda: Edges("0-1 1-3"), '2 is missing; write Edges("0-1 1-2")'),
        (lambda: Edges("0-1 2-3"), "not connected: its parts are 0, 1 | 2, 3"),
        (lambda: Edges([(0, 1)]), "write from_edges(...)"),  # type: ignore[arg-type]
        (lambda: Edges("0-1 1-2").matrix(4), "these edges are of 3 ranks, not 4"),
        (lambda: from_edges([("a", "b")]), "write from_edges([(0, 1), (1, 2), (0, 2)])"),  # type: ignore[list-item]
        (lambda: from_edges([(0, 1, 2)]), "edges are pairs of ranks"),  # type: ignore[list-item]
        (lambda: from_edges([(0, 1), (-1, 0)]), "'-1-0' is not an edge"),
        (lambda: Weights(((0.5, 0.5), (0.5, 0.4))), "row 1 of W sums to 0.9"),
        (lambda: Weights(((0.5, 0), (0.5, 1))), "row 0 of W sums to 0.5"),
        (lambda: Weights(((0.5, 0.5), (1.0,))), "got rows of [2, 1] weights"),
        (lambda: Weights(((1.0,),)), "write Weights(((0.5, 0.5), (0.5, 0.5)))"),
        (lambda: Weights("0.5 a; 0.5 0.5"), 'write numbers, and ; between rows: Weights("0.5 0.5; 0.5 0.5")'),
        (lambda: Weights(((0.5, 0.5), (0.5, 0.5))).matrix(3), "this W is for 2 ranks, not 3"),
        (lambda: colouring(OnePeer(), 8), "OnePeer() is directed, and only a fixed undirected graph has colours"),
        (lambda: colouring(Exponential(), 8), "Exponential() is directed"),
        (lambda: colouring(Matching(), 8), "Matching(seed=0) changes from step to step"),
        (lambda: get("rng"), "unknown topology 'rng'; did you mean 'ring'?"),
        (lambda: get("torus:cols=4"), "topology 'torus' has no setting 'cols'"),
        (lambda: get(torch.eye(3)), "not a Tensor; write get("),  # type: ignore[arg-type]
    ],
)
def test_refused_with_the_line_to_write(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def graph(*edges: tuple[Any, Any], nodes: int = 0, directed: bool = False) -> Any:
    made = networkx.DiGraph() if directed else networkx.Graph()
    made.add_nodes_from(range(nodes))
    made.add_edges_from(edges)
    return made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (graph(("a", "b")), "has the nodes 0 to 1, and this one has 'a'; write from_networkx(networkx.convert"),
        (graph((1, 2), (2, 3)), "has the nodes 0 to 2, and this one has 3"),
        (graph((0, 1), nodes=3), "not connected: node 2 of 3 has no edges; write graph.add_edge(2, 0)"),
        (graph((0, 1), (2, 3)), "not connected: its parts are 0, 1 | 2, 3"),
        (graph((0, 1), directed=True), "write from_networkx(graph.to_undirected())"),
        (graph((0, 1), (1, 1)), "1-1 joins a rank to itself"),
        (graph(nodes=1), "node 0 of 1 has no edges"),
    ],
)
def test_networkx_graphs_that_are_refused(made: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_networkx(made)
