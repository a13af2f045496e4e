"""SPY on the clock: L1 and ridge least squares, four workers of different speed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from books import answered, make_book
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.core.types import Key
from thinwire.exchange import Server
from thinwire.server import Book, Push, Rule, Spy, Work
from thinwire.server.prox import soft
from thinwire.sim import Constant, Network, Problem, Simulation, simulate

N, D, L1, RIDGE = 4, 20, 0.2, 0.1
SHARES = (0.4, 0.3, 0.2, 0.1)
SPEEDS = Constant({1: 1.3, 2: 1.9, 3: 3.1})
G = torch.Generator().manual_seed(3)
ROWS = torch.randn(N, 30, D, generator=G, dtype=torch.float64)
TRUTH = torch.zeros(D, dtype=torch.float64)
TRUTH[[2, 7, 11, 16]] = torch.tensor([2.0, -1.5, 1.0, -3.0], dtype=torch.float64)
SAID = ROWS @ TRUTH + 0.01 * torch.randn(N, 30, generator=G, dtype=torch.float64)
CURVES = ROWS.mT @ ROWS / 30 + RIDGE * torch.eye(D, dtype=torch.float64)
PULLS = (ROWS.mT @ SAID[..., None])[..., 0] / 30
EDGES = torch.linalg.eigvalsh(CURVES)
GAMMA = float(2 / (EDGES.min() + EDGES.max()))


def optimum(shares: tuple[float, ...]) -> Tensor:
    """By proximal gradient descent on the whole."""
    weights = torch.tensor(shares, dtype=torch.float64)
    a, b = torch.einsum("i,ijk->jk", weights, CURVES), weights @ PULLS
    x = torch.zeros(D, dtype=torch.float64)
    for _ in range(1000):
        x = soft(x - GAMMA * (a @ x - b), GAMMA * L1)
    return x


def exact(rule: Spy, updates: int) -> tuple[list[float], list[int], Book]:
    """In float64 without a network: distances to the optimum, how many values each push held, and the book."""
    x0, best = torch.zeros(D, dtype=torch.float64), optimum(rule.shares)
    book = make_book(rule, x0, N, 0.1, None)
    states, x = [rule.worker(x0, N) for _ in range(N)], [x0] * N
    due = [1.0, 1.3, 1.9, 3.1]
    errors, sizes = [], []
    for _ in range(updates):
        i = due.index(min(due))
        due[i] += (1.0, 1.3, 1.9, 3.1)[i]
        work = Work(
            x[i], CURVES[i] @ x[i] - PULLS[i], torch.tensor(GAMMA, dtype=torch.float64), Key(7, book.clocks[i], i), {}
        )
        keyed = rule.push(work, states[i])
        sizes.append(len(keyed.keys))
        rule.sent(keyed.dense(D), states[i])
        book.arrived(Push(i, 0, book.clocks[i], 0.0, 0.0, (GAMMA,), keyed.dense(D), keyed.keys))
        x[i] = rule.pull(x[i], answered(book.answers.pop(i)), states[i])
        mean = sum(share * state["mine"] for share, state in zip(rule.shares, states, strict=True))
        assert (book.state["xbar"] - mean).abs().max() < 1e-13
        errors.append(float((book.x - best).abs().max()))
    return errors, sizes, book


def test_the_error_falls_at_a_linear_rate_that_p_sets() -> None:
    """Measured: 5e-14 after 250 updates with p = 1; 5e-9 after 500 and 4e-15 after 1000 with p = 0.3; 2e-3 after 500
    and 6e-12 after 2000 with p = 0.1."""
    at_250 = []
    for p, updates, bound in ((1.0, 250, 1e-12), (0.3, 500, 1e-7), (0.1, 2000, 1e-10)):
        errors, sizes, book = exact(Spy(p, L1, SHARES), updates)
        assert errors[-1] < bound
        assert torch.equal(book.x != 0, TRUTH != 0)  # the support of the optimum
        assert sum(sizes) / len(sizes) == pytest.approx(p * D, rel=0.1)
        at_250.append(errors[249])
    assert at_250[0] < at_250[1] < at_250[2]


def test_xbar_is_the_mean_of_the_workers_always(long: bool) -> None:
    """In float32, with noisy gradients, which never settle; after 10^5 updates with --long."""
    rule, noise = Spy(0.5, L1, SHARES), torch.Generator().manual_seed(0)
    x0 = torch.ones(D)
    book = make_book(rule, x0, N, 0.1, None)
    states, x, gamma = [rule.worker(x0, N) for _ in range(N)], [x0] * N, torch.tensor(GAMMA)
    for update in range(100_000 if long else 300):
        i = update % N
        g = CURVES[i].float() @ x[i] - PULLS[i].float() + 0.1 * torch.randn(D, generator=noise)
        keyed = rule.push(Work(x[i], g, gamma, Key(7, book.clocks[i], i), {}), states[i])
        rule.sent(keyed.dense(D), states[i])
        book.arrived(Push(i, 0, book.clocks[i], 0.0, 0.0, (GAMMA,), keyed.dense(D), keyed.keys))
        data = book.answers.pop(i).data
        assert data is not None
        x[i] = data.view(torch.float32)
    mean = sum(share * state["mine"] for share, state in zip(SHARES, states, strict=True))
    assert (book.state["xbar"] - mean).abs().max() < 1e-11


def test_a_state_in_float32_goes_on() -> None:
    """As thinwire 0.1 saved xbar."""
    book, keys = make_book(Spy(1.0), torch.ones(2), 2, 0.1, None), torch.arange(2)
    for clock in range(2):
        book.arrived(Push(0, clock, clock, 0.0, 0.0, (0.1,), torch.tensor([2.0, 0.0]), keys))
        if clock == 0:
            saved = book.save()
            saved["rule"] = ["dict", [["value", "xbar"], ["tensor", torch.tensor([2.0, 1.0])]]]
            book.load(saved)
    assert book.state["xbar"].dtype == torch.float64
    assert book.x.tolist() == [3.0, 1.0]


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=GAMMA)


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    value: Tensor = model.x @ CURVES[rank].float() @ model.x / 2 - PULLS[rank].float() @ model.x
    return value


def run(rule: Rule, steps: int, **more: Any) -> Simulation:
    problem = Problem(partial(Point, D), loss, sgd, seconds=0.1)
    method = tw.Method(Server(more.pop("channel", Server().channel), rule), tw.Sync(staleness=None))
    fast = Network("100gbit", "0ms")
    return simulate(method, problem, N, steps=steps, min_size=0, network=fast, stragglers=SPEEDS, **more)


def model(done: Simulation) -> Tensor:
    return torch.cat([p.detach() for p in done.models[0].parameters()]).double()


def test_on_the_clock_it_finds_the_support_and_both_ways_are_sparse() -> None:
    steps = 80
    done = run(Spy(0.3, L1, SHARES), steps)
    best = optimum(SHARES)
    assert (model(done) - best).abs().max() < 1e-3
    assert torch.equal(model(done) != 0, best != 0)
    values = (
        done.stats[1]["bytes_sent"] / steps - 48 - 16 - 32
    ) / 4  # less words about a push, its keys, its payload
    assert values == pytest.approx(0.3 * D, rel=0.1)
    down = done.stats[0]["bytes_sent"] / (3 * steps) - 16
    assert down < 0.75 * 4 * D  # 4 of 20 elements change, and their keys need not be named again


def test_all_elements_are_asynchronous_proximal_gradient_descent() -> None:
    """Step by step as it is printed, for one worker: x = prox(x - gamma g)."""
    alone = simulate(tw.methods.spy(p=1.0, l1=L1), Problem(partial(Point, D), loss, sgd), 1, steps=30, min_size=0)
    x = torch.zeros(D)
    for _ in range(30):
        x = soft(x - GAMMA * (CURVES[0].float() @ x - PULLS[0].float()), GAMMA * L1)
    torch.testing.assert_close(model(alone).float(), x, rtol=1e-4, atol=1e-5)


def test_a_compressor_may_lose_some_of_it() -> None:
    done = run(Spy(0.3, L1, SHARES), 40, channel=tw.methods.asgd("qsgd:bits=8").exchange.hops[""])
    assert (model(done) - optimum(SHARES)).abs().max() < 0.05


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"write p=0\.1"):
        Spy(p=0)
    with pytest.raises(ValueError, match="in all 1"):
        Spy(shares=(0.5, 0.4))
    with pytest.raises(ValueError, match="write one each"):
        Spy(shares=(0.5, 0.5)).check(3)
    with pytest.raises(ValueError, match="must not add what an earlier one lost"):
        Server(tw.methods.asgd("topk:ratio=0.1", feedback=True).exchange.hops[""], Spy())
