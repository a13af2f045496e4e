"""Turns: the schedules of thinwire.engine.schedules with shapes alone. A turn is one step of one worker's training.

gradients   launched as backward fills the buckets, and waited for at its end, or `staleness` steps later
models      after every `every`-th step, and waited for at once; or beside the last backward pass of a round
ways        for an outer optimizer: by fragments, and waited for at once or `delay` steps later
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, final

from thinwire.engine.stats import SAMPLE_EVERY
from thinwire.sim.script import AVERAGE, START, Piece
from thinwire.sync.outer import Seen

if TYPE_CHECKING:
    from thinwire.comm.tasks import Task
    from thinwire.core.method import Method
    from thinwire.sim.player import Player
    from thinwire.sync.delta import Delta

Open = list["Task[None]"]


class Turns(Protocol):
    """The steps of one worker."""

    async def step(self, number: int, factor: float) -> None:
        """One step, whose computing takes `factor` times as long as the load says."""

    async def end(self) -> None:
        """Training ends."""


def turns(method: Method, player: Player) -> Turns:
    """Those that `thinwire.engine.schedules.choose` would choose."""
    sync, exchange = method.sync, method.exchange
    if exchange.served or (sync.of.models and sync.staleness is None):
        raise ValueError(
            f"{method.id} has no rounds that ranks have in common, and shapes alone do not say what it sends when; "
            f'simulate it with numbers: write tw.simulate(tw.method("{method.id}"), "digits", workers=16)'
        )
    if sync.of.outer_loop:
        return Ways(player, method)
    if sync.of.models:
        return Models(player, method)
    return Gradients(player, sync.staleness or 0)


@final
class Gradients:
    """Gradients and their results, which may be late."""

    def __init__(self, player: Player, staleness: int) -> None:
        self._player, self._staleness = player, staleness
        self._open: deque[Open] = deque()

    async def step(self, number: int, factor: float) -> None:
        """Launch what backward fills; wait for what was launched so many steps ago."""
        player, load, at = self._player, self._player.stage.load, 0.0
        made: Open = []
        for bucket, time in enumerate(player.script.launches):
            await player.compute(factor * (time - at), number)
            made += player.launch(_of_bucket(player, bucket))
            at = time
        await player.compute(factor * (load.computed - at), number)
        player.round += 1
        self._open.append(made)
        while len(self._open) > self._staleness:
            await _all(player, self._open.popleft(), number)
        await player.compute(factor * load.update, number, "update")

    async def end(self) -> None:
        """What is under way is left alone."""


@final
class Models:
    """Models after their local steps."""

    def __init__(self, player: Player, method: Method) -> None:
        self._player, self._every, self._early = player, method.sync.every, method.exchange.before_step
        self._gossips = method.exchange.scope == "neighbours"

    async def step(self, number: int, factor: float) -> None:
        """Compute and step; exchange what came of it if it is time to, or wait for what was launched before."""
        player, load = self._player, self._player.stage.load
        due = (number + 1) % self._every == 0
        first = player.script.first_gradient if self._early and due else load.computed
        await player.compute(factor * first, number)
        made = player.launch(range(len(player.script.pieces))) if self._early and due else []
        await player.compute(factor * (load.computed - first), number)
        await player.compute(factor * load.update, number, "update")
        if due:
            await _all(player, made or player.launch(range(len(player.script.pieces))), number)
            player.round += 1
            if self._gossips and player.round % SAMPLE_EVERY == 0:
                await player.alone(player.script.measure)

    async def end(self) -> None:
        """Nothing is under way."""


@final
class Calendar:
    """Which fragments are launched after which step, the same for all ranks; a loss is taken not to change."""

    def __init__(self, of: Delta, every: int) -> None:
        self._period, self._every, self._launched = of.period, every, 0
        first = of.period.first(every)
        self._steps = [first * (number + 1) // of.fragments for number in range(of.fragments)]

    def due(self, now: int) -> list[int]:
        """After `now` steps."""
        due = [fragment for fragment, step in enumerate(self._steps) if step <= now]
        if due:
            ahead = self._period.ahead(Seen(self._every, self._launched, now, 1.0, 1.0, 1.0, 1.0))
            self._launched += len(due)
            for fragment in due:
                self._steps[fragment] = now + ahead
        return due


@final
class Ways:
    """Ways of local steps, for an outer optimizer; fragments of the model take turns."""

    def __init__(self, player: Player, method: Method) -> None:
        self._player = player
        self._of = of = cast("Delta", method.sync.of)
        self._calendar = Calendar(of, method.sync.every)
        self._begun = method.exchange.scope == "neighbours"  # models of neighbours differ, and are not compared
        self._used: dict[int, tuple[int, Open]] = {}  # by fragment: the step in which it is used, and its pieces

    async def step(self, number: int, factor: float) -> None:
        """Compute and step; then use what is due, and launch what is due."""
        player, of = self._player, self._of
        await player.compute(factor * player.stage.load.computed, number)
        await player.compute(factor * player.stage.load.update, number, "update")
        now = number + 1
        due = self._calendar.due(now)
        for fragment, (step, _) in sorted(self._used.items()):
            if step <= now or fragment in due:
                await self._use(fragment, number)
        if due:
            await self._begin()
            if of.period.hears_loss:
                await player.alone(Piece(-1, -1, (AVERAGE,)))
            for fragment in due:
                self._launch(fragment, now)
        if not of.delay:
            for fragment in due:
                await self._use(fragment, number)

    async def end(self) -> None:
        """What is under way is used, and a period that waited for this has its round."""
        for fragment in sorted(self._used):
            await self._use(fragment, -1)
        if self._of.period.at_end:
            await self._begin()
            for fragment in range(self._of.fragments):
                self._launch(fragment, 0)
            for fragment in range(self._of.fragments):
                await self._use(fragment, -1)

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            await self._player.alone(Piece(-1, -1, (START,)))

    def _launch(self, fragment: int, now: int) -> None:
        player = self._player
        self._used[fragment] = now + self._of.delay, player.launch(player.script.of(fragment))
        player.round += 1

    async def _use(self, fragment: int, number: int) -> None:
        await _all(self._player, self._used.pop(fragment)[1], number)


def _of_bucket(player: Player, bucket: int) -> list[int]:
    return [at for at, piece in enumerate(player.script.pieces) if piece.bucket == bucket]


async def _all(player: Player, made: Sequence[Task[Any]], number: int) -> None:
    """Wait for pieces, one after the other."""
    start = player.clock.now
    for piece in made:
        await piece
    player.mark("wait", start, step=number)
