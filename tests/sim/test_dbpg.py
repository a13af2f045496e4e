"""Delayed block proximal gradient on the clock: a sparse logistic regression with an L1 regulariser."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from books import make_book
from logistic import L1, logistic, optimum
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD

import thinwire as tw
from thinwire.core.config import from_json
from thinwire.core.errors import PayloadError
from thinwire.server import Dbpg, Push
from thinwire.server.changes import Changes
from thinwire.server.keys import HEAD, LISTS, Keyed, KeyLists
from thinwire.server.prox import soft
from thinwire.sim import Constant, Network, Problem, Simulation, simulate

N, D = 4, 30
PROBLEM, BEST = logistic(N, D), optimum(N, D)
SPEEDS = Constant({1: 1.5, 3: 2.5})


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    model.x.diag_h = PROBLEM.diagonal(model.x.detach(), rank)  # type: ignore[attr-defined]
    return PROBLEM.loss(model.x, rank)


@lru_cache
def run(steps: int = 70, eta: float = PROBLEM.eta, start: float = 0.0, **settings: Any) -> Simulation:
    def point() -> Point:
        made = Point(D)
        nn.init.constant_(made.x, start)
        return made

    settings = {"l1": L1, "blocks": 2, "tau": 4, **settings}
    problem = Problem(point, loss, partial(SGD, lr=eta), seconds=0.1)
    fast = Network("100gbit", "0ms")
    method = tw.methods.dbpg(**settings)
    return simulate(method, problem, N, steps=steps, min_size=0, network=fast, stragglers=SPEEDS)


def model(done: Simulation) -> Tensor:
    return torch.cat([p.detach() for p in done.models[0].parameters()])


def excess(done: Simulation) -> float:
    return PROBLEM.objective(model(done)) - PROBLEM.objective(BEST)


@pytest.mark.parametrize("tau", [0, 4])
def test_the_objective_is_that_of_proximal_gradient_descent(tau: int) -> None:
    done = run(tau=tau)
    assert abs(excess(done)) < 1e-4
    assert torch.equal(model(done) != 0, BEST != 0)
    assert done.stats[0]["in_flight_max"] == tau + 1  # reached, and never exceeded
    assert done.stats[0]["staleness_max"] <= tau
    assert done.stats[0]["updates"] == 70
    assert done.stats[0]["keys"] == 70 * N * D / 2


def test_without_delay_and_filters_it_is_proximal_gradient_descent() -> None:
    """The whole gradient, tau = 0: the steps that are printed; how keys and changes travel does not show."""
    x = torch.zeros(D, dtype=torch.float64)
    for _ in range(15):
        x = soft(x - PROBLEM.eta * PROBLEM.gradient(x), PROBLEM.eta * L1)
    plain = model(run(15, blocks=1, tau=0))
    torch.testing.assert_close(plain.double(), x, rtol=1e-4, atol=1e-5)
    assert torch.equal(plain, model(run(15, blocks=1, tau=0, cache_keys=False)))


def test_curvature_is_a_step_of_newton() -> None:
    """With the diagonal of the Hessian from the training loop, a step of 0.3 needs no Lipschitz constant."""
    done = run(40, 0.3, curvature="diag_h")
    assert abs(excess(done)) < 1e-4
    with pytest.raises(ValueError, match=r"write p\.diag_k = \.\.\. for x before optimizer\.step"):
        run(1, curvature="diag_k")


def test_keys_that_stay_zero_are_not_sent_and_not_missed() -> None:
    """From a model without zeros: as zeros come, more is filtered. Lists that were sent before are not sent again."""
    sizes = {steps: run(steps, start=0.3, tau=0, kkt=0.9 * L1) for steps in (3, 40)}
    keys = {steps: done.stats[0]["keys"] for steps, done in sizes.items()}
    early, late = keys[3] / (3 * N * D / 2), (keys[40] - keys[3]) / (37 * N * D / 2)
    assert late < early - 0.1
    assert abs(excess(sizes[40])) < 1e-4
    named = run(40, start=0.3, tau=0, kkt=0.9 * L1, cache_keys=False)
    assert torch.equal(model(named), model(sizes[40]))
    for rank in (0, 1):  # down and up
        assert sizes[40].stats[rank]["bytes_sent"] < 0.85 * named.stats[rank]["bytes_sent"]


def test_the_kkt_filter_may_keep_an_element_at_zero() -> None:
    """As in docs/proximal.md: of gradients -0.4, -0.08, -0.08 and -0.07 at zero, with l1 = 0.1."""

    def apart(model: nn.Module, rank: int, step: int) -> Tensor:
        return (next(model.parameters()) - (0.4, 0.08, 0.08, 0.07)[rank]).square().sum() / 2

    problem = Problem(partial(Point, 1), apart, partial(SGD, lr=0.5))
    found = [
        simulate(tw.methods.dbpg(l1=0.1, kkt=kkt, tau=0), problem, N, steps=30, min_size=0) for kkt in (0.0, 0.09)
    ]
    assert [float(model(done)) for done in found] == pytest.approx([0.0575, 0.0], abs=1e-6)


def test_what_has_hardly_moved_is_not_sent_and_hardly_missed() -> None:
    plain, filtered = run(tau=0), run(tau=0, significant=0.2)
    assert filtered.stats[0]["bytes_sent"] < 0.95 * plain.stats[0]["bytes_sent"]
    assert abs(excess(filtered)) < 1e-4


def test_random_skips_cost_noise_and_not_bias() -> None:
    done = run(40, tau=0, skip=0.2)
    assert done.stats[0]["keys"] == pytest.approx(0.8 * 40 * N * D / 2, rel=0.05)
    assert 0 < excess(done) < 0.02


def test_an_iteration_is_complete_without_a_worker_that_is_gone() -> None:
    """Of three workers one goes and one has nothing finite: the others' means are used, and all are answered."""
    x, keys = torch.zeros(4), torch.tensor([0, 2])
    book = make_book(Dbpg(), x, 3, 1.0, 0)
    book.arrived(Push(0, 0, 0, 0.0, 0.0, (1.0,), Keyed(keys, torch.tensor([[3.0, -4.0]])).dense(4), keys))
    book.arrived(Push(1, 0, 0, 0.0, 0.0, (1.0,), x, keys[:0]), finite=False)
    assert not book.answers
    book.leave(2)
    assert set(book.answers) == {0, 1}
    assert book.x.tolist() == [-3.0, 0.0, 4.0, 0.0]
    assert (book.used, book.dropped, book.version) == (1, 1, 1)


def test_soft_threshold_on_a_line() -> None:
    """Against a search of argmin_u t |u| + 1/2 (x - u)^2."""
    u = torch.linspace(-3, 3, 6001)
    for x in (-2.0, -0.5, 0.0, 0.7, 0.71, 1.9):
        found = u[(0.7 * u.abs() + (x - u).square() / 2).argmin()]
        assert float(soft(torch.tensor(x), 0.7)) == pytest.approx(float(found), abs=1e-3)


def test_key_lists() -> None:
    up, down = KeyLists(), KeyLists()
    sizes = []
    for keys in ([1, 5, 9], [1, 5, 9], [], [2], [1, 5, 9]):
        message = up.write(torch.tensor(keys, dtype=torch.int64), 2, torch.tensor([2]))
        got, rows, rest = down.read(torch.cat((message, torch.ones(3, dtype=torch.uint8))), torch.tensor([2]))
        assert (got.tolist(), rows, rest.numel()) == (keys, 2, 3)
        sizes.append(message.numel())
    assert sizes == [32, 16, 16, 16, 16]  # listed, cached, an empty list, known, cached
    for k in range(2 * LISTS):
        down.read(up.write(torch.tensor([k, 1000]), 1, None), None)
    assert up.lists.keys() == down.lists.keys()
    assert len(up.lists) == LISTS
    with pytest.raises(PayloadError, match="never sent"):
        KeyLists().read(up.write(torch.tensor([2 * LISTS - 1, 1000]), 1, None)[: HEAD.size], None)


def test_changes_are_the_model_bit_for_bit() -> None:
    x = torch.randn(40, generator=torch.Generator().manual_seed(0))
    here, there = (Changes(40) for _ in range(2))
    sizes = []
    for change in (x, x, x.clone().index_fill_(0, torch.tensor([3, 7]), 0.0), x, -x):
        data = here.pack(change)
        assert torch.equal(there.unpack(data), change)
        sizes.append(data.numel())
    assert sizes == [160, 16, 16 + 16 + 8, 16 + 8, 160]  # whole, nothing, with keys, with a checksum of them, whole


def test_methods_and_refusals() -> None:
    made = tw.methods.dbpg(
        l1=0.01, blocks=3, curvature="diag_h", kkt=0.009, skip=0.1, significant=0.1, cache_keys=False
    )
    assert from_json(made.to_json()) == made
    assert tw.method(made.id) == made
    with pytest.raises(ValueError, match="a little less than l1"):
        Dbpg(l1=0.1, kkt=0.2)
    with pytest.raises(ValueError, match="write blocks=1"):
        Dbpg(blocks=0)
    with pytest.raises(ValueError, match="write 0 <= skip < 1"):
        Dbpg(skip=1.0)
    with pytest.raises(ValueError, match="write 0 for no filter"):
        Dbpg(significant=-1.0)
