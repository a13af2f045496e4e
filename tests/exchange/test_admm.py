"""ADMM on a graph: its equations, its fixed point, its messages, and sends that never wait for ever."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest
import torch
from rendezvous import meet
from torch import Tensor

from thinwire import Channel, Context, Key, Layout
from thinwire.codecs import Rans
from thinwire.comm import Comm, run
from thinwire.compressors import Cast, Qsgd
from thinwire.core.config import from_json
from thinwire.core.errors import DeadlockError
from thinwire.core.method import METHODS
from thinwire.exchange.admm import Admm, sides
from thinwire.memory import ErrorFeedback
from thinwire.topology import Complete, Edges, ErdosRenyi, OnePeer, Ring, Star, Topology, Torus, colouring

HOUSE = Edges("0-1 1-2 2-3 3-0 2-4 3-4")  # five ranks, a triangle on a square: three colours


class Task:
    """f_i(x) = 1/2 x'A_i x - b_i'x, one per rank: exact argmins, and the optimum of their sum."""

    def __init__(self, n: int, d: int = 5, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        root = torch.randn(n, d, d, generator=g, dtype=torch.float64) / d**0.5
        self.n, self.d = n, d
        self.a = root @ root.mT + 0.5 * torch.eye(d, dtype=torch.float64)
        self.b = 3 * torch.randn(n, d, generator=g, dtype=torch.float64)
        self.x0 = torch.randn(d, generator=g, dtype=torch.float64)  # where all ranks start
        self.optimum = torch.linalg.solve(self.a.sum(0), self.b.sum(0))

    def argmin(self, i: int, v: Tensor, penalty: float) -> Tensor:
        """The argmin of f_i + v'x + penalty/2 |x|^2."""
        eye = torch.eye(self.d, dtype=torch.float64)
        x: Tensor = torch.linalg.solve(self.a[i] + penalty * eye, self.b[i] - v.double())
        return x

    def descend(self, i: int, x: Tensor, v: Tensor, penalty: float, steps: int) -> Tensor:
        """The same by gradient steps, as the engine does."""
        for _ in range(steps):
            x = x - 0.1 * (self.a[i] @ x - self.b[i] + v + penalty * x)
        return x


class Path(NamedTuple):
    """The result of some rounds: models and duals after each, by round and rank, and what was sent."""

    models: Tensor  # (rounds, n, d)
    gammas: Tensor
    messages: int
    bytes: int

    def error(self, task: Task) -> Tensor:
        """The largest distance to the optimum in each round."""
        far: Tensor = (self.models - task.optimum).abs().amax((1, 2))
        return far


def program(
    exchange: Admm, task: Task, rounds: int, dtype: torch.dtype, steps: int = 0
) -> Callable[[Comm], Coroutine[Any, Any, tuple[Tensor, Tensor]]]:
    """One rank's rounds, exact or of some gradient steps each, all in one go: fast ranks run ahead."""

    async def one(comm: Comm) -> tuple[Tensor, Tensor]:
        layout = Layout.flat(task.d)
        x = task.x0.to(dtype)
        state = {name: t.to(dtype) for name, t in exchange.init(layout, comm).items()}
        exchange.start(x, state)
        penalty = exchange.penalty(comm.rank, comm.size)
        models, gammas = [], []
        for k in range(rounds):
            ctx = Context(comm, layout, Key(seed=1, step=k, rank=comm.rank))
            await exchange.begin(x, state, ctx)
            v = state["linear"]
            x = (
                task.descend(comm.rank, x, v, penalty, steps)
                if steps
                else task.argmin(comm.rank, v, penalty).to(dtype)
            )
            x = await exchange(x, state, ctx)
            models.append(x.double())
            gammas.append(state["gamma"].double())
        return torch.stack(models), torch.stack(gammas)

    return one


def admm(exchange: Admm, task: Task, rounds: int, dtype: torch.dtype = torch.float64, steps: int = 0) -> Path:
    exchange.check(task.n)
    done = run(program(exchange, task, rounds, dtype, steps), task.n)
    models = torch.stack([models for models, _ in done.results], 1)
    gammas = torch.stack([gammas for _, gammas in done.results], 1)
    return Path(models, gammas, sum(t.messages for t in done.traffic), sum(t.bytes for t in done.traffic))


def literal(topology: Topology, turn: list[int], task: Task, rounds: int, rho: float) -> Tensor:
    """D-ADMM as the paper writes it, with every x_j at hand."""
    near = [topology.around(i, task.n).peers for i in range(task.n)]
    x, gamma = task.x0.repeat(task.n, 1), torch.zeros(task.n, task.d, dtype=torch.float64)
    path = []
    for _ in range(rounds):
        for colour in sorted(set(turn)):
            old = x.clone()
            for i in (i for i in range(task.n) if turn[i] == colour):
                v = gamma[i] - rho * sum(old[j] for j in near[i])
                x[i] = task.argmin(i, v, rho * len(near[i]))
        for i in range(task.n):
            gamma[i] += rho * sum(x[i] - x[j] for j in near[i])
        path.append(x.clone())
    return torch.stack(path)


def over_edges(topology: Topology, task: Task, rounds: int, beta: float) -> Tensor:
    """Wei and Ozdaglar's form, with one dual per edge and an argmin of squares about points."""
    pairs = [(j, i) for i in range(task.n) for j in topology.around(i, task.n).peers if j < i]
    x = task.x0.repeat(task.n, 1)
    dual = {pair: torch.zeros(task.d, dtype=torch.float64) for pair in pairs}
    path = []
    for _ in range(rounds):
        for i in range(task.n):
            points = [x[j] - dual[j, i] / beta for j, k in pairs if k == i]
            points += [x[j] + dual[i, j] / beta for k, j in pairs if k == i]
            # argmin f_i + beta/2 sum |x - point|^2
            x[i] = task.argmin(i, -beta * sum(points, torch.zeros_like(x[i])), beta * len(points))
        for j, i in pairs:
            dual[j, i] -= beta * (x[j] - x[i])
        path.append(x.clone())
    return torch.stack(path)


@pytest.mark.parametrize("topology", [Ring(), Star(), Torus(), Complete(), ErdosRenyi()], ids=lambda t: t.id)
def test_colours_give_the_equations_of_d_admm(topology: Topology) -> None:
    task = Task(8)
    path = admm(Admm(topology=topology, wire="fp64"), task, 12)
    assert torch.allclose(path.models, literal(topology, colouring(topology, 8), task, 12, 0.5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rho", [0.2, 1.5])
@pytest.mark.parametrize("topology", [Ring(), Star(), Complete(), ErdosRenyi(p=0.4)], ids=lambda t: t.id)
def test_the_order_of_ranks_gives_admm_with_a_dual_an_edge(topology: Topology, rho: float) -> None:
    task = Task(7)
    path = admm(Admm(topology=topology, rho=rho, order="index", wire="fp64"), task, 12)
    assert torch.allclose(path.models, over_edges(topology, task, 12, rho), rtol=0, atol=1e-12)
    assert not torch.allclose(path.models, literal(topology, [0] * 7, task, 12, rho), atol=1e-3)  # all at once


def test_d_admm_on_a_ring_of_six_is_exact() -> None:
    """Measured: 2e-15 with float64 on the wire, 5e-8 with float32 there, 5e-7 with float32 throughout."""
    task = Task(6)
    exact = admm(Admm(wire="fp64"), task, 200)
    assert exact.error(task)[0] > 0.1
    assert exact.error(task)[-1] < 1e-13
    rounded = admm(Admm(), task, 100)
    assert rounded.error(task)[-1] < 2e-7
    single = admm(Admm(), task, 100, torch.float32)
    assert single.error(task)[-1] < 2e-6


@pytest.mark.parametrize("order", ["colour", pytest.param("index", marks=pytest.mark.long)])
def test_sixty_four_ranks(order: Any) -> None:
    """On a torus of 8 by 8; measured 0.17 after 10 rounds and 0.006 after 30, as it would go on."""
    task, exchange = Task(64), Admm(topology=Torus(), order=order, wire="fp64")
    models = torch.stack([models for models, _ in meet(program(exchange, task, 30, torch.float64), 64)], 1)
    error = (models - task.optimum).abs().amax((1, 2))
    assert error[-1] < 0.01
    assert error[-1] < 0.06 * error[9]
    assert torch.equal(admm(exchange, task, 2).models, models[:2])


@pytest.mark.parametrize(("topology", "rounds"), [(Ring(), 120), (Star(), 120), (ErdosRenyi(p=0.4), 240)], ids=str)
def test_edge_admm_is_at_least_as_fast_as_its_rate(topology: Topology, rounds: int) -> None:
    """O(1/k): the error times k stays below what it was; on quadratics it falls by a constant factor per round."""
    task = Task(7)
    error = admm(Admm(topology=topology, order="index", wire="fp64"), task, rounds).error(task)
    k = torch.arange(1, rounds + 1)
    assert ((k * error)[20:] <= (k * error)[:20].max()).all()
    assert error[-1] < 1e-6


CHANNELS = [Channel(Cast("bf16")), Channel(Qsgd(bits=8)), Channel(Qsgd(bits=4), codec=Rans())]


@pytest.mark.parametrize("order", ["colour", "index"])
@pytest.mark.parametrize("topology", [Ring(), HOUSE], ids=lambda t: t.id)
def test_duals_sum_to_zero_whatever_the_wire_loses(topology: Topology, order: Any) -> None:
    task = Task(5)
    for exchange in (
        Admm(topology=topology, order=order, wire="fp64"),
        Admm(topology=topology, order=order),
        *(Admm(channel, topology, order=order) for channel in CHANNELS),
    ):
        path = admm(exchange, task, 8)
        assert path.gammas.abs().max() > 1
        assert path.gammas.sum(1).abs().max() < 1e-11


@pytest.mark.parametrize("order", ["colour", "index"])
@pytest.mark.parametrize("topology", [Ring(), Star(), Torus(), HOUSE, Complete()], ids=lambda t: t.id)
def test_messages_are_two_an_edge_and_round(topology: Topology, order: Any) -> None:
    n = topology.size or 6
    task = Task(n)
    exchange = Admm(topology=topology, order=order)
    path = admm(exchange, task, 7)
    edges = len(exchange.edges(n))
    assert path.messages == 7 * 2 * edges
    assert path.bytes == path.messages * exchange.channel.nbytes(Layout.flat(task.d))


def test_gradient_steps_in_place_of_the_argmin_find_the_same_optimum() -> None:
    task = Task(6)
    error = admm(Admm(wire="fp64"), task, 130, steps=10).error(task)
    assert error[-1] < 1e-9


def test_mild_compression_stops_at_what_it_rounds() -> None:
    task = Task(6)
    errors = [admm(Admm(Channel(Cast(kind))), task, 60).error(task)[-1] for kind in ("fp16", "bf16")]
    assert 1e-6 < errors[0] < errors[1] < 0.5


@pytest.mark.parametrize("channel", [None, CHANNELS[2]], ids=["fixed", "sizes are asked"])
@pytest.mark.parametrize("order", ["colour", "index"])
@pytest.mark.parametrize("topology", [Ring(), Star(), HOUSE, Complete()], ids=lambda t: t.id)
def test_no_send_waits_for_ever(topology: Topology, order: Any, channel: Channel | None) -> None:
    """On a network that buffers nothing: all ranks end, and nothing is left to receive."""
    n = topology.size or 6
    task = Task(n)
    exchange = Admm(channel, topology, order=order) if channel else Admm(topology=topology, order=order)
    met = meet(program(exchange, task, 3, torch.float64), n)
    done = run(program(exchange, task, 3, torch.float64), n).results
    for (x, gamma), (y, delta) in zip(met, done, strict=True):
        assert torch.equal(x, y)
        assert torch.equal(gamma, delta)


def two_vectors(exchange: Admm, *, at_once: bool) -> Callable[[Comm], Coroutine[Any, Any, None]]:
    """A model in two vectors on one lane: every vector's call as a whole, or `tell` for both and then `hear`."""

    async def one(comm: Comm) -> None:
        layout, x = Layout.flat(3), torch.zeros(3)
        states = [exchange.init(layout, comm) for _ in range(2)]
        for k in range(3):
            parts = [(Context(comm, layout, Key(step=k, rank=comm.rank, bucket=b)), states[b]) for b in range(2)]
            for ctx, state in parts:
                await exchange.begin(x, state, ctx)
            if at_once:
                for ctx, state in parts:
                    await exchange(x, state, ctx)
            else:
                for ctx, state in parts:
                    await exchange.tell(x, state, ctx)
                for ctx, state in parts:
                    await exchange.hear(x, state, ctx)

    return one


@pytest.mark.parametrize("driver", [meet, run])
def test_several_vectors_are_told_before_any_is_heard(driver: Callable[..., Any]) -> None:
    driver(two_vectors(Admm(), at_once=False), 4)
    with pytest.raises(DeadlockError):
        driver(two_vectors(Admm(), at_once=True), 4)


def test_turns() -> None:
    near = sides(HOUSE, 5, "colour")
    colours = colouring(HOUSE, 5)
    for i, (earlier, later) in enumerate(near):
        assert sorted(earlier + later) == list(HOUSE.around(i, 5).peers)
        assert all(colours[j] < colours[i] for j in earlier)
        assert all(i in near[j].later for j in earlier)
    assert sides(Ring(), 5, "index")[0] == ((), (1, 4))


def test_methods() -> None:
    colour, index = METHODS.parse("d-admm:rho=0.1,every=4"), METHODS.parse("edge-admm:topology=star")
    assert colour.exchange == Admm(rho=0.1)
    assert index.exchange == Admm(topology=Star(), order="index")
    assert (colour.sync.every, index.sync.every) == (4, 10)
    for made in (colour, index):
        assert from_json(made.to_json()) == made
        assert METHODS.parse(made.id) == made
    exchange = Admm(CHANNELS[0], order="index")
    assert exchange.plain == Admm(order="index")
    assert exchange.penalty(2, 8) == 1.0
    assert "d_psgd" in exchange.cannot_drop


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"write rho=0\.5"):
        Admm(rho=0)
    with pytest.raises(ValueError, match="write order='colour' or 'index'"):
        Admm(order="rank")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got ErrorFeedback.*write Admm\(Channel\(Cast"):
        Admm(Channel(Cast("bf16"), ErrorFeedback()))
    with pytest.raises(ValueError, match='write wire="fp32"'):
        Admm(Channel(Cast("bf16")), wire="fp64")
    with pytest.raises(ValueError, match=r"is directed; write topology=Ring\(\)"):
        Admm(topology=OnePeer()).check(8)
    with pytest.raises(ValueError, match="changes its edges"):
        METHODS.parse("d-admm:topology=matching").exchange.check(8)
