"""A model on several servers, on the clock: what each rule promises holds for every shard."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import thinwire as tw
from thinwire import Channel, Layout
from thinwire.comm.clock import VirtualClock
from thinwire.exchange import Server
from thinwire.memory import Lazy
from thinwire.server import Asgd, Backup, DcAsgd, R2sp, Rule, Ssp, total
from thinwire.server.shards import cut
from thinwire.sim import Constant, Network, Problem, Simulation, simulate
from thinwire.sim.worker import Setting, Worker

SIZES = (5, 3, 4)
WORKERS = 3
TARGETS = torch.randn(8, sum(SIZES), generator=torch.Generator().manual_seed(0))
FAST = Network("100gbit", "0ms")
ALL: dict[str, int] = {}
ALONE, APART = {"shards": 1}, {"servers": 2}


class Three(nn.Module):
    """Three tensors of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.zeros(size) for size in SIZES])


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return (torch.cat(list(model.parameters())) - TARGETS[rank]).square().sum() / 2


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.1)


def run(
    rule: Rule,
    how: dict[str, int],
    steps: int = 20,
    workers: int = WORKERS,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = sgd,
    staleness: int | None = None,
    network: Network = FAST,
    **more: object,
) -> Simulation:
    method = tw.Method(Server(rule=rule, **how), tw.Sync(staleness=staleness))  # type: ignore[arg-type]
    problem = Problem(Three, loss, optimizer, seconds=0.1)
    ranks = workers + how.get("servers", 0)
    return simulate(method, problem, ranks, steps=steps, network=network, min_size=0, **more)  # type: ignore[arg-type]


def model(done: Simulation, rank: int = 0) -> Tensor:
    return torch.cat([p.detach() for p in done.models[rank].parameters()])


def books(done: Simulation) -> list[dict[str, float]]:
    """The figures of every shard."""
    return [one for one in done.stats if "shard" in one]


def test_shards_are_whole_tensors_and_balanced() -> None:
    layout = Layout(("a", "b", "c", "d", "e"), ((7,), (5,), (4,), (3,), (1,)))
    two = cut(layout, (0, 1))
    assert [shard.tensors for shard in two] == [(0, 3), (1, 2, 4)]
    x = torch.arange(20.0)
    again = torch.zeros(20)
    for shard in two:
        shard.put(shard.take(x), again)
    assert torch.equal(again, x)
    assert [shard.rank for shard in cut(layout, range(3, 11))] == [3, 4, 5, 6, 7]
    assert str(two[1]) == "shard 1 (b, c, e)"


@pytest.mark.parametrize("optimizer", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.1)])
@pytest.mark.parametrize("rule", [Asgd(), DcAsgd(), Backup(0), R2sp(profile=2), Ssp("snapshot")], ids=lambda r: r.id)
def test_one_worker_is_sequential(rule: Rule, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]) -> None:
    alone = Three()
    steps = optimizer(alone.parameters())
    for step in range(8):
        steps.zero_grad()
        loss(alone, 0, step).backward()
        steps.step()
    done = run(rule, APART, 8, 1, optimizer, 0 if rule.bounded else None)
    expected = torch.cat([p.detach() for p in alone.parameters()])
    assert all(torch.equal(model(done, rank), expected) for rank in range(3))  # the servers have it too


@pytest.mark.parametrize("how", [ALL, ALONE, APART], ids=str)
def test_no_backup_and_no_staleness_are_bulk_synchronous(how: dict[str, int]) -> None:
    x = torch.zeros(sum(SIZES))
    for _ in range(20):
        total = x - TARGETS[0]
        for rank in range(1, WORKERS):
            total = total + (x - TARGETS[rank])
        x = x.add(total / WORKERS, alpha=-0.1)
    assert torch.equal(model(run(Backup(0), how)), x)
    assert torch.equal(model(run(Ssp("snapshot"), how, staleness=0, stragglers=Constant({2: 3.0}))), x)


@pytest.mark.parametrize("how", [ALL, APART], ids=str)
def test_every_shard_uses_the_first_gradients_and_drops_the_rest(how: dict[str, int]) -> None:
    found = books(run(Backup(1), how, 25, stragglers=Constant({2: 15.0})))
    assert len(found) == (3 if how == ALL else 2)
    for one in found:
        assert one["pushes"] == WORKERS * 25 == one["used"] + one["dropped"]
        assert one["used"] - 2 * 25 == one["updates"] - 25  # the slow one alone when the others have ended
        assert one["staleness_max"] == 0
        assert one["dropped"] > 0


@pytest.mark.parametrize("how", [ALL, APART], ids=str)
@pytest.mark.parametrize("s", [0, 2])
def test_nobody_is_further_ahead_than_s(s: int, how: dict[str, int]) -> None:
    done = run(Ssp(), how, 15, staleness=s, stragglers=Constant({1: 10.0}))
    slow = [one.seconds for one in done.moments if one.rank == 1]
    leads = [one.step - sum(t <= one.seconds - 0.1 for t in slow) for one in done.moments if one.rank != 1]
    assert max(leads) == s
    assert done.stats[1]["waited_s"] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("how", [ALL, APART], ids=str)
def test_turns_are_one_order_for_all_shards(how: dict[str, int]) -> None:
    done = run(R2sp(profile=3), how, 20, network=Network("1gbit", "1ms"))
    assert [one.rank for one in done.moments] == [rank for _ in range(20) for rank in range(WORKERS)]
    for one in books(done):
        assert one[f"staleness_{WORKERS - 1}"] == WORKERS * 20 - (WORKERS - 1)
        assert one["staleness_max"] == WORKERS - 1


def test_bytes_are_a_gradient_up_and_a_model_down_in_as_many_messages_as_shards() -> None:
    """The cost table: 2 S messages and 2 M bytes per worker and step, and what is said about each."""
    steps, size = 10, 4 * sum(SIZES)
    apart = run(Asgd(), APART, steps)
    up = size + 2 * (32 + 48)  # payloads have headers, and gradients come with what is said of them
    down = size + 2 * 16
    for worker in range(WORKERS):
        assert apart.stats[worker]["bytes_sent"] == steps * up + 2  # and a last word to each
        assert apart.stats[worker]["messages"] == 2 * (steps + 1)
    sent = sum(apart.stats[rank]["bytes_sent"] for rank in (3, 4))
    assert sent == WORKERS * (steps + 1) * down + down + 2  # the servers send each other the last model, too
    everybody = run(Asgd(), ALL, steps)  # a third of each way stays in a rank's own memory
    total = sum(one["bytes_sent"] for one in everybody.stats)
    up, down = (2 * size + 6 * head for head in (32 + 48, 16))
    assert total == steps * up + 6 + (steps + 1) * down


def test_a_cache_may_spare_one_shard_and_not_another() -> None:
    slow = {"staleness": 3, "stragglers": Constant({1: 1.7}), "network": Network("10mbit", "30ms")}
    plain, cached = (run(Ssp(cache=cache), ALL, 20, **slow) for cache in (False, True))  # type: ignore[arg-type]
    assert all(one["used"] == 3 * 20 for one in books(cached))
    assert cached.bytes_sent < plain.bytes_sent
    away = [float((model(done) - TARGETS[:3].mean(0)).norm()) for done in (plain, cached)]
    assert away[1] < 1.5 * away[0]


def test_every_rank_ends_with_the_same_model_and_its_figures_add_up() -> None:
    done = run(Asgd(), ALL, stragglers=Constant({1: 2.5}))
    all_of_them = total(done.stats)
    ages = [n for name, n in all_of_them.items() if name[10:].isdecimal()]
    assert all_of_them["shards"] == 3
    assert all_of_them["pushes"] == all_of_them["used"] == sum(ages) == 3 * WORKERS * 20
    assert all_of_them["bytes_sent"] == done.bytes_sent
    assert all_of_them["staleness_max"] == max(one["staleness_max"] for one in done.stats)
    assert all(torch.equal(model(done), model(done, rank)) for rank in range(1, WORKERS))


def test_what_makes_no_sense_is_refused() -> None:
    for make, text in (
        (lambda: Server(servers=1), "servers and shards are for a rule"),
        (lambda: Server(rule=Asgd(), servers=0), "write servers=1 or more"),
        (lambda: Server(rule=Asgd(), servers=1, shards=1), "write servers=1 or more"),
        (lambda: Server(rule=Asgd(), shards=0), "write 1, for a model that rank 0 keeps"),
        (lambda: Server(rule=Asgd(), servers=3).check(3), "leaves none of 3 ranks to train"),
        (lambda: Server(rule=Asgd(), shards=4).check(3), "write at most 3"),
        (lambda: Server(rule=Asgd(), down=Channel(tw.compressors.Identity(), Lazy())), "write ErrorFeedback"),
    ):
        with pytest.raises(ValueError, match=text):
            make()


def lives(method: tw.Method, life: Callable[[Worker], Coroutine[Any, Any, None]], **more: Any) -> list[Worker]:
    """Three workers that live so on the clock, from their beginning to their end."""
    clock = VirtualClock(3, FAST, **more)
    workers = [Worker(clock, rank, Setting(Problem(Three, loss, sgd), method, 0, 0)) for rank in range(3)]

    async def whole(worker: Worker) -> None:
        worker.begin()
        await worker.driver.start()
        await life(worker)
        await worker.driver.ends()

    with torch.no_grad():
        for worker in workers:
            clock.spawn(worker.rank, whole(worker))
        clock.run()
    return workers


def test_whoever_meets_others_elsewhere_is_not_waited_for() -> None:
    """Two workers take 4 steps and the third 8; then all meet, and each takes 2 more."""

    async def life(worker: Worker) -> None:
        for step in range(8 if worker.rank == 2 else 4):
            await worker.step(step)
        await worker.driver.settle()
        await worker.clock.comm(worker.rank).all_gather(torch.zeros(1))
        await worker.step(9)
        await worker.step(10)

    for worker in lives(tw.Method(Server(rule=Backup(1)), tw.Sync(staleness=None)), life):
        figures = worker.driver.schedule.report()
        assert figures["pushes"] == 4 + 4 + 8 + 6
        # Of two each until the first two meet, then of the third alone; theirs are old when they are back, and are
        # dropped; the third waits for one of them, and is alone again when they have ended.
        assert figures["updates"] == 4 + 4 + 1 + 1
        assert figures["used"] == 2 * 4 + 4 + 2 + 1


def test_whoever_is_back_counts_again() -> None:
    """The slow worker steps out once; while it trains, nobody is further ahead than s."""
    ends: dict[int, float] = {}

    async def life(worker: Worker) -> None:
        for step in range(9):
            if worker.rank == 1 and step == 2:
                await worker.driver.settle()
            await worker.step(step)
        ends[worker.rank] = worker.clock.now

    lives(tw.Method(Server(rule=Ssp()), tw.Sync(staleness=1)), life, stragglers=Constant({1: 3.0}))
    assert ends[0] == pytest.approx(0.1 + 0.3 * 7, abs=0.35)  # alone it would take 0.9 s


def test_a_meeting_of_all_changes_nothing() -> None:
    """Whoever is first after it waits for the others."""

    async def life(worker: Worker) -> None:
        for step in range(6):
            if step == 3:
                await worker.driver.settle()
                await worker.clock.comm(worker.rank).all_gather(torch.zeros(1))
            await worker.step(step)

    met = lives(tw.Method(Server(rule=Backup(0)), tw.Sync(staleness=None)), life, stragglers=Constant({1: 2.0}))
    assert torch.equal(torch.cat([p.detach() for p in met[0].model.parameters()]), model(run(Backup(0), ALL, 6)))
