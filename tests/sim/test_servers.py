"""Rules of a parameter server on the clock: what each promises, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import pytest
import torch
from books import make_book
from nets import Point
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

import thinwire as tw
from thinwire import methods
from thinwire.exchange import AllReduce, Server
from thinwire.server import Asgd, Backup, DcAsgd, Push, R2sp, Rule, Ssp
from thinwire.server.steppers import Like
from thinwire.sim import Constant, Network, Problem, Simulation, simulate

D, WORKERS = 5, 4
TARGETS = torch.randn(8, D, generator=torch.Generator().manual_seed(0))
FAST = Network("100gbit", "0ms")


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    return (model.x - TARGETS[rank]).square().sum() / 2


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.1)


def run(
    method: tw.Method,
    workers: int = WORKERS,
    steps: int = 20,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = sgd,
    network: Network = FAST,
    **more: object,
) -> Simulation:
    problem = Problem(partial(Point, D), loss, optimizer, seconds=0.1)
    return simulate(method, problem, workers, steps=steps, network=network, min_size=0, **more)  # type: ignore[arg-type]


def server(rule: Rule, staleness: int | None = None) -> tw.Method:
    return tw.Method(Server(rule=rule, shards=1), tw.Sync(staleness=staleness))


def model(done: Simulation, rank: int = 0) -> Tensor:
    return torch.cat([p.detach() for p in done.models[rank].parameters()])


RULES = [Asgd(), Asgd(aware=True), DcAsgd(), DcAsgd(2.0, 0.95), Backup(0), R2sp(profile=0), R2sp(profile=3)]


@pytest.mark.parametrize(
    "optimizer",
    [
        sgd,
        lambda p: SGD(p, lr=0.1, momentum=0.9),
        lambda p: Adam(p, lr=0.1),
        lambda p: AdamW(p, lr=0.1, amsgrad=True),
    ],
)
@pytest.mark.parametrize("rule", [*RULES, Ssp(), Ssp("snapshot")], ids=lambda rule: rule.id)
def test_one_worker_is_sequential(rule: Rule, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
    alone = Point(D)
    steps = optimizer(alone.parameters())
    for step in range(10):
        steps.zero_grad()
        loss(alone, 0, step).backward()
        steps.step()
    done = run(server(rule, 0 if rule.bounded else None), 1, 10, optimizer)
    assert torch.equal(model(done), alone.x.detach())


def test_a_server_takes_no_closures() -> None:
    with pytest.raises(ValueError, match="LBFGS computes gradients again in its step"):
        Like(LBFGS([nn.Parameter(torch.zeros(D))])).optimizer([[nn.Parameter(torch.zeros(D))]])


def test_what_comes_is_used_or_dropped() -> None:
    slow = Constant({3: 15.0})
    done = run(server(Backup(1)), steps=60, stragglers=slow)
    figures = done.stats[0]
    assert figures["pushes"] == WORKERS * 60 == figures["used"] + figures["dropped"]
    assert figures["used"] - 3 * 60 == figures["updates"] - 60  # the last one alone when the others have ended
    assert figures["staleness_max"] == 0
    assert figures["dropped"] > 0


def test_the_slowest_is_left_out_while_the_others_train() -> None:
    """Three workers take 60 steps while the fourth takes 4; until then all that it sends comes too late."""
    done = run(server(Backup(1)), steps=60, stragglers=Constant({3: 15.0}))
    ends = {one.rank: one.seconds for one in done.moments}
    assert max(ends[rank] for rank in range(3)) == pytest.approx(6.0, rel=0.01)


def test_no_backup_is_bulk_synchronous() -> None:
    """The mean in the order of ranks, bit for bit."""
    x = torch.zeros(D)
    for _ in range(20):
        g = [x - TARGETS[rank] for rank in range(WORKERS)]
        total = g[0].clone()
        for one in g[1:]:
            total += one
        x = x.add(total / WORKERS, alpha=-0.1)
    assert torch.equal(model(run(server(Backup(0)))), x)
    snapshot = run(server(Ssp("snapshot"), 0), stragglers=Constant({2: 3.0}))
    assert torch.equal(model(snapshot), x)
    torch.testing.assert_close(model(run(tw.Method(AllReduce()))), x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reads", ["latest", "snapshot"])
@pytest.mark.parametrize("s", [0, 2, 5])
def test_nobody_is_further_ahead_than_s(s: int, reads: str) -> None:
    """The lead over the slowest worker, when a step begins: s at most, and s where one worker is slow."""
    done = run(server(Ssp(reads), s), steps=30, stragglers=Constant({1: 10.0}))  # type: ignore[arg-type]
    slow = [one.seconds for one in done.moments if one.rank == 1]
    leads = [one.step - sum(t <= one.seconds - 0.1 for t in slow) for one in done.moments if one.rank != 1]
    assert max(leads) == s  # the steps that a worker had ended when it began one, less those of the slow one
    assert done.stats[1]["waited_s"] == pytest.approx(0.0, abs=1e-3)  # the slowest never waits


def test_steps_that_nobody_completes_are_in_the_last_snapshot() -> None:
    """A worker takes three steps and the other one; to save changes nothing, and when both have ended all is used."""
    book = make_book(Ssp("snapshot"), torch.zeros(1), 2, 0.1, 4)
    for rank, clock in ((0, 0), (0, 1), (1, 0), (0, 2)):
        book.arrived(Push(rank, 0, clock, 0.0, 0.0, (0.1,), torch.ones(1), None))
    assert book.x == pytest.approx(-0.1)  # the mean of both first steps
    book.pause(0)
    book.pause(1)
    assert book.x == pytest.approx(-0.1)
    book.go_on()
    book.leave(1)
    book.leave(0)
    assert book.x == pytest.approx(-0.3)
    assert book.used == book.pushes == 4


def test_a_pending_step_has_the_weight_that_it_will_have() -> None:
    """Three workers, gradients of 3: each moves the model by lr = 0.1 in the mean, also where its sender reads it.

    One that has left is not waited for, and no mean has a share of it; nor has it one of what is not finite.
    """
    book = make_book(Ssp("snapshot"), torch.zeros(1), 3, 0.1, 4)

    def push(rank: int, clock: int, *, finite: bool = True) -> float:
        book.arrived(Push(rank, 0, clock, 0.0, 0.0, (0.1,), torch.full((1,), 3.0), None), finite=finite)
        data = book.answers.pop(rank).data
        assert data is not None
        return float(data.view(torch.float32))

    assert [push(0, clock) for clock in range(3)] == pytest.approx([-0.1, -0.2, -0.3])
    assert push(1, 0) == pytest.approx(-0.1)
    assert float(push(2, 0)) == float(book.x) == pytest.approx(-0.3)  # the first step is complete
    assert push(0, 3) == pytest.approx(-0.3 - 3 * 0.1)  # and three more of its own
    book.leave(2)
    assert push(0, 4) == pytest.approx(-0.3 - 4 * 0.15)
    assert push(1, 1, finite=False) == float(book.x) == pytest.approx(-0.6)  # a step that is one worker's alone


def test_waits_fall_with_s() -> None:
    slow = Constant({1: 3.0})
    waits = [sum(one["waited_s"] for one in run(server(Ssp(), s), stragglers=slow).stats) for s in (0, 2, 8)]
    assert waits[0] > waits[1] > waits[2]


def test_a_cache_spares_pulls_and_not_updates() -> None:
    plain, cached = (run(server(Ssp(cache=cache), 3), steps=40) for cache in (False, True))
    assert plain.stats[0]["used"] == cached.stats[0]["used"] == 4 * 40
    answers = 3 * 40
    last = 3 * (16 + 4 * D)  # what each is sent in the end
    assert plain.stats[0]["bytes_sent"] - last == answers * (16 + 4 * D)
    pulls = (cached.stats[0]["bytes_sent"] - last - 16 * answers) / (4 * D)
    assert answers / 4 <= pulls <= answers / 3  # as few as one per s + 1 steps
    torch.testing.assert_close(model(cached), TARGETS[:4].mean(0), rtol=0.1, atol=0.1)


def test_turns_make_every_gradient_equally_stale() -> None:
    done = run(server(R2sp(profile=0)), steps=30, network=Network("1gbit", "1ms"))
    figures = done.stats[0]
    first = sum(range(WORKERS))  # the first round misses 0, 1, 2 and 3 updates
    assert figures["staleness_3"] == WORKERS * 30 - (WORKERS - 1)
    assert figures["staleness_mean"] * figures["used"] == pytest.approx(first + 3 * (WORKERS * 29))


def test_turns_are_in_order_and_apart() -> None:
    done = run(server(R2sp(profile=2)), steps=20)
    later = [one for one in done.moments if one.step >= 4]
    assert [one.rank for one in later] == [rank for _ in range(16) for rank in range(WORKERS)]
    gaps = [b.seconds - a.seconds for a, b in pairwise(later)]
    assert min(gaps) >= 0.1 / (1.2 * WORKERS) - 1e-6


def test_without_compensation_it_is_asgd() -> None:
    runs = [run(server(rule), stragglers=Constant({1: 2.5})) for rule in (Asgd(), DcAsgd(0.0))]
    assert torch.equal(model(runs[0]), model(runs[1]))


def test_staleness_is_a_histogram_of_all_pushes() -> None:
    done = run(server(Asgd()), stragglers=Constant({1: 2.5, 2: 1.3}))
    figures = done.stats[0]
    assert sum(count for name, count in figures.items() if name[10:].isdigit()) == figures["pushes"] == 80
    assert figures["staleness_mean"] == pytest.approx(WORKERS - 1, rel=0.25)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("side", [0.97, 1.03])
def test_the_edge_of_stability_of_a_fixed_delay(workers: int, side: float) -> None:
    """In turn every gradient is tau = n - 1 updates old: stable for eta L < 2 sin(pi / (2 (2 tau + 1)))."""
    tau = workers - 1
    eta = side * 2 * math.sin(math.pi / (2 * (2 * tau + 1)))
    problem = Problem(
        _one, lambda m, rank, step: next(m.parameters()).square().sum() / 2, lambda p: SGD(p, lr=eta), seconds=0.1
    )
    done = simulate(server(R2sp(profile=0)), problem, workers, steps=260, network=FAST, min_size=0)
    size = abs(float(model(done)))
    assert size < 0.1 if side < 1 else size > 10


def _one() -> nn.Module:
    made = nn.Module()
    made.x = nn.Parameter(torch.ones(1))
    return made


@pytest.mark.parametrize(
    ("name", "up"),
    [
        ("asgd", "identity"),
        ("asgd", "qsgd:bits=8"),
        ("asgd", "scaled-sign"),
        ("softsync", "qsgd:bits=8"),
        ("dc-asgd", "scaled-sign"),
        ("backup-workers:spares=0", "scaled-sign"),
        ("ssp", "qsgd:bits=8"),
        ("r2sp", "scaled-sign"),
    ],
)
def test_every_method_finds_the_mean(name: str, up: str) -> None:
    more = f"compressor=({up}),feedback={str(up == 'scaled-sign').lower()}"
    made = tw.method(f"{name},{more}" if ":" in name else f"{name}:{more}")
    done = run(made, steps=75, optimizer=lambda p: SGD(p, lr=0.04))
    torch.testing.assert_close(model(done), TARGETS[:4].mean(0), rtol=0.1, atol=0.15)
    assert made == tw.method(made.id)
    assert methods.asgd().exchange == Server(rule=Asgd())


def test_bytes_are_a_gradient_up_and_a_model_down() -> None:
    done = run(server(Asgd()), steps=10)
    up = 32 + 4 * D + 48  # payload, and what is said about it
    assert done.stats[1]["bytes_sent"] == 10 * up + 1  # and a last word
    assert done.stats[0]["bytes_sent"] == 3 * (10 + 1) * (4 * D + 16)  # and a last model
