"""Replicas that kill themselves at the worst moments, for tests of membership."""

from __future__ import annotations

import os
import signal

from thinwire.core.comm import Comm, to_tensor
from thinwire.engine import hand_on, roll


def fall(*_: object) -> None:
    """As kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def falls(replica: int, life: int) -> None:
    """Replica 2 falls in its third round, when one of the others has heard it in the ballot and the other has not;
    when it is back it falls in a round before it has sent anything; and in its third life while it is handed a state.
    """
    if replica != 2 or life > 2:
        return
    ballots = 0
    sound = roll.ballot

    async def half(comm: Comm) -> None:
        nonlocal ballots
        ballots += 1
        if ballots < 4:
            await sound(comm)
            return
        first = next(other for other in range(comm.size) if other != comm.rank)
        await comm.swap(to_tensor(b"\1"), [first], sources=[], equal=True)
        fall()

    async def before(comm: Comm) -> None:
        nonlocal ballots
        ballots += 1
        if ballots == 3:
            fall()
        await sound(comm)

    if life < 2:
        roll.ballot = (half, before)[life]
    else:
        hand_on.unpacked = fall  # type: ignore[assignment]  # it does not return
