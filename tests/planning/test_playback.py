"""What was recorded among many ranks is played by one alone, in lanes; and what a loop waits does not count."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import thinwire as tw
from thinwire.core.comm import Comm
from thinwire.engine.plan import Item, Parcel, plan_of
from thinwire.planning.alone import ENGINE, overheads
from thinwire.planning.company import Company
from thinwire.planning.computing import measure
from thinwire.planning.device import Host
from thinwire.planning.pause import SECONDS, Idle, Pause
from thinwire.planning.playback import DivergedError, Player, play, timed
from thinwire.planning.record import Recorded, record
from thinwire.planning.script import After, Ask, Script, Work

CPU = torch.device("cpu")
ITEMS = [Item(f"{at}.weight", (128, 128), CPU) for at in range(3)]
METHODS = (
    "sgd",
    "bf16",
    "qsgd:bits=4",
    "ecq-sgd",
    "ef-signsgd",
    "topk",
    "powersgd:rank=2",
    "d-psgd",
    "laq",
)


def parcel(method: tw.Method) -> Parcel:
    return max(plan_of(method, ITEMS, None, ()).parcels, key=lambda one: one.layout.numel)


@pytest.mark.parametrize("text", METHODS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_one_rank_plays_what_it_did_among_many(text: str, ranks: int) -> None:
    method, found = tw.method(text), list[tuple[Recorded, list[list[float]]]]()
    bucket = parcel(method)
    grad = torch.randn(bucket.layout.numel, generator=torch.Generator().manual_seed(0))

    def again(once: Recorded, n: int) -> Recorded:
        found.append((once, play(method, bucket, grad, n, once.tape, 3).rounds))
        return once

    record(method, bucket, grad, ranks, 1, again=again)
    ((once, rounds),) = found
    asks = sum(isinstance(part, Ask) for script in once.scripts for part in script.parts)
    assert [len(one) for one in rounds] == 3 * [asks + len(once.scripts)]
    total = timed(once.scripts, rounds[-1])
    assert [script.shape for script in total] == [script.shape for script in once.scripts]
    assert sum(script.seconds for script in total) == pytest.approx(sum(rounds[-1]))


def test_what_goes_another_way_alone_is_not_played() -> None:
    """Where values go depends on what others sent in the round before, which the tape repeats."""
    method = tw.method("oktopk")
    bucket = parcel(method)
    grad = torch.randn(bucket.layout.numel, generator=torch.Generator().manual_seed(0))

    def again(once: Recorded, n: int) -> Recorded:
        assert not play(method, bucket, grad, n, once.tape, 3).rounds
        return once

    record(method, bucket, grad, 4, 1, again=again)


@pytest.mark.parametrize(
    ("tape", "why"),
    [
        ([torch.zeros(2), torch.zeros(2)], "ended after 1 of 2 answers"),
        ([[torch.zeros(2)]], "something else on the tape"),
        ([torch.zeros(3)], "something else on the tape"),
        ([], "after 0 answers"),
    ],
)
def test_a_tape_that_does_not_fit_is_noticed(tape: list[Any], why: str) -> None:
    player = Player(2)

    async def work(comm: Comm) -> None:
        await comm.all_reduce(torch.ones(2))

    with pytest.raises(DivergedError, match=why):
        player.play(work(player.comm), tape, [])
    player.play(work(player.comm), [torch.zeros(2)], [])


def test_chunks_and_copies_have_their_tapes() -> None:
    method = replace(tw.methods.qsgd(), overlap=tw.Overlap(bucket_mb=1, chunk_mb=0.03))
    bucket = parcel(method)
    grad = torch.randn(bucket.layout.numel)

    def again(once: Recorded, n: int) -> Recorded:
        one, two = (len(play(method, bucket, grad, n, once.tape, 2, copies=copies).rounds[0]) for copies in (1, 2))
        assert two == 2 * one > 10
        return once

    record(method, bucket, grad, 2, 1, again=again)


def test_seconds_go_to_the_last_computing_before_each_message() -> None:
    scripts = (Script((Work(1.0), After(0), Work(1.0), Ask("gather", 1), Work(1.0))), Script((Work(1.0),)))
    first, second = timed(scripts, [0.5, 0.25, 0.125])
    assert [part.seconds for part in first.parts if isinstance(part, Work)] == [0.0, 0.5, 0.25]
    assert second.seconds == 0.125


def test_a_wait_is_made_and_not_counted() -> None:
    net = nn.Linear(8, 8)

    def makes(one: nn.Module) -> tuple[tw.planning.computing.Step, SGD]:
        optimizer = SGD(one.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            torch.autograd.backward(one(torch.ones(1, 8)).sum())
            optimizer.step()

        return step, optimizer

    start = time.perf_counter()
    found = measure(copy.deepcopy(net), makes, company=Company(), device=Host(), steps=5)
    assert time.perf_counter() - start > 5 * SECONDS
    assert found.step < SECONDS
    assert overheads(net, makes, Company(), ["ddp"])[ENGINE] < SECONDS


def test_a_pause_says_once_what_it_took() -> None:
    pause = Pause(0.001)
    pause()
    assert pause.taken() >= 0.001
    assert pause.taken() == 0.0
    assert Idle().plain == Idle()
