"""What two ends of a wire add to in every step stays the same at both, however many steps there were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import thinwire as tw
from thinwire import Layout
from thinwire.comm import Comm, run
from thinwire.core.types import Context, Key
from thinwire.exchange import Admm
from thinwire.exchange.gossip import Gossip
from thinwire.lab.swarm import Swarm
from thinwire.lab.world import World
from thinwire.topology import Complete

N, D, STEPS = 3, 32, 300
CENTRES = 4 + torch.randn(N, D, generator=torch.Generator().manual_seed(0))


def near(step: int, noise: float) -> Tensor:
    """Vectors around the same centres, one row per rank."""
    return CENTRES + noise * torch.randn(N, D, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(("name", "entry"), [("diana", "shift"), ("ef21", "shift"), ("laq:patience=3", "last")])
def test_a_prediction_is_the_mean_of_those_of_the_senders(name: str, entry: str, noise: float, long: bool) -> None:
    """In float32 the shifts of EF21 were 3e-5 apart after 300 steps with vectors that stay, and 5e-4 after 4000."""
    world = World(tw.method(name).exchange, Layout.flat(D), N)
    for step in range(10_000 if long else STEPS):
        world.step(list(near(step, noise)))
    apart = world.states[0][f"recv.{entry}"] - world.mean(f"send.{entry}")
    assert apart.abs().max() < 3e-6  # the rounding of the first messages, which hold whole vectors


@pytest.mark.parametrize(
    "name", ["choco-sgd:topology=complete", "choco-sgd:topology=complete,copies=true", "dcd-psgd:topology=complete"]
)
def test_neighbours_know_a_model_as_its_owner_does(name: str, long: bool) -> None:
    """Pulls are those towards what the neighbours' models are known as; in float32 they were 3e-6 off."""
    exchange = tw.method(name).exchange
    assert isinstance(exchange, Gossip)
    swarm = Swarm(exchange, N, torch.zeros(D))
    for step in range(10_000 if long else STEPS):
        swarm.step(-0.1 * (swarm.models - near(step, 0.1)))
    known = swarm.models.double()
    if "dcd" in name:
        known += torch.stack([state["send.rounded"] for state in swarm.states])
    else:
        known = torch.stack([state["send.shift"] for state in swarm.states])
    for rank, state in enumerate(swarm.states):
        if "recv.pull" in state:
            assert (state["recv.pull"] - (known.mean(0) - known[rank])).abs().max() < 1e-12
        for other in {*range(N)} - {rank} if "copies" in name else ():
            assert torch.equal(state[f"recv.shift.{other}"], known[other])


def test_duals_sum_to_zero(long: bool) -> None:
    """Of ranks that never agree, since each goes where it likes: their duals grow, and sum to zero."""
    admm = Admm(topology=Complete())

    async def rounds(comm: Comm) -> Tensor:
        layout = Layout.flat(D)
        state = admm.init(layout, comm)
        for step in range(10_000 if long else STEPS):
            ctx, x = Context(comm, layout, Key(step=step, rank=comm.rank)), near(step, 0.1)[comm.rank]
            await admm.begin(x, state, ctx)
            await admm(x, state, ctx)
        return state["gamma"].double()

    gammas = torch.stack(run(rounds, N).results)
    assert gammas.sum(0).abs().max() < 1e-9 * gammas.abs().max()
