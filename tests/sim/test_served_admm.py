"""ADMM with a server: exact subproblems in float64, and the same methods on the clock."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from books import answered, make_book
from nets import Point
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire.core.config import from_json
from thinwire.core.types import Key
from thinwire.exchange import Server
from thinwire.server import ConsensusAdmm, Push, Work
from thinwire.sim import Constant, Network, Problem, ShiftedExponential, Simulation, simulate

N, D, RHO = 5, 4, 1.0
TAU, LEAST = 5, 2
FAST = Network("100gbit", "0ms")
G = torch.Generator().manual_seed(0)
ROOT = torch.randn(N, D, D, generator=G, dtype=torch.float64) / D**0.5
A = ROOT @ ROOT.mT + 0.5 * torch.eye(D, dtype=torch.float64)
B = 3 * torch.randn(N, D, generator=G, dtype=torch.float64)
OPTIMUM = torch.linalg.solve(A.sum(0), B.sum(0))


def argmin(rule: ConsensusAdmm, i: int, state: dict[str, Tensor]) -> Tensor:
    """Of f_i + u'x + rho/2 |x - z|^2, with f_i = 1/2 x'A x - b'x: where the leaning gradient is zero."""
    x = torch.zeros(D, dtype=torch.float64)
    slope = rule.lean(x, -B[i], state)
    found: Tensor = torch.linalg.solve(A[i] + rule.rho * torch.eye(D, dtype=torch.float64), -slope)
    return found


class Rounds(NamedTuple):
    """What happened in a run without a network: z and the sum of duals after every update, and the ages seen."""

    z: list[Tensor]
    dual_sums: list[float]
    ages: list[int]


def exact(rule: ConsensusAdmm, tau: int, updates: int, noise: float = 0.0, seed: int = 0) -> Rounds:
    """Workers that report in a random order, with `noise` of the size of what they send."""
    order, some = random.Random(seed), torch.Generator().manual_seed(seed)
    x0 = torch.ones(D, dtype=torch.float64)
    book = make_book(rule, x0, N, 0.1, tau - 1)
    states = [rule.worker(x0, N) for _ in range(N)]
    tags, busy, ran, x = [0] * N, set(range(N)), Rounds([], [], []), [x0] * N
    while book.version < updates:
        i = order.choice(sorted(busy))
        busy.remove(i)
        x[i] = argmin(rule, i, states[i])
        v = rule.push(Work(x[i], B[i], torch.tensor(0.1), Key(), {}), states[i])
        v = v + noise * v.norm() * torch.randn(D, generator=some, dtype=torch.float64)
        rule.sent(v, states[i])
        book.arrived(Push(i, tags[i], book.clocks[i], 0.0, 0.0, (0.1,), v))
        if book.answers:
            for rank, reply in book.answers.items():
                version, z = reply.version, answered(reply)
                assert torch.equal(rule.pull(x[rank], z, states[rank]), x[rank])
                tags[rank] = version
                busy.add(rank)
            book.answers = {}
            ran.z.append(book.x.clone())
            ran.dual_sums.append(float(sum(state["u"] for state in states).abs().max()))  # type: ignore[union-attr]
            ran.ages.append(max(book.state.age.values()))
    assert max(book.staleness) == max(ran.ages)  # what the server counts is how old reports were
    return ran


def literal(rounds: int) -> Tensor:
    """Consensus ADMM as it is printed."""
    z, u = torch.ones(D, dtype=torch.float64), torch.zeros(N, D, dtype=torch.float64)
    for _ in range(rounds):
        eye = torch.eye(D, dtype=torch.float64)
        x = torch.stack([torch.linalg.solve(A[i] + RHO * eye, B[i] - u[i] + RHO * z) for i in range(N)])
        z = (x + u / RHO).mean(0)
        u = u + RHO * (x - z)
        assert u.sum(0).abs().max() < 1e-12
    return z


def far(z: Tensor) -> float:
    return float((z - OPTIMUM).abs().max())


def test_consensus_admm_is_exact() -> None:
    ran = exact(ConsensusAdmm(RHO), 1, 150)
    assert far(ran.z[0]) > 0.1
    assert far(ran.z[-1]) < 1e-14
    assert max(ran.dual_sums) < 1e-13
    assert max(ran.ages) == 0
    for rounds in (1, 2, 10):
        torch.testing.assert_close(ran.z[rounds - 1], literal(rounds), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("dual", "gamma"), [("answer", 0.0), ("report", 0.0), ("report", 4.0)])
def test_both_orders_converge_with_old_reports(dual: Any, gamma: float) -> None:
    rule = ConsensusAdmm(RHO, LEAST, dual, gamma)
    ran = exact(rule, TAU, 350)
    assert far(ran.z[-1]) < 1e-13
    assert max(ran.ages) == TAU - 1  # reached, and never exceeded
    assert all(torch.equal(a, b) for a, b in zip(ran.z, exact(rule, TAU, 20).z, strict=False))


def test_waiting_for_all_is_the_same_whatever_else_is_asked() -> None:
    """S = n with tau = 1 is consensus ADMM, whoever comes first; so is any S with tau = 1, and S = n with any tau."""
    runs = [exact(ConsensusAdmm(RHO, s), tau, 20, seed=s) for s, tau in ((N, 1), (1, 1), (N, TAU))]
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0].z, other.z, strict=True))


def test_gamma_holds_back() -> None:
    first = [exact(ConsensusAdmm(RHO, 1, "report", gamma), 1, 1).z[0] for gamma in (0.0, 10.0)]
    weight = N * RHO
    expected = (weight * first[0] + 10 * torch.ones(D, dtype=torch.float64)) / (weight + 10)
    torch.testing.assert_close(first[1], expected, rtol=0, atol=1e-13)


def test_what_the_wire_loses_fades_in_differences() -> None:
    """Noise of a tenth of what is sent dies out on differences and stays on reports; duals sum to zero in both."""
    kept, faded = (exact(ConsensusAdmm(RHO, differences=way), 1, 60, noise=0.1) for way in (False, True))
    assert far(faded.z[-1]) < 1e-6 < 1e-2 < far(kept.z[-1])
    assert max(kept.dual_sums + faded.dual_sums) < 1e-12


def test_a_regulariser_is_in_the_answer() -> None:
    """n l1 |z|_1 + sum_i f_i: the slope of the sum is at most n l1 where z = 0, and n l1 against z elsewhere."""
    z = exact(ConsensusAdmm(RHO, l1=10.0 / N), 1, 70).z[-1]
    slope = A.sum(0) @ z - B.sum(0)
    assert 0 < int((z == 0).sum()) < D
    torch.testing.assert_close(slope[z != 0], -10.0 * z[z != 0].sign(), rtol=0, atol=1e-5)
    assert slope[z == 0].abs().max() < 10.0


def test_nobody_waits_for_a_worker_that_is_gone_or_has_nothing_finite() -> None:
    """Three report, one of them what cannot be used, and the other two go: those who wait are answered."""
    x = torch.zeros(D, dtype=torch.float64)
    book = make_book(ConsensusAdmm(RHO, least=4), x, N, 0.1, TAU - 1)
    for rank in (0, 1):
        book.arrived(Push(rank, 0, 0, 0.0, 0.0, (0.1,), x + N))
    book.arrived(Push(2, 0, 0, 0.0, 0.0, (0.1,), x), finite=False)
    assert not book.answers
    book.leave(4)
    assert not book.answers  # there still are four to wait for
    book.leave(3)
    assert set(book.answers) == {0, 1, 2}
    assert torch.equal(book.x, x + 2)  # what the others reported last is where they began
    assert (book.used, book.dropped) == (2, 1)
    book.arrived(Push(1, 1, 1, 0.0, 0.0, (0.1,), x), finite=False)
    assert book.version == 1


class Newton(Optimizer):
    """A step to the argmin of a quadratic with the curvature that the loss has left at the parameter."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(list(parameters), {"lr": 1.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                a = p.curvature + RHO * torch.eye(D)
                p.data -= torch.linalg.solve(a, p.grad)


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    assert isinstance(model, Point)
    model.x.curvature = A[rank].float()  # type: ignore[attr-defined]
    value: Tensor = model.x @ A[rank].float() @ model.x / 2 - B[rank].float() @ model.x
    return value


def run(method: tw.Method, steps: int, optimizer: Any = Newton, **more: Any) -> Simulation:
    problem = Problem(partial(Point, D), loss, optimizer, seconds=0.1)
    return simulate(method, problem, N, steps=steps, min_size=0, network=more.pop("network", FAST), **more)


def end(done: Simulation, rank: int = 0) -> float:
    return far(torch.cat([p.detach() for p in done.models[rank].parameters()]).double())


def test_on_the_clock_waiting_for_all() -> None:
    done = run(tw.methods.consensus_admm(RHO, every=1), 60)
    assert all(end(done, rank) < 1e-5 for rank in range(N))
    assert done.stats[0]["staleness_max"] == 0
    assert done.stats[0]["updates"] == 60
    assert done.stats[1]["bytes_sent"] == 60 * (32 + 4 * D + 48) + 1  # one vector up, and one down; a last word
    assert done.stats[0]["bytes_sent"] == (60 + 1) * (N - 1) * (4 * D + 16)


@pytest.mark.parametrize("name", ["async-admm", "ad-admm"])
def test_on_the_clock_ages_are_bounded_and_the_fast_do_not_wait_for_the_slow(name: str) -> None:
    slow = Constant({3: 12.0})
    done = run(tw.method(f"{name}:rho={RHO},least={LEAST},tau={TAU},every=1"), 60, stragglers=slow)
    assert done.stats[0]["staleness_max"] == TAU - 1
    assert end(done) < 1e-3
    in_step = run(tw.methods.consensus_admm(RHO, every=1), 25, stragglers=slow)
    assert in_step.stats[0]["staleness_max"] == 0
    first = [min(m.seconds for m in one.moments if m.rank == 0 and m.step == 20) for one in (done, in_step)]
    assert first[0] < 0.35 * first[1]  # tau - 1 rounds while the slow one takes a step


def test_local_steps_stand_for_the_argmin() -> None:
    """Any optimizer; with few rounds, and with what changes compressed to 8 bits."""
    sgd = partial(SGD, lr=0.2)
    made = tw.methods.async_admm(least=2, every=5, compressor="qsgd:bits=8")
    done = run(made, 100, sgd, stragglers=ShiftedExponential(0.5))
    assert end(done) < 0.03
    assert done.stats[0]["pushes"] == N * 100 / 5


def test_methods_and_refusals() -> None:
    for made in (tw.methods.consensus_admm(), tw.methods.async_admm(), tw.methods.ad_admm(compressor="qsgd:bits=4")):
        assert from_json(made.to_json()) == made
        assert tw.method(made.id) == made
    assert tw.methods.consensus_admm().exchange == Server(rule=ConsensusAdmm())
    assert tw.methods.async_admm(tau=1).sync == tw.methods.consensus_admm().sync
    with pytest.raises(ValueError, match=r"write rho=0\.5"):
        ConsensusAdmm(0)
    with pytest.raises(ValueError, match="write gamma=0"):
        ConsensusAdmm(gamma=-1)
    with pytest.raises(ValueError, match="write l1=0"):
        ConsensusAdmm(l1=-1)
    with pytest.raises(ValueError, match="1 or more"):
        ConsensusAdmm(least=0)
    with pytest.raises(ValueError, match="write at most 5"):
        run(tw.methods.async_admm(least=6), 1)
    with pytest.raises(ValueError, match="write servers=1, or neither"):
        tw.methods.async_admm(servers=2)
    with pytest.raises(ValueError, match="write tau=1"):
        tw.methods.async_admm(tau=0)
    with pytest.raises(ValueError, match=r"push models.*write Sync\(of=Param\(\)"):
        run(tw.Method(Server(rule=ConsensusAdmm()), tw.Sync()), 1)
