"""Planned buckets and results in the next forward pass, on the clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.engine import checkpoint
from thinwire.engine.driver import Driver
from thinwire.engine.order import by_need
from thinwire.engine.plan import Plan
from thinwire.engine.planned import Cost
from thinwire.sim import Costs, Load, Network, Problem, Ready, foresee
from thinwire.sim.forward import starts

LINK = Network("1gbit", "100us")
PLANNED = tw.Overlap(buckets="planned")


def uneven() -> Problem:
    """The large layer is declared last, but computed first, so that the usual order holds everything up."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.small = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(4))
            self.large = nn.Linear(64, 2048, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.relu(self.large(x))[:, :64]
            for layer in self.small:
                x = nn.functional.relu(layer(x))
            return x

    def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(100 * step + rank))
        lost: torch.Tensor = (model(x) - x).square().mean()
        return lost

    return Problem(model=Net, optimizer=lambda p: torch.optim.SGD(p, lr=0.05), loss=loss, seconds=0.05)


@pytest.mark.parametrize("name", ["sgd", "ef-signsgd", "pipe-sgd"])
def test_replicas_stay_equal_and_nothing_is_lost(name: str) -> None:
    method = tw.method(name)
    planned = replace(method, overlap=replace(PLANNED, bucket_mb=0.1))
    fixed, found = (
        tw.simulate(one, uneven(), workers=3, steps=12, network=Network("100mbit", "1ms"), min_size=0)
        for one in (replace(method, overlap=tw.Overlap(bucket_mb=0.1)), planned)
    )
    first, *others = [torch.cat([p.flatten() for p in model.parameters()]) for model in found.models]
    assert all(torch.equal(first, other) for other in others)
    if name != "ef-signsgd":  # the sums are the same in any bucket, but for the order of their terms
        same = torch.cat([p.flatten() for p in fixed.models[0].parameters()])
        torch.testing.assert_close(first, same, rtol=1e-4, atol=1e-6)
    assert found.stats[0]["rounds"] == fixed.stats[0]["rounds"] == 12


def test_memories_are_kept_element_for_element(monkeypatch: pytest.MonkeyPatch) -> None:
    renew, compared = Driver.renew, []

    def memories(driver: Driver) -> dict[str, torch.Tensor]:
        (state,) = checkpoint.collect(driver.loop.runner, driver.loop.buckets).values()
        found: dict[str, dict[int, torch.Tensor]] = {}
        for key, tensor in state["tensors"].items():
            memory, start, name = key.split("|")
            found.setdefault(f"{memory} {name}", {})[int(start)] = tensor
        return {key: torch.cat([part for _, part in sorted(parts.items())]) for key, parts in found.items()}

    async def watched(self: Driver, plan: Plan) -> None:
        before = memories(self)
        await renew(self, plan)
        after = memories(self)
        both = [key for key in before if key in after and before[key].shape == after[key].shape]
        assert all(torch.equal(before[key], after[key]) for key in both)
        assert sum(float(before[key].abs().sum()) > 0 for key in both if key.startswith("send")) == 5
        compared.append(self.loop.plan)

    monkeypatch.setattr(Driver, "renew", watched)
    method = tw.Method(tw.method("ef-signsgd:exchange=all-gather").exchange, overlap=replace(PLANNED, bucket_mb=0.1))
    tw.simulate(method, uneven(), workers=2, steps=9, network=Network("100mbit", "1ms"), min_size=0)
    assert len(compared) == 4  # two ranks, twice
    assert compared[:2] == [compared[0]] * 2
    assert compared[2:] == [compared[2]] * 2


def test_a_load_whose_last_bucket_is_large_gains_and_one_that_waits_for_its_link_does_not() -> None:
    gains = {}
    for seconds in (0.3, 1.2):
        load = Load.of("resnet50", seconds=seconds)
        fixed, planned, merged = (
            foresee(replace(tw.methods.sgd(), overlap=overlap), load, 2, steps=2, network=LINK).step
            for overlap in (tw.Overlap(), PLANNED, tw.Overlap(buckets="mg-wfbp"))
        )
        assert max(planned, merged) <= fixed * 1.001
        gains[seconds] = 1 - planned / fixed
    assert gains[1.2] > 0.03 > 0.01 > gains[0.3]


def test_what_is_needed_first_overtakes_but_interrupts_nothing() -> None:
    ready, sizes, needed = [0.0, 0.0, 0.0, 1.5], [1.0] * 4, [4.0, 3.0, 2.0, 1.0]
    assert by_need(ready, sizes, needed, Cost(0.0, 1.0)) == [2, 1, 3, 0]  # 1 was under way when 3 became ready
    assert by_need(ready, sizes, needed, Cost(0.0, 1.0), credit=2) == [2, 1, 0, 3]  # and 0 had been chosen, too
    assert by_need(ready, sizes, needed, Cost(0.0, 0.1)) == [2, 1, 0, 3]  # on a fast link nothing need overtake


def test_results_in_the_next_forward_pass() -> None:
    """Half a second of link for each of five tensors, in a step that computes for 1.5 s, a third of it backward.

    At the end of backward: 1.0 s until the first gradient, and then 2.5 s of link. By need the link is never idle.
    """
    size = 1 << 20
    last = [Ready(f"last{at}", (size,), 1.0) for at in range(4)]
    load = Load((Ready("first", (size,), 1.5), *last), 1.5)
    assert starts(load) == {"first": 0.0, **{one.name: 1.0 for one in last}}
    link = Network(rate=2 * 32.0 * size, latency=0.0)  # two hosts send a tensor each way in half a second
    method = replace(tw.methods.sgd(), overlap=tw.Overlap(bucket_mb=4, in_flight=1))

    def step(into: str | None) -> float:
        done = foresee(method, load, 2, steps=6, network=link, costs=Costs(), into_forward=into)  # type: ignore[arg-type]
        return done.ends[-1][0] - done.ends[-2][0]

    assert step(None) == pytest.approx(3.5, abs=1e-3)
    assert step("ready") == pytest.approx(3.5, abs=1e-3)
    assert step("need") == pytest.approx(2.5, abs=1e-3)
    with pytest.raises(ValueError, match="into_forward='ready' or 'need'"):
        step("late")
    with pytest.raises(ValueError, match="leave into_forward out"):
        foresee(tw.methods.local_sgd(), load, 2, into_forward="need")
