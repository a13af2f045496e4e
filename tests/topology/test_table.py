"""The table of spectral gaps in the specification, closed forms, exact means, and what a gap promises."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar, final

import pytest
import torch
from torch import Tensor

from thinwire.topology import (
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
    gap,
    largest_pull,
    matrices,
    spectral_gap,
)

COLUMNS: tuple[Topology, ...] = (Ring(), Torus(), Exponential(), Hypercube(), Complete())
TABLE = {
    4: (0.66667, 0.40000, 0.66667, 0.66667, 1),
    8: (0.19526, 0.40000, 0.50000, 0.50000, 1),
    16: (0.05075, 0.40000, 0.40000, 0.40000, 1),
    32: (0.01281, 0.11716, 0.33333, 0.33333, 1),
    64: (0.00321, 0.11716, 0.28571, 0.28571, 1),
    256: (0.00020, 0.03045, 0.22222, 0.22222, 1),
}
CELLS = [(t, n, row[k]) for n, row in TABLE.items() for k, t in enumerate(COLUMNS)]
SOME: list[Topology] = [
    *COLUMNS,
    OnePeer(),
    Star(),
    ErdosRenyi(p=0.6),
    Edges("0-1 1-2 2-3 3-4 4-5 5-6 6-7 0-4 2-6"),
]


@pytest.mark.parametrize(
    ("topology", "n", "expected"), CELLS, ids=lambda v: v.id if isinstance(v, Topology) else str(v)
)
def test_the_table_of_the_sheet(topology: Topology, n: int, expected: float) -> None:
    of_w = spectral_gap(topology.matrix(n))
    assert of_w == pytest.approx(expected, abs=1e-5)
    if n <= 64:
        assert gap(topology, n) == pytest.approx(of_w, abs=1e-12)


def test_shapes_of_the_torus() -> None:
    assert [Torus().shape(n) for n in (4, 8, 16, 32, 64, 256)] == [(2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (16, 16)]
    assert Torus().shape(7) == (1, 7)
    assert Torus(rows=8).shape(16) == (8, 2)


@pytest.mark.parametrize("n", [3, 5, 8, 13, 64])
def test_ring_in_closed_form(n: int) -> None:
    known = [1 / 3 + 2 / 3 * math.cos(2 * math.pi * k / n) for k in range(n)]
    assert torch.allclose(torch.linalg.eigvalsh(Ring().matrix(n)), torch.tensor(sorted(known)).double(), atol=1e-12)
    assert gap(Ring(), n) == pytest.approx(1 - max(abs(v) for v in known[1:]), abs=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 4), (1, 7), (3, 5), (8, 8)])
def test_torus_in_closed_form(rows: int, columns: int) -> None:
    def wave(k: int, n: int) -> float:
        return 2 / 5 * math.cos(2 * math.pi * k / n)

    known = sorted(1 / 5 + wave(k, rows) + wave(j, columns) for k in range(rows) for j in range(columns))
    w = Torus(rows=rows).matrix(rows * columns)
    assert torch.allclose(torch.linalg.eigvalsh(w), torch.tensor(known).double(), atol=1e-12)


@pytest.mark.parametrize("n", [2, 4, 6, 10, 12, 24, 48, 64, 100])
def test_exponential_in_closed_form(n: int) -> None:
    assert gap(Exponential(), n) == pytest.approx(2 / (1 + math.ceil(math.log2(n))), abs=1e-12)


def test_exponential_of_an_odd_number_is_better() -> None:
    assert gap(Exponential(), 9) == pytest.approx(0.558, abs=5e-4)


@pytest.mark.parametrize("n", [3, 8, 17])
def test_star_in_closed_form(n: int) -> None:
    assert gap(Star(), n) == pytest.approx(1 / n, abs=1e-12)


def product(topology: Topology, n: int) -> Tensor:
    total = torch.eye(n, dtype=torch.float64)
    for w in matrices(topology, n):
        total = w @ total
    return total


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_one_peer_makes_the_exact_mean(n: int) -> None:
    assert OnePeer().period(n) == math.log2(n)
    assert torch.equal(product(OnePeer(), n), Complete().matrix(n))
    assert gap(OnePeer(), n) == 1


def test_one_peer_of_six_does_not() -> None:
    deviation = (product(OnePeer(), 6) - 1 / 6).abs().max()
    assert float(deviation) == pytest.approx(0.083, abs=5e-4)
    rho = torch.linalg.matrix_norm(product(OnePeer(), 6) - 1 / 6, 2)
    assert gap(OnePeer(), 6) == pytest.approx(1 - float(rho) ** (1 / 3), abs=1e-12)
    assert 0 < gap(OnePeer(), 6) < 1


def matchings(ranks: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    """All perfect matchings of an even number of ranks, or all that leave one alone of an odd number."""
    if len(ranks) < 2:
        return [[]]
    if len(ranks) % 2:
        return [m for alone in ranks for m in matchings(tuple(r for r in ranks if r != alone))]
    first, rest = ranks[0], ranks[1:]
    return [[(first, j), *m] for j in rest for m in matchings(tuple(r for r in rest if r != j))]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8])
def test_the_eigenvalue_of_matchings_is_that_of_all_of_them(n: int) -> None:
    every = matchings(tuple(range(n)))
    mean = torch.zeros(n, n, dtype=torch.float64)
    for pairs in every:
        w = torch.eye(n, dtype=torch.float64)
        for i, j in pairs:
            w[i, i] = w[j, j] = w[i, j] = w[j, i] = 0.5
        mean += w.T @ w / len(every)
    second = float(torch.linalg.eigvalsh(mean)[-2])
    assert Matching().mean_square(n) == pytest.approx(second, abs=1e-12)
    assert gap(Matching(), n) == pytest.approx(1 - math.sqrt(max(second, 0)), abs=1e-7)


def test_the_eigenvalue_of_matchings_at_eight() -> None:
    assert Matching().mean_square(8) == pytest.approx(0.4286, abs=5e-5)


@pytest.mark.parametrize("n", [5, 6])
def test_all_matchings_are_drawn_alike(n: int) -> None:
    steps = 1500
    seen: dict[tuple[tuple[int, int], ...], int] = {}
    for step in range(steps):
        pairs = tuple((i, j) for i, j in Matching(seed=1).matrix(n, step).nonzero().tolist() if i < j)
        seen[pairs] = seen.get(pairs, 0) + 1
    every = {tuple(sorted(m)) for m in matchings(tuple(range(n)))}
    assert set(seen) == every
    expected = steps / len(every)  # 100, with a deviation of 10
    assert all(abs(count - expected) < 5 * math.sqrt(expected) for count in seen.values())


@final
@dataclass(frozen=True)
class SomePair(Topology):
    """One random pair per step, with no closed form declared."""

    name: ClassVar[str] = "some-pair"

    def matrix(self, n: int, step: int = 0) -> Tensor:
        i, j = list(itertools.combinations(range(n), 2))[
            int(torch.randint(n * (n - 1) // 2, (), generator=seeded(step)))
        ]
        w = torch.eye(n, dtype=torch.float64)
        w[i, i] = w[j, j] = w[i, j] = w[j, i] = torch.tensor(0.5, dtype=torch.float64)
        return w

    def period(self, n: int) -> int | None:
        return None


def seeded(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(step)


def test_a_random_graph_without_a_closed_form_is_averaged() -> None:
    n = 6
    known = 1 - 1 / (n - 1)  # of one pair out of n(n-1)/2: (1 - 1/(n-1)) on everything but the mean
    assert gap(SomePair(), n) == pytest.approx(1 - math.sqrt(known), abs=0.02)  # noise makes it a little lower


@pytest.mark.parametrize("topology", SOME, ids=lambda t: t.id)
def test_disagreement_shrinks_by_rho(topology: Topology) -> None:
    n = 8
    x = torch.randn(n, 50, generator=seeded(3), dtype=torch.float64)
    mean = x.mean(0)
    rho = 1 - gap(topology, n)
    period = topology.period(n) or 1
    for turn in range(3):
        before = torch.linalg.matrix_norm(x - mean)
        for step in range(period):
            x = topology.matrix(n, turn * period + step) @ x
        assert torch.allclose(x.mean(0), mean, atol=1e-12)
        assert torch.linalg.matrix_norm(x - mean) <= rho**period * before + 1e-12


def test_push_sum_on_a_graph_that_is_not_regular() -> None:
    n = 6
    w = torch.eye(n, dtype=torch.float64)
    for sender, receivers in enumerate([(1, 2), (2,), (3, 0), (4, 5, 0), (5,), (0,)]):
        for i in (sender, *receivers):
            w[i, sender] = 1 / (1 + len(receivers))
    graph = Weights(w.tolist(), directed=True)
    rho = 1 - gap(graph, n)
    assert 0.3 < rho < 1
    x, ones = torch.randn(n, generator=seeded(1), dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    mean, total, errors = x.mean(), x.sum(), []
    for step in range(60):
        x, ones = graph.matrix(n, step) @ x, graph.matrix(n, step) @ ones
        errors.append(float((x / ones - mean).abs().max()))
    assert float(ones.sum()) == pytest.approx(n, abs=1e-12)
    assert float(x.sum()) == pytest.approx(float(total), abs=1e-12)
    assert errors[-1] < 1e-6 < float((x - mean).abs().max())  # without dividing it is wrong
    assert (errors[40] / errors[10]) ** (1 / 30) == pytest.approx(rho, rel=0.1)


@pytest.mark.parametrize(
    ("topology", "n", "expected"),
    [
        (Ring(), 8, 4 / 3),
        (Torus(), 16, 8 / 5),
        (Complete(), 5, 1),
        (Hypercube(), 16, 8 / 5),
        (Star(), 9, 1),
        (OnePeer(), 8, 1),
        (Matching(), 7, 1),
        (Weights(((0, 1), (1, 0))), 2, 2),
    ],
    ids=lambda v: v.name if isinstance(v, Topology) else "",
)
def test_largest_pull(topology: Topology, n: int, expected: float) -> None:
    assert largest_pull(topology, n) == pytest.approx(expected, abs=1e-9)
