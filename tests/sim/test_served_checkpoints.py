"""Checkpoints of served methods on the clock: a pause disturbs nobody, and a run goes on bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from nets import same
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import thinwire as tw
from thinwire import Channel
from thinwire.comm.clock import VirtualClock
from thinwire.comm.stragglers import Stragglers
from thinwire.compressors import Qsgd, ScaledSign
from thinwire.engine.checkpoint import checked, collect, restore
from thinwire.exchange import Server
from thinwire.memory import ErrorFeedback
from thinwire.server import Asgd, AsyLpg, Backup, DcAsgd, R2sp, Rule, Softsync, Spy, Ssp
from thinwire.sim import Constant, Network, Problem
from thinwire.sim.worker import Setting, Worker
from thinwire.sync import Delta

SIZES, STEPS, AT = (5, 3, 4), 8, 4
TARGETS = torch.randn(8, sum(SIZES), generator=torch.Generator().manual_seed(0))
EF = Channel(ScaledSign(), ErrorFeedback())
States = dict[str, Any]


class Three(nn.Module):
    """Three tensors of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.zeros(size) for size in SIZES])


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    x = torch.cat(list(model.parameters())) - TARGETS[rank] * (1 + step % 3)
    return x.square().sum() / 2


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9)


def trained(
    method: tw.Method,
    ranks: int,
    steps: range,
    states: States | None = None,
    at: int | None = None,
    early: int | None = None,
    stragglers: Stragglers | None = None,
) -> tuple[Tensor, States]:
    """The model in the end, and what was saved before step `at`, on rank 1 before step `early` if that is given."""
    clock = VirtualClock(ranks, Network("1gbit", "1ms"), stragglers, 0)
    setting = Setting(Problem(Three, loss, sgd), method, 0, 7)
    everybody = [Worker(clock, rank, setting) for rank in range(ranks)]
    saved: States = {}

    async def life(worker: Worker) -> None:
        runner, driver = worker.runner, worker.driver
        worker.begin()
        await driver.start()
        if states is not None:
            looked_at = checked(runner, driver.loop.buckets, driver.schedule, states, "mean")
            found = await restore(runner, driver.loop.buckets, looked_at, on_resize="mean")
            driver.load(found.own, resized=found.resized)
            await driver.schedule.adopt(found)
            if not found.resized:
                worker.optimizer.load_state_dict(deepcopy(states[f"rank{worker.rank}"]["optimizer"]))
        for step in steps if driver.schedule.trains else range(at or 0, (at or -1) + 1):
            first = worker.rank == 1 and early is not None
            if step == (early if first else at):
                await runner.comm.sleep(1.0 if first else 0.0)  # the others wait for it by then
                saved.update(collect(runner, driver.loop.buckets, await driver.schedule.save()))
                saved[f"rank{worker.rank}"]["optimizer"] = deepcopy(worker.optimizer.state_dict())
            if driver.schedule.trains:
                await worker.step(step)
        await driver.ends()

    with torch.no_grad():
        for worker in everybody:
            clock.spawn(worker.rank, life(worker))
        clock.run()
    return torch.cat([p.detach().flatten() for p in everybody[0].model.parameters()]), saved


def served(rule: Rule, **more: Any) -> tw.Method:
    return tw.Method(Server(rule=rule, **more), tw.Sync(staleness=0 if rule.bounded else None))


def ways(rule: Rule, **more: Any) -> tw.Method:
    return tw.Method(Server(rule=rule, **more), replace(served(rule).sync, of=Delta(), every=3))


IN_ORDER = [
    (served(Backup(0)), 3),
    (served(Backup(0), channel=EF, down=EF), 3),
    (served(Backup(0), servers=2), 4),
    (served(Ssp("snapshot"), shards=1), 3),
    (served(R2sp(profile=2)), 3),
    (served(R2sp(profile=2), servers=1, channel=Channel(Qsgd(bits=4)), down=EF), 3),
    (served(Softsync(splits=1), down=EF), 1),
    (served(Asgd(), channel=EF), 1),
    (served(DcAsgd(2.0, 0.95), down=EF), 1),
    (tw.methods.dbpg(l1=0.01, blocks=2, tau=0, kkt=0.005, significant=0.05), 3),
    (tw.methods.dbpg(l1=0.01, tau=0, skip=0.3, servers=2), 4),
    (tw.methods.spy(p=0.5, l1=0.01, compressor="qsgd:bits=8"), 1),
    (tw.methods.asylpg(batches=3, updates=4, accelerated=True), 1),
    (tw.methods.asylpg(batches=6), 2),  # in the middle of a full gradient
    (ways(Backup(0), channel=EF, down=EF), 3),  # in the middle of a way
    (ways(Ssp("snapshot"), servers=1), 3),
    (tw.methods.easgd_async(every=3), 1),
    (tw.methods.eamsgd_async(every=2, compressor="qsgd:bits=4"), 1),
]
"""Methods on which the order of arrivals has no influence, and a number of ranks."""


@pytest.mark.parametrize(("method", "ranks"), IN_ORDER, ids=lambda one: getattr(one, "id", str(one)))
def test_a_run_resumes_bit_for_bit(method: tw.Method, ranks: int) -> None:
    through, _ = trained(method, ranks, range(STEPS))
    saving, states = trained(method, ranks, range(STEPS), at=AT)
    assert torch.equal(through, saving)
    assert set(states) == {f"rank{rank}" for rank in range(ranks)}
    again, _ = trained(method, ranks, range(AT, STEPS), states)
    assert torch.equal(through, again)


RULES: list[Rule] = [Asgd(), Softsync(splits=2), DcAsgd(), Backup(1), Ssp(), Ssp(cache=True), R2sp(profile=0), Spy()]
RULES += [AsyLpg(batches=2, updates=3)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_whatever_the_rule_the_others_wait_for_nobody_who_is_paused(rule: Rule) -> None:
    """A slow worker comes to the pause last. What was saved is what is loaded: the same state is saved again."""
    slow, method = Constant({1: 3.0}), served(rule, down=None if rule.words else EF)
    _, states = trained(method, 3, range(STEPS), at=AT, stragglers=slow)
    _, again = trained(method, 3, range(AT, AT + 1), states, at=AT, stragglers=slow)
    assert same(states, again)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_nor_for_one_who_is_paused_before_they_have_taken_as_many_steps(rule: Rule) -> None:
    """Somebody who waits for it when it pauses goes on."""
    _, states = trained(served(rule), 3, range(STEPS), at=AT, early=1)
    quiet = rule.batches - 1 if isinstance(rule, AsyLpg) else 0  # steps of a full gradient before it is pushed
    pushed = [states[f"rank{rank}"]["served"]["worker"]["clock"] for rank in range(3)]
    assert pushed == [AT - quiet, 1 - quiet, AT - quiet]


@pytest.mark.parametrize(
    "method", [ways(Asgd(), channel=EF), tw.methods.easgd_async(every=2, compressor="qsgd:bits=8")]
)
def test_ways_and_springs_that_are_saved_are_loaded(method: tw.Method) -> None:
    """With arrivals in any order; on another number of ranks all go on from the servers' model."""
    slow = Constant({1: 3.0})
    _, states = trained(method, 3, range(STEPS), at=AT, stragglers=slow)
    _, again = trained(method, 3, range(AT, AT + 1), states, at=AT, stragglers=slow)
    assert same(states, again)
    _, fewer = trained(method, 2, range(AT, AT + 1), states, at=AT)
    for what in ("x", "optimizer"):
        assert same(of_servers(states, what), of_servers(fewer, what))


def of_servers(states: States, what: str) -> dict[str, Any]:
    """By tensor, in the order of names."""
    servers = [one for state in states.values() if (one := state["served"]["server"]) is not None]
    return dict(sorted((name, value) for one in servers for name, value in one[what].items()))


def test_on_another_number_of_ranks_the_servers_model_and_moments_are_kept() -> None:
    method = served(Backup(0), channel=EF)
    _, states = trained(method, 3, range(STEPS), at=AT)
    for ranks in (1, 2, 4):
        _, again = trained(method, ranks, range(AT, AT + 1), states, at=AT)
        for what in ("x", "optimizer"):
            assert same(of_servers(states, what), of_servers(again, what))
        means = []
        for one in (states, again):
            held: dict[str, list[Tensor]] = {}
            for state in one.values():
                worker = state["served"]["worker"]
                for names, sizes, memory in zip(worker["names"], worker["sizes"], worker["memory"], strict=True):
                    for name, part in zip(names, memory["residual"].split(sizes), strict=True):
                        held.setdefault(name, []).append(part)
            means.append({name: torch.stack(parts).mean(0) for name, parts in held.items()})
        for name in means[0]:
            torch.testing.assert_close(means[0][name], means[1][name])


def test_a_state_without_its_server_is_refused_on_all_ranks() -> None:
    method = served(Backup(0))
    _, states = trained(method, 2, range(STEPS), at=AT)
    for wrong, told in (
        ({**states, "rank1": {**states["rank1"], "served": {}}}, "the state of rank 1 has no entry 'served'"),
        ({"rank0": {**states["rank0"], "ranks": 1}}, "no server among them has"),
    ):
        with pytest.raises(ValueError, match=told):
            trained(method, 2, range(AT, STEPS), wrong)
