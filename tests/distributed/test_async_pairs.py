"""AD-PSGD's threads over real processes: no deadlock, no waiting for the slow, deaths, staleness."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import PATIENCE, endings, lent, on_ranks
from torch import Tensor

from thinwire import Channel, Layout
from thinwire.compressors import get as compressor
from thinwire.engine.beside import Threads
from thinwire.engine.groups import Wanted
from thinwire.engine.neighbours import Neighbours
from thinwire.engine.shared import Shared
from thinwire.exchange import Pairs
from thinwire.topology import Star, Topology

D = 200
RANKS = 4


class Blocking:
    """`Neighbours` for a training loop in a thread: what its coroutines wait for is waited for here."""

    def __init__(self, neighbours: Neighbours, threads: Threads) -> None:
        self._neighbours, self._threads = neighbours, threads
        self.active = neighbours.active

    def stepped(self, update: Tensor) -> Tensor:
        return _run(self._neighbours.stepped(update))

    def stop(self, timeout: float | None = None) -> Tensor:
        return _run(self._neighbours.stop(timeout))

    def report(self) -> dict[str, float]:
        sent = [traffic.bytes for traffic in self._threads.traffic]
        messages = [traffic.messages for traffic in self._threads.traffic]
        return {**self._neighbours.report(), "bytes_sent": sum(sent), "messages": sum(messages)}


def _run(coroutine: Coroutine[Any, Any, Tensor]) -> Tensor:
    answer: Any = None
    while True:
        try:
            request = coroutine.send(answer)
        except StopIteration as done:
            result: Tensor = done.value
            return result
        answer = request.answer()


def begin(
    x: Tensor,
    pairs: Pairs | None = None,
    timeout: float = 30.0 * PATIENCE,
    gone: set[int] | None = None,
    beat: float | None = None,
    pace: int = 1,
) -> Blocking:
    exchange, size = pairs or Pairs(), dist.get_world_size()
    edges = exchange.edges(size)
    mine = sum(dist.get_rank() in edge for edge in edges)
    threads = Threads(lent(Wanted(1, tuple(edges), timeout, "gloo")), gone, timeout, mine)
    threads.beat = beat or threads.beat
    made = Neighbours(exchange, threads, Shared(x), Layout.flat(x.numel()), seed=7, pace=pace)
    made.start()
    return Blocking(made, threads)


def wander(pairs: Pairs, steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Take random steps with random sleeps; returns the start plus all steps, the last model, and the figures."""
    rank = dist.get_rank()
    generator, sleeps = torch.Generator().manual_seed(rank), random.Random(rank)
    total = torch.full((D,), float(rank), dtype=torch.float64)
    shared = begin(total.to(dtype), pairs)
    for _ in range(steps):
        if sleeps.random() < 0.02:
            time.sleep(0.01 * sleeps.random())
        update = 0.01 * torch.randn(D, generator=generator)
        total += update
        model = shared.stepped(update.to(dtype))
        assert model.shape == (D,)
        assert model.dtype == dtype
    return total, shared.stop(), shared.report()


@pytest.mark.timeout(300)
def test_hundreds_of_exchanges_without_a_deadlock(long: bool) -> None:
    """Three hundred, or ten thousand with --long. In float64 the sum of the models is kept to its rounding."""
    steps = 5000 if long else 150  # in each of which ranks 1 and 3 ask
    ended = on_ranks(wander, RANKS, Pairs(), steps, torch.float64, timeout=280)
    given, got = sum(total for total, _, _ in ended), sum(model for _, model, _ in ended)
    assert float((got - given).abs().max()) < 1e-11
    exchanges = [figures["exchanges"] for _, _, figures in ended]
    assert exchanges[1] == exchanges[3] == steps
    assert exchanges[0] + exchanges[2] == 2 * steps
    assert min(exchanges) > 0.8 * steps  # both neighbours are asked


@pytest.mark.parametrize("compressed", ["identity", "qsgd:bits=8", "topk:ratio=0.1"])
def test_float32_models_keep_their_sum_to_rounding(compressed: str) -> None:
    """A star, where three threads answer at the hub; payloads of one size, and of any size."""
    ended = on_ranks(wander, RANKS, Pairs(Channel(compressor(compressed)), Star()), 50, torch.float32)
    given, got = sum(total for total, _, _ in ended), sum(model.double() for _, model, _ in ended)
    assert float((got - given).abs().max()) < 2e-4
    assert ended[0][2]["exchanges"] == 150


def until_death(victim: int, drop: bool, folder: str) -> None:
    """One rank kills itself in its fifth step; the others take steps for three seconds."""
    rank = dist.get_rank()
    gone: set[int] | None = set() if drop else None
    shared = begin(torch.full((D,), float(rank)), gone=gone)
    until = time.monotonic() + 3 * PATIENCE
    step = 0
    while time.monotonic() < until:
        if rank == victim and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        shared.stepped(torch.zeros(D))
        step += 1
    model = shared.stop()
    Path(folder, str(rank)).write_text(f"{sorted(gone or [])} {float(model.max() - model.min())} {float(model[0])}")


def until_both_know(victim: int, folder: str) -> None:
    """Whoever hears of the death first stays until the other neighbour has, or that one might hear of it, instead."""
    store = dist.distributed_c10d._get_default_store()
    try:
        until_death(victim, False, folder)
    finally:
        if (dist.get_rank() - victim) % 2:
            patience = time.monotonic() + 15 * PATIENCE
            store.add("told", 1)
            while store.add("told", 0) < 2 and time.monotonic() < patience:
                time.sleep(0.02)


@pytest.mark.parametrize("victim", [0, 1], ids=["passive", "active"])
def test_a_death_is_told_with_its_edge(victim: int, tmp_path: Path) -> None:
    """Of a ring of four, the two neighbours name the edge, one that asks at its next word; the third hears from them
    when they end.
    """
    begun = time.monotonic()
    ended = endings(until_both_know, RANKS, victim, str(tmp_path), grace=20.0)
    assert time.monotonic() - begun < 25 * PATIENCE  # the groups' time-out is 30 s
    assert ended[victim].exitcode == -signal.SIGKILL
    for rank in ((victim + 1) % RANKS, (victim - 1) % RANKS):
        assert f"PeerError: the edge {rank}-{victim} broke" in ended[rank].error
    assert f"PeerError: the edge {(victim + 2) % RANKS}-" in ended[(victim + 2) % RANKS].error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("victim", [0, 1], ids=["passive", "active"])
def test_with_drop_the_others_go_on(victim: int, tmp_path: Path) -> None:
    """The other three form a path, and come to agree."""
    ended = endings(until_death, RANKS, victim, True, str(tmp_path))
    assert ended[victim].exitcode == -signal.SIGKILL
    told = {int(file.name): file.read_text().rsplit(" ", 2) for file in tmp_path.iterdir()}
    left = [rank for rank in range(RANKS) if rank != victim]
    assert sorted(told) == left, [one.error for one in ended]
    for rank in left:
        assert told[rank][0] == ("[]" if rank == (victim + 2) % RANKS else f"[{victim}]")
        assert float(told[rank][1]) == 0
    models = [float(told[rank][2]) for rank in left]
    assert max(models) - min(models) < 1e-3


def descend(topology: Topology, steps: int, pace: int) -> tuple[Tensor, dict[str, float]]:
    """f_i = |x - i|^2 / 2, with gradients that take 2 ms and a falling lr; no rank is ever ten steps ahead."""
    rank = dist.get_rank()
    shared = begin(torch.zeros(D), Pairs(topology=topology), pace=pace)
    x = torch.zeros(D)
    for step in range(steps):
        if step % 10 == 0:
            dist.barrier()
        time.sleep(0.002)
        x = shared.stepped(-0.1 / (1 + step / 20) * (x - rank))
    return shared.stop(), shared.report()


def test_staleness_is_recorded_and_training_converges() -> None:
    ended = on_ranks(descend, RANKS, Star(), steps := 120, 1)
    models = torch.stack([model for model, _ in ended])
    assert float((models.mean(0) - 1.5).abs().max()) < 0.1  # the mean of 0, 1, 2, 3
    assert float((models.amax(0) - models.amin(0)).max()) < 0.5
    hub, *leaves = [figures for _, figures in ended]
    assert hub["exchanges"] == 3 * steps
    assert 2 < hub["staleness_mean"] <= 3  # three ask while it computes
    assert hub["staleness_max"] >= 2
    for leaf in leaves:
        assert leaf["exchanges"] == steps
        assert 0 < leaf["staleness_mean"] <= 1
        assert leaf["staleness_max"] == 1  # its own exchange, one per step
        assert leaf["bytes_sent"] == steps * (16 + 32 + 4 * D) + 16  # size, header and model; a size at the end
    assert hub["bytes_sent"] == 3 * steps * (16 + 32 + 4 * D)


def test_pace_is_steps_an_exchange() -> None:
    ended = on_ranks(descend, 2, Star(), 40, 4)
    assert [figures["exchanges"] for _, figures in ended] == [10, 10]


def test_a_rank_alone_has_no_one_to_ask() -> None:
    ((model, figures),) = on_ranks(descend, 1, Star(), 5, 1)
    assert torch.equal(model, torch.zeros(D))
    assert figures["exchanges"] == figures["messages"] == 0


def dawdle() -> tuple[float, str]:
    """Take a step that lasts longer than the time-out; returns the messages, and the error for a NaN."""
    shared = begin(torch.zeros(D), timeout=2.0, beat=0.5)
    for step in range(2):
        time.sleep(4.0 if shared.active and step == 0 else 0.1)
        shared.stepped(torch.zeros(D))
    try:
        shared.stepped(torch.full((D,), torch.nan))
        told = ""
    except FloatingPointError as error:
        told = str(error)
    shared.stop()
    return shared.report()["messages"], told


def test_a_rank_that_computes_longer_than_the_time_out_is_not_taken_for_dead() -> None:
    (answered, told), (asked, _) = on_ranks(dawdle, 2)
    assert answered == 2 * 2  # a size and a model for each of two steps
    assert asked > 2 * 2 + 1 + 5  # the same, the end, and the bytes in between
    assert told == "step 2 of rank 0 is not finite"


def hang() -> str:
    """Rank 1 does not stop until rank 0 has given up waiting for it."""
    shared = begin(torch.zeros(D))
    if dist.get_rank() == 1:
        shared.stepped(torch.zeros(D))
        dist.barrier()
        shared.stop()
        return ""
    try:
        shared.stop(timeout=0.5)
        told = ""
    except RuntimeError as error:
        told = str(error)
    dist.barrier()
    shared.stop()
    return told


def test_stop_has_a_time_out() -> None:
    assert on_ranks(hang, 2)[0] == "still open 0.5 s after the end of training: the edges 0-1"
