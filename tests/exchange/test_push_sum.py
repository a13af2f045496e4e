"""Push-sum: the sum and the weights are kept, the quotient finds the mean on any directed graph, SGP the optimum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import pytest
import torch
from torch import Tensor

from thinwire import Channel, Context, Key, Layout
from thinwire.comm import Comm, run
from thinwire.compressors import Cast, Qsgd
from thinwire.core.config import from_json
from thinwire.core.errors import PayloadError
from thinwire.core.method import METHODS
from thinwire.core.types import State
from thinwire.exchange.mix import Mix
from thinwire.exchange.push_sum import PushSum, weighs
from thinwire.lab.swarm import Swarm
from thinwire.memory import ErrorFeedback
from thinwire.sync import Param, Sync
from thinwire.topology import Exponential, Matching, OnePeer, Ring, Topology, Weights
from thinwire.topology.draws import uniform

SIX = Weights(
    (
        (0.50, 0.25, 0.00, 0.00, 0.00, 0.50),
        (0.25, 0.50, 0.50, 0.00, 0.00, 0.00),
        (0.00, 0.25, 0.50, 0.00, 0.00, 0.00),
        (0.25, 0.00, 0.00, 0.50, 0.25, 0.00),
        (0.00, 0.00, 0.00, 0.50, 0.50, 0.00),
        (0.00, 0.00, 0.00, 0.00, 0.25, 0.50),
    ),
    directed=True,
)
"""Columns sum to one, rows to 0.75 to 1.25."""


@final
@dataclass(frozen=True)
class Fickle(Topology):
    """Each rank gives a third to one other and a sixth to a second one, drawn anew every step or every `repeat`."""

    name: ClassVar[str] = "fickle"
    directed = True
    repeat: int = 0

    def matrix(self, n: int, step: int = 0) -> Tensor:
        w = torch.eye(n, dtype=torch.float64) / 2
        for j, draw in enumerate(uniform(n, 7, step % self.repeat if self.repeat else step).tolist()):
            first = int(draw * (n - 1))
            w[(j + 1 + first) % n, j] += 1 / 3
            w[(j + 1 + (first + 1) % (n - 1)) % n, j] += 1 / 6
        return w

    def period(self, n: int) -> int | None:
        return self.repeat or None


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(swarm: Swarm) -> Tensor:
    return torch.stack([state["send.weight"] for state in swarm.states])


def averaged(topology: Topology, n: int, steps: int, dtype: torch.dtype = torch.float64) -> tuple[Swarm, Tensor]:
    """Models that differ, then nothing but averaging; and what they started from."""
    start = 1 + randn(n, 20).to(dtype)
    swarm = Swarm(PushSum(topology=topology), n, torch.zeros(20, dtype=dtype))
    swarm.step(start)
    for _ in range(steps):
        swarm.step(torch.zeros_like(start))
    return swarm, start


def test_rows_of_the_graph() -> None:
    rows = SIX.matrix(6).sum(1)
    assert (float(rows.min()), float(rows.max())) == (0.75, 1.25)


@pytest.mark.parametrize("channel", [None, Channel(Cast("bf16")), Channel(Qsgd(bits=4))], ids=str)
@pytest.mark.parametrize("topology", [SIX, Fickle(), Fickle(repeat=3)], ids=lambda t: t.id[:16])
def test_weights_and_the_sum_are_kept_whatever_the_wire_loses(topology: Topology, channel: Channel | None) -> None:
    exchange = PushSum(channel, topology) if channel else PushSum(topology=topology)
    swarm, total = Swarm(exchange, 6, torch.zeros(20, dtype=torch.float64)), torch.zeros(20, dtype=torch.float64)
    for step in range(12):
        updates = randn(6, 20, seed=step)
        total += updates.sum(0)
        swarm.step(updates)
        w = weights(swarm)
        assert abs(float(w.sum()) - 6) < 1e-13
        assert (w > 0.05).all()
        assert torch.allclose((w[:, None] * swarm.models).sum(0), total, rtol=0, atol=1e-12)
    assert (weights(swarm) - 1).abs().max() > 0.1
    assert all(state["send.weight"].shape == () for state in swarm.states)


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-6), (torch.float32, 5e-6)])
def test_the_quotient_finds_the_mean_and_the_numerator_does_not(dtype: torch.dtype, bar: float) -> None:
    """Measured: 3e-7 with float32 on the wire, 7e-7 with float32 models; 0.28 of the mean without dividing."""
    swarm, start = averaged(SIX, 6, 100, dtype)
    mean = start.double().mean(0)
    assert (swarm.models - mean).abs().max() < bar
    biased = weights(swarm)[:, None] * swarm.models
    off = float(((biased - mean) / mean).square().mean().sqrt())
    assert 0.2 < off < 0.35
    known = torch.linalg.matrix_power(SIX.matrix(6), 101).sum(1)
    assert torch.allclose(weights(swarm), known, atol=1e-12)


@pytest.mark.parametrize("topology", [Fickle(), Fickle(repeat=2)], ids=lambda t: t.id)
def test_graphs_that_change_from_step_to_step(topology: Topology) -> None:
    swarm, start = averaged(topology, 7, 60)
    assert (swarm.models - start.mean(0)).abs().max() < 1e-6
    assert (weights(swarm) - 1).abs().max() > 0.05


def test_one_peer_of_eight_ranks_is_exact_in_three_steps() -> None:
    start = torch.randint(-9, 9, (8, 20), generator=torch.Generator().manual_seed(0)).float()
    swarm = Swarm(PushSum(), 8, torch.zeros(20))
    swarm.step(start)
    for _ in range(2):
        assert swarm.distance > 0.1
        swarm.step(torch.zeros_like(start))
    assert torch.equal(swarm.models, start.mean(0).expand(8, 20))
    assert (swarm.messages, swarm.bytes) == (3 * 8, 3 * 8 * (32 + 80))
    assert all(not state for state in swarm.states)


@pytest.mark.parametrize("topology", [OnePeer(), Exponential(), Ring(), Matching()], ids=lambda t: t.id)
def test_without_weights_it_is_mixing(topology: Topology) -> None:
    """Nothing is kept and nothing is sent of them."""
    swarms = [Swarm(e, 8, torch.zeros(20)) for e in (PushSum(topology=topology), Mix(topology=topology, eta=1.0))]
    for step in range(5):
        for swarm in swarms:
            swarm.step(randn(8, 20, seed=step).float())
    assert torch.equal(swarms[0].models, swarms[1].models)
    assert swarms[0].bytes == swarms[1].bytes
    assert not weighs(topology, 8)


def test_a_weight_costs_eight_bytes_a_message() -> None:
    swarm, _ = averaged(SIX, 6, 0)
    edges = int((SIX.matrix(6) > 0).sum()) - 6
    assert (swarm.messages, swarm.bytes) == (edges, edges * (32 + 80 + 8))


@pytest.mark.parametrize(
    ("topology", "n"),
    [(SIX, 6), (Fickle(), 6), pytest.param(OnePeer(), 8, marks=pytest.mark.long)],  # the last has no weights
    ids=lambda v: str(v)[:12],
)
def test_sgp_finds_the_optimum_of_the_mean(topology: Topology, n: int) -> None:
    """f_i(z) = |z - b_i|^2 / 2 with falling steps: to the mean of b_i, not to one that counts some ranks more."""
    b, swarm = 3 * randn(n, 20), Swarm(PushSum(topology=topology), n, torch.zeros(20, dtype=torch.float64))
    far = []
    for step in range(200):
        swarm.step(-0.1 / (1 + step / 20) * (swarm.models - b))
        far.append(float((swarm.models - b.mean(0)).square().mean().sqrt()))
    assert far[-1] < 0.12  # mixing by rows stays at 0.27
    assert far[-1] < 0.6 * far[80]


def test_mixing_by_rows_tends_to_another_optimum() -> None:
    """The same graph with rows that sum to one, and no weights: ranks agree, and some count more than others."""
    b, rows = 3 * randn(6, 20), SIX.matrix(6) / SIX.matrix(6).sum(1, keepdim=True)
    x = torch.zeros_like(b)
    for step in range(400):
        x = rows @ (x - 0.1 / (1 + step / 20) * (x - b))
    assert float((x - b.mean(0)).square().mean().sqrt()) > 0.2


def without(exchange: PushSum, n: int, dead: int, rounds: int) -> tuple[list[Tensor], list[State], Tensor]:
    """Averaging in which a rank is gone after its first round; models, states, and what the others had then."""
    start = randn(n, 20)

    async def program(comm: Comm) -> tuple[Tensor, State, Tensor]:
        layout, z = Layout.flat(20), torch.zeros(20, dtype=torch.float64)
        state = exchange.init(layout, comm)
        kept = z
        for step in range(rounds):
            if step and comm.rank == dead:
                break
            if step == 1:
                comm.gone.add(dead)
                kept = z * float(state["send.weight"]) if state else z
            ctx = Context(comm, layout, Key(step=step, rank=comm.rank), before=z)
            z = await exchange(z + start[comm.rank] if step == 0 else z.clone(), state, ctx)
        return z, state, kept

    done = [result for rank, result in enumerate(run(program, n).results) if rank != dead]
    return [z for z, _, _ in done], [s for _, s, _ in done], torch.stack([kept for _, _, kept in done])


def test_a_rank_keeps_the_share_of_one_that_is_gone() -> None:
    """What the others held after the round in which it was last seen is what they go on with."""
    models, states, kept = without(PushSum(topology=SIX), 6, dead=2, rounds=150)
    w = torch.stack([state["send.weight"] for state in states])
    total = (w[:, None] * torch.stack(models)).sum(0)
    assert torch.allclose(total, kept.sum(0), rtol=0, atol=1e-12)
    for z in models:
        assert torch.allclose(z, kept.sum(0) / w.sum(), atol=1e-6)


def test_ranks_that_nobody_gives_to_any_more_are_told() -> None:
    """Without rank 5 nothing comes back from 3 and 4 to the others, whose weights fall."""
    with pytest.raises(ValueError, match=r"weight of rank \d has fallen to .*e-13: .* such as Exponential\(\)"):
        without(PushSum(topology=SIX), 6, dead=5, rounds=600)


def test_without_weights_those_that_are_left_still_agree() -> None:
    models, _, kept = without(PushSum(), 8, dead=3, rounds=90)
    for z in models:
        assert torch.allclose(z, models[0], atol=1e-6)
    assert (models[0] > kept.amin(0)).all()
    assert (models[0] < kept.amax(0)).all()


@pytest.mark.parametrize("weight", [math.nan, -1.0, 0.0])
def test_a_damaged_weight_is_refused(weight: float) -> None:
    pair = PushSum(topology=Weights(((0.5, 0.25), (0.5, 0.75)), directed=True))

    async def program(comm: Comm) -> None:
        layout, x = Layout.flat(3), torch.ones(3)
        ctx = Context(comm, layout, Key(rank=comm.rank), before=x)
        if comm.rank == 0:
            await pair(x, pair.init(layout, comm), ctx)
            return
        payload = pair.channel.send(x, {}, ctx)
        assert payload is not None
        await comm.swap(torch.cat((payload.data, torch.tensor([weight]).double().view(torch.uint8))), [0])

    with pytest.raises(PayloadError, match="rank 1 says that its weight is"):
        run(program, 2)


def test_method() -> None:
    made = METHODS.parse("sgp")
    assert (made.exchange, made.sync) == (PushSum(), Sync(of=Param()))
    made = METHODS.parse("sgp:topology=exponential,every=4")
    assert made.exchange == PushSum(topology=Exponential())
    assert from_json(made.to_json()) == made
    assert METHODS.parse(made.id) == made
    assert PushSum(Channel(Cast("bf16")), SIX).plain == PushSum(topology=SIX)
    assert PushSum().cannot_drop == ""


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"got ErrorFeedback.*write PushSum\(Channel\(Cast"):
        PushSum(Channel(Cast("bf16"), ErrorFeedback()))
    ring = torch.eye(3).roll(1, 0)
    empty = Weights((ring / 2 + torch.tensor([[0.5, 0, 0], [0, 0, 0], [0, 0.5, 0.5]])).tolist(), directed=True)
    with pytest.raises(ValueError, match=r"W\[1, 1\] = 0: rank 1 would give all of its weight away"):
        PushSum(topology=empty).check(3)
