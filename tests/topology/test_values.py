"""Topologies are values: ids, JSON and repr; W for every n; draws, colours, edge lists and networkx graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thinwire.topology as package
from thinwire.core.config import from_json
from thinwire.topology import (
    TOPOLOGIES,
    Complete,
    Edges,
    ErdosRenyi,
    Exponential,
    Hypercube,
    Matching,
    OnePeer,
    Ring,
    Star,
    Topology,
    Torus,
    Weights,
    check_topology,
    colouring,
    from_edges,
    from_networkx,
    get,
    metropolis,
)

networkx: Any = pytest.importorskip("networkx")
W3 = ((0.5, 0.25, 0.25), (0.25, 0.5, 0.25), (0.25, 0.25, 0.5))
INSTANCES: list[Topology] = [
    Ring(),
    Torus(),
    Torus(rows=2),
    Hypercube(),
    Exponential(),
    OnePeer(),
    Complete(),
    Star(),
    Matching(),
    Matching(seed=7),
    ErdosRenyi(),
    ErdosRenyi(p=0.3, seed=1),
    Edges("0-1 1-2 2-0 2-3"),
    Weights(W3),
    Weights(((1 / 3, 2 / 3), (2 / 3, 1 / 3))),
    Weights(((0.5, 0, 1), (0.5, 0.5, 0), (0, 0.5, 0)), directed=True),
]


def test_every_registered_topology_is_tried() -> None:
    assert {type(t) for t in INSTANCES} == {TOPOLOGIES[name] for name in TOPOLOGIES}
    assert {t.name for t in INSTANCES} == set(TOPOLOGIES)


@pytest.mark.parametrize("topology", INSTANCES, ids=lambda t: t.id)
def test_round_trips(topology: Topology) -> None:
    assert eval(repr(topology), vars(package).copy()) == topology
    assert from_json(topology.to_json()) == topology
    assert get(topology.id) == topology
    assert get(topology) is topology
    n = topology.size or 4
    assert torch.equal(get(topology.id).matrix(n, 3), topology.matrix(n, 3))
    assert hash(get(topology.id)) == hash(topology)


def test_ids() -> None:
    assert get("torus:rows=4") == Torus(rows=4)
    assert get("erdos-renyi:p=0.3,seed=1") == ErdosRenyi(p=0.3, seed=1)
    assert Edges("2-1 1-0").id == "edges:pairs=0-1 1-2"
    assert Weights(((0.5, 0.5), (0.5, 0.5))).id == "weights:rows=0.5 0.5; 0.5 0.5"


@pytest.mark.parametrize("topology", INSTANCES, ids=lambda t: t.id)
def test_w_of_every_n(topology: Topology) -> None:
    for n in range(1, 18):
        check_w(topology, n)


def check_w(topology: Topology, n: int) -> None:
    fits = {Hypercube(): n & (n - 1) == 0, Torus(rows=2): n % 2 == 0}
    if not (fits.get(topology, True) if topology.size is None else n == topology.size):
        with pytest.raises(ValueError, match="write"):
            topology.matrix(n)
        return
    check_topology(topology, n)
    ones = torch.ones(n, dtype=torch.float64)
    for step in range(5):
        w = topology.matrix(n, step)
        assert w.dtype == torch.float64
        assert w.shape == (n, n)
        assert bool((w >= 0).all())
        assert torch.allclose(w.sum(0), ones, atol=1e-12)
        if not isinstance(topology, Weights):
            assert torch.allclose(w.sum(1), ones, atol=1e-12)
        if not topology.directed:
            assert torch.equal(w, w.T)
        period = topology.period(n)
        if period is not None:
            assert torch.equal(w, topology.matrix(n, step + period))


@pytest.mark.parametrize("topology", INSTANCES, ids=lambda t: t.id)
def test_around_is_a_row_and_a_column_of_w(topology: Topology) -> None:
    n = topology.size or 8
    for step in range(4):
        w = topology.matrix(n, step)
        again = torch.zeros_like(w)
        for rank in range(n):
            near = topology.around(rank, n, step)
            again[rank, rank] = near.own
            for j, weight in near.sources.items():
                again[rank, j] = weight
                assert rank in topology.around(j, n, step).peers
            assert list(near.peers) == [i for i in range(n) if i != rank and w[i, rank] > 0]
        assert torch.equal(again, w)


def test_directions() -> None:
    assert sorted(Exponential().around(0, 8).sources) == [1, 2, 4]
    assert Exponential().around(0, 8).peers == (4, 6, 7)
    assert [list(OnePeer().around(5, 8, t).sources) for t in range(4)] == [[6], [7], [1], [6]]
    assert Star().around(0, 5).peers == (1, 2, 3, 4)
    assert Star().around(3, 5).peers == (0,)


def test_doubled_edges_of_the_torus_add_up() -> None:
    assert Torus().around(0, 4).sources == pytest.approx({1: 0.4, 2: 0.4})
    assert Torus().around(0, 8).sources == pytest.approx({1: 0.2, 3: 0.2, 4: 0.4})
    assert Torus().around(0, 7).own == pytest.approx(0.6)


def test_a_matching_is_a_function_of_seed_step_and_n() -> None:
    def pairs(seed: int, step: int, n: int) -> list[list[int]]:
        found: list[list[int]] = Matching(seed).matrix(n, step).triu(1).nonzero().tolist()
        return found

    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = pairs(0, 5, 8)
        torch.rand(3)
        assert pairs(0, 5, 8) == first
    assert len({str(pairs(0, step, 16)) for step in range(50)}) == 50
    assert pairs(1, 5, 16) != pairs(0, 5, 16)
    assert pairs(0, 0, 8) == [[0, 2], [1, 6], [3, 4], [5, 7]]  # pinned: ranks of two versions must draw alike
    assert pairs(3, 1000, 5) == [[0, 3], [1, 4]]
    for step in range(10):
        w = Matching().matrix(9, step)
        assert int((w.diag() == 1).sum()) == 1
        assert int((w.diag() == 0.5).sum()) == 8


def test_erdos_renyi_has_about_p_of_the_edges() -> None:
    n = 40
    counts = [int((ErdosRenyi(p=0.3, seed=seed).matrix(n).triu(1) > 0).sum()) for seed in range(20)]
    assert sum(counts) / 20 / (n * (n - 1) / 2) == pytest.approx(0.3, abs=0.015)
    assert len(set(counts)) > 5
    assert torch.equal(ErdosRenyi(p=1).matrix(5), metropolis([(i, j) for i in range(5) for j in range(i)], 5))


def test_erdos_renyi_draws_again_until_connected() -> None:
    sparse = [ErdosRenyi(p=0.25, seed=seed) for seed in range(30)]  # 12 ranks: half the draws are in parts
    for topology in sparse:
        check_topology(topology, 12)


edge_lists = st.integers(2, 12).flatmap(
    lambda n: st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20).map(
        lambda extra: [(i, i + 1) for i in range(n - 1)] + [(i, j) for i, j in extra if i != j]
    )
)


@given(edge_lists)
def test_metropolis_weights_of_any_edge_list(edges: list[tuple[int, int]]) -> None:
    topology = from_edges(edges)
    backwards = from_edges([(j, i) for i, j in reversed(edges)])
    assert topology == backwards
    assert topology.id == backwards.id
    n = topology.size
    assert n == 1 + max(map(max, edges))
    w, pairs = topology.matrix(n), {frozenset(edge) for edge in edges}
    degree = [sum(i in pair for pair in pairs) for i in range(n)]
    for i in range(n):
        for j in range(n):
            joined = frozenset((i, j)) in pairs
            if i != j:
                assert w[i, j] == (1 / (1 + max(degree[i], degree[j])) if joined else 0)
        assert float(w[i].sum()) == pytest.approx(1, abs=1e-12)
        assert w[i, i] > 0


@given(edge_lists)
def test_colours_of_any_graph_are_proper(edges: list[tuple[int, int]]) -> None:
    topology = from_edges(edges)
    n = 1 + max(map(max, edges))
    colours = colouring(topology, n)
    assert all(colours[i] != colours[j] for i, j in edges)
    assert set(colours) == set(range(max(colours) + 1))
    assert (max(colours) == 1) == networkx.is_bipartite(networkx.Graph(edges))
    most = max(sum(i in edge for edge in {frozenset(e) for e in edges}) for i in range(n))
    assert max(colours) <= most


@pytest.mark.parametrize(
    ("topology", "n", "count"),
    [
        (Ring(), 8, 2),
        (Ring(), 9, 3),
        (Torus(), 16, 2),
        (Hypercube(), 16, 2),
        (Star(), 7, 2),
        (Complete(), 5, 5),
        (Ring(), 1, 1),
        (Weights(W3), 3, 3),
        (Edges("2-0 0-3 3-4 4-1 1-5"), 6, 2),  # greedy alone takes three
    ],
    ids=lambda v: v.name if isinstance(v, Topology) else str(v),
)
def test_number_of_colours(topology: Topology, n: int, count: int) -> None:
    colours = colouring(topology, n)
    assert len(set(colours)) == count
    assert colours[0] == 0
    for i in range(n):
        assert all(colours[i] != colours[j] for j in topology.around(i, n).peers)


def test_networkx_graphs() -> None:
    petersen = networkx.petersen_graph()
    w = from_networkx(petersen).matrix(10)
    assert torch.equal(
        w > 0, torch.from_numpy(networkx.to_numpy_array(petersen) > 0) | torch.eye(10, dtype=torch.bool)
    )
    assert from_networkx(networkx.cycle_graph(6)) == from_edges([(i, (i + 1) % 6) for i in range(6)])
    assert torch.allclose(from_networkx(networkx.cycle_graph(6)).matrix(6), Ring().matrix(6))
    double = networkx.MultiGraph([(0, 1), (0, 1), (1, 2)])
    assert from_networkx(double) == Edges("0-1 1-2")


class TwoRanks:
    """A graph that is in no library."""

    edges = ((0, 1),)

    def number_of_nodes(self) -> int:
        return 2


def test_anything_with_edges_and_a_number_of_nodes() -> None:
    assert from_networkx(TwoRanks()) == Edges("0-1")


def test_weights_keep_every_bit() -> None:
    w = Ring().matrix(7)
    assert torch.equal(Weights(w.tolist()).matrix(7), w)
    assert Weights(W3) == Weights([list(row) for row in W3]) == Weights("0.5 .25 .25; .25 .5 .25; .25 .25 .5")
