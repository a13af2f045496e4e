"""The agreement: several rounds in one message say what each would say in its own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import torch

from thinwire.comm.clock import VirtualClock
from thinwire.engine.agreement import GRADIENT, RESULT, Agreed, agree
from thinwire.engine.handover import Handover
from thinwire.engine.round import Round
from thinwire.kernels.base import TAME

RANKS = 3


def round_of(x: list[float], used: bytes, lr: float, tame: bool, since: int = 0, *, idle: bool = False) -> Round:
    vector = torch.tensor(x)
    made = SimpleNamespace(x=vector, used=used, lr=lr, tame=tame, since=since, agreed=None, idle=idle)
    made.limit, made.heavy = TAME, False
    made.handover = Handover(vector.device)
    return cast(Round, made)


def rounds(rank: int) -> list[Round]:
    bad = math.inf if rank == 1 else 1.0
    return [
        round_of([1.0, 2.0], bytes((GRADIENT * (rank == 0), RESULT)), 0.1, tame=True),
        round_of([bad], bytes((GRADIENT,)), 0.1, tame=False),  # as of a gradient in 16 bits: nobody has looked
        round_of([], b"\0", 0.1, tame=False),
        round_of([3.0], bytes((GRADIENT,)), 0.2 if rank == 2 else 0.1, tame=True),
        round_of([bad], bytes((GRADIENT,)), 0.1, tame=rank != 1),
        round_of([3e38, 3e38], bytes((GRADIENT,)), 0.1, tame=False),  # the sum is not finite, and each of them is
        round_of([3.0], bytes((GRADIENT,)), 0.1, tame=True, since=int(rank == 2)),
        round_of(
            [3.0], bytes((GRADIENT * (rank > 0),)), 0.1 / (1 + rank // 2), tame=True, since=rank, idle=rank != 1
        ),
        round_of([3.0], bytes((GRADIENT,)), 0.1, tame=True, idle=True),
    ]


def agreed(*, together: bool) -> tuple[list[list[Agreed]], int, int]:
    """What each rank finds out, and the bytes and messages of rank 0."""
    clock = VirtualClock(RANKS)
    every = [rounds(rank) for rank in range(RANKS)]

    async def life(rank: int) -> None:
        if together:
            await agree(clock.comm(rank), every[rank])
        else:
            for going in every[rank]:
                await agree(clock.comm(rank), [going])

    for rank in range(RANKS):
        clock.spawn(rank, life(rank))
    clock.run()
    sent: Any = clock.traffic[0]
    return [[going.agreed for going in mine] for mine in every], sent.bytes, sent.messages


def test_many_rounds_agree_in_one_message_as_each_would_alone() -> None:
    found, _, messages = agreed(together=True)
    apart, _, more = agreed(together=False)
    assert found == apart
    assert more == len(rounds(0)) * messages
    assert found[0] == found[1] == found[2]


def test_every_round_has_its_own_verdict() -> None:
    first, unseen, empty, other_lr, seen, large, behind, some, nobody = agreed(together=True)[0][0]
    assert first == Agreed(0, same_lr=True, used=(True, True), again=(False, True))  # rank 0 alone has the gradient
    assert unseen.broken == seen.broken == 2  # rank 1
    assert empty == Agreed(0, same_lr=True, used=(False,), again=(True,), news=False)
    assert (other_lr.finite, other_lr.same_lr, other_lr.worth_sending) == (True, False, False)
    assert (large.finite, large.large, seen.large, first.large) == (True, True, False, False)
    assert (behind.same_lr, behind.in_step, behind.worth_sending) == (True, False, False)
    assert some == Agreed(
        used=(True,), again=(False,)
    )  # ranks that have ended say nothing of learning rates or steps
    assert math.isclose(some.lr, 0.1, rel_tol=1e-12)
    assert (nobody.trains, nobody.finite, nobody.worth_sending) == (False, True, False)
    assert all(one.in_step for one in (first, unseen, empty, other_lr, seen, large))
