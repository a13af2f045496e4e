"""Quorum: the outer loop where ranks come and go. A round needs a quorum, not everybody.

    assemble    a crew is made of those who are there (`engine/crew.py`)
    roll        they say which rounds they have taken, and how many samples they have seen (`engine/roll.py`)
    hand on     who has just come, or was left out, gets the state of a rank that goes on (`engine/hand_on.py`)
    exchange    as in `schedules/outer.py`, each way with its weight
    ballot      everybody says that it has all it needs, and then that it has heard that from all
    take        the outer step, on each rank by itself

If a rank is lost before the first ballot has ended, nobody has taken the round. Nothing has changed but the memories,
which are put back, and the round is taken again by those who are left: their local steps are not lost. If it is lost
in the second, some may have taken the round, and all others are prepared for it: they complete it with the next crew.
So a round that one rank has taken is taken by all who are left, unless none of them is in the next crew.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch

from thinwire.core.errors import PeerError
from thinwire.engine import hand_on, roll
from thinwire.engine.events import StepBegins, StepEnds
from thinwire.engine.pieces import assembled, covered, held, pieces, stored
from thinwire.engine.schedules.base import CHANGED, Schedule
from thinwire.engine.schedules.outer import Outer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from thinwire.engine.averages import Means
    from thinwire.engine.crew import Crew, Crews
    from thinwire.engine.loop import Loop

TRIES = 20  # failures of one round, after which something else must be wrong
log = logging.getLogger("thinwire")


@final
class Before:
    """What a round changes before its ballot."""

    def __init__(self, outer: Outer) -> None:
        loop = outer.loop
        self._outer, self._kept, self._round = outer, deepcopy(loop.kept), loop.runner.round
        self._states = [
            (chunk, chunk.lr, {name: tensor.clone() for name, tensor in chunk.state.items()})
            for bucket in loop.buckets
            for chunk in bucket.chunks
        ]

    def restore(self) -> None:
        """As if it had not been launched."""
        loop = self._outer.loop
        self._outer.give_up()
        loop.kept, loop.runner.round = self._kept, self._round
        for chunk, lr, state in self._states:
            chunk.lr, chunk.state = lr, state


class Prepared(NamedTuple):
    """A round that is complete here but for its outer step; what has arrived lies in the buffers."""

    lineage: str
    arrived: list[tuple[int, Means]]


@final
class Quorum(Schedule):
    """An outer loop among the crews of `crews`; `fields` must be the same on all ranks."""

    looks_at_gradients = True

    def __init__(self, loop: Loop, model: nn.Module, crews: Crews, fields: Mapping[str, int]) -> None:
        super().__init__(loop)
        self.outer = Outer(loop)
        self._model, self._crews, self._fields = model, crews, fields
        self._crew: Crew | None = None
        self._fresh = True  # no step has been taken since `begin`
        self._lineage = ""
        self.samples = -1  # since the last round
        self._taken = self._again = self._healed = 0
        self._before: Before | None = None  # what is put back if the round under way fails
        self._prepared: Prepared | None = None  # a round that others may have taken

    def begin(self) -> None:
        """The anchor is this rank's own model, until it has met others."""
        self.outer.begin()
        self.outer.fresh, self._fresh = False, True  # others may have the same anchor before the first step

    async def run(self) -> None:
        """Count steps outside no_sync blocks, and take the rounds that are due."""
        loop = self.loop
        if not self._lineage:
            await self._round()
        while True:
            await loop.next(StepBegins)
            if self._fresh and self.outer.anchors.left:
                raise ValueError(CHANGED.format(kept="the anchor", call="tw.integrations.torchft.outer"))
            self._fresh = False
            loop.skipping.look()
            await loop.next(StepEnds)
            loop.kept["step"] += 1
            if not loop.quiet() and self.outer.due():
                await self._round()

    def anchor(self) -> dict[str, Tensor]:
        """A copy."""
        return self.outer.anchor()

    def report(self) -> dict[str, float]:
        """With the rounds of this lineage, how often one was taken again here, and how often state was taken over."""
        figures = {"rounds_taken": self._taken, "rounds_again": self._again, "healed": self._healed}
        return {**self.outer.report(), **figures, "crew": self.loop.runner.comm.size}

    async def save(self) -> dict[str, Any]:
        """What is handed on, and what is not: the memories, and how far this rank has gone from the anchor."""
        await self.outer.save()  # the model is beside the anchor then
        kept = stored(pieces(self.loop.runner.comm, self.loop.buckets))
        return deepcopy({**self._state(), "samples": self.samples, "tensors": kept})

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on from there; of the memories, with what still fits the crew. What others have is seen in a round."""
        loop, own, self._fresh = self.loop, held(saved["tensors"]), False
        self._take_over(saved)
        self.samples = saved["samples"]
        for piece in pieces(loop.runner.comm, loop.buckets):
            if piece.leads:
                piece.data.copy_(assembled([own], piece)) if covered(own, piece) else piece.data.fill_(
                    piece.slot.fill
                )
        for bucket in loop.buckets:
            bucket.flat.copy_(bucket.extra["model"])
        loop.take()

    async def _round(self) -> None:
        for _ in range(TRIES):
            try:
                await self._try()
            except PeerError as error:
                log.warning("round %d is taken again: %s", self._taken, error)
                self._again += 1
                self._crews.dissolve(error)  # its threads have ended then, and change no memory any more
                self._crew = None
                if self._before is not None and self._prepared is None:
                    self._before.restore()
                    self._before = None
            else:
                return
        raise PeerError(f"round {self._taken} has failed {TRIES} times, each time with another crew")

    async def _try(self) -> None:
        """Take a round, all of it or nothing."""
        loop, outer = self.loop, self.outer
        self._board(self._crews.assemble())
        heard = await loop.transport.launch(partial(roll.call, mine=self._said()))
        self._check(heard)
        if self._prepared is not None and heard.completes(loop.runner.comm.rank):
            self._complete(self._prepared)
        await self._hand_on(heard)
        if heard.due:
            self._before = Before(outer)
            outer.weight = heard.weight(loop.runner.comm.rank)
            due = outer.due()
            await outer.launch(due)
            arrived = [(number, await outer.arrive(number)) for number in due]
            await loop.transport.launch(roll.ballot)
            self._prepared = Prepared(heard.lineage, arrived)
            await loop.transport.launch(roll.ballot)
            self._complete(self._prepared)
        else:
            await loop.transport.launch(roll.ballot)
            self._lineage = heard.lineage
        self.samples = -1
        self._crews.settled(self._taken)

    def _said(self) -> roll.Said:
        lineage, rounds = self._lineage, self._taken
        if self._prepared is not None:
            lineage, rounds = self._prepared.lineage, rounds + 1
        prepared = self._prepared is not None
        due = bool(lineage and self.outer.due()) and not prepared
        return roll.Said(lineage, rounds, prepared, due, self.samples, secrets.token_hex(8), dict(self._fields))

    def _complete(self, prepared: Prepared) -> None:
        """Take the outer step."""
        for number, means in prepared.arrived:
            self.outer.take(number, means)
        self._lineage, self._taken = prepared.lineage, self._taken + 1
        self._prepared = self._before = None

    def _board(self, crew: Crew) -> None:
        """Work with this crew; what a memory knows of other ranks it knew of the last crew, and is forgotten."""
        if crew is self._crew:
            return
        runner = self.loop.runner
        self._crew = runner.transport = crew
        runner.telemetry.move(crew.traffic, crew.comm.size)
        self.loop.method.exchange.check(crew.comm.size)
        for bucket in self.loop.buckets:
            for chunk in bucket.chunks:
                slots = bucket.exchange.slots(chunk.layout, crew.comm)
                fresh = bucket.exchange.init(chunk.layout, crew.comm, bucket.flat.device)
                keep = not any(slot.replicated or slot.on_resize == "reset" for slot in slots.values())
                for name, tensor in fresh.items() if keep else ():
                    whole = bucket.exchange.span(name, chunk.layout, crew.comm) == (0, chunk.layout.numel)
                    if whole and name in chunk.state:
                        tensor.copy_(chunk.state[name])
                chunk.state = fresh

    def _check(self, heard: roll.Roll) -> None:
        """A rank that was started with something else must not take part; the others go on without it."""
        rank = self.loop.runner.comm.rank
        if field := heard.differs(rank):
            raise ValueError(f"this rank differs from the others in {field}; start it as they were started")
        for other in range(len(heard.said)):
            if field := heard.differs(other):
                raise PeerError(f"rank {other} differs from the others in {field}", (other,))

    async def _hand_on(self, heard: roll.Roll) -> None:
        loop, rank = self.loop, self.loop.runner.comm.rank
        to = [one for one in heard.newcomers if heard.giver(one) == rank]
        if rank in heard.newcomers:
            giver = heard.giver(rank)
            data = await loop.transport.launch(lambda comm: hand_on.received(comm, giver))
            self._take_over(hand_on.unpacked(data))
            self.samples = 0  # it stands where the round began
            if heard.said[rank].lineage != heard.said[heard.leader].lineage:
                self._forget()
            self.outer.give_up()
            self._prepared = self._before = None
            self._healed += 1
        elif to:
            data = hand_on.packed(self._state())
            await loop.transport.launch(lambda comm: hand_on.sent(comm, to, data))

    def _state(self) -> dict[str, Any]:
        return hand_on.collected(self.outer, self._model, {"lineage": self._lineage, "taken": self._taken})

    def _take_over(self, state: Mapping[str, Any]) -> None:
        hand_on.taken(state, self.outer, self._model)
        self._lineage, self._taken = state["lineage"], state["taken"]

    def _forget(self) -> None:
        """Start without memories: what this rank held back belongs to another lineage."""
        for bucket in self.loop.buckets:
            for chunk in bucket.chunks:
                chunk.state = bucket.exchange.init(chunk.layout, self.loop.runner.comm, bucket.flat.device)
