"""Models: after every `every`-th optimizer step the parameters are exchanged, and the results take their place.

    x        the model before the first local step of a round    extra["before"]
    x_half   the model after the last one                        what is exchanged
    x        the result                                          where training goes on

Gradients are not exchanged. An exchange that mixes models before their step is launched by the first gradient of
the last backward pass of a round, and the step's update is added to its result. One that pulls (ADMM) adds its terms
to the gradients of the local steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.engine.damage import check_counts
from thinwire.engine.events import Ends, Gradient, Idle, Settle, StepBegins, StepEnds
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.schedules.words import Word, forget, say
from thinwire.engine.stats import SAMPLE_EVERY

if TYPE_CHECKING:
    from thinwire.engine.loop import Loop
    from thinwire.engine.round import Round


@final
class Models(Schedule):
    """`kept["local"]` counts the steps since the last exchange."""

    looks_at_gradients = True
    apart = True

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._exchange, self._every = loop.method.exchange, loop.method.sync.every
        self.hears_gradients = self._exchange.before_step
        self._fresh = True  # no step has been taken since `begin`
        self._said: Awaitable[Word] | None = None  # that this rank has begun a round, where others may have ended
        loop.extra("model", "before")
        loop.kept = {"local": 0}

    @torch.no_grad()
    def begin(self) -> None:
        """Start what both ends of an edge remember at the common model, now and when the first step begins.

        Until then a checkpoint may be read into the parameters.
        """
        self._fresh = True
        for bucket in self.loop.gather():
            for chunk in bucket.chunks:
                bucket.exchange.start(bucket.flat[chunk.start : chunk.stop], chunk.state)

    async def run(self) -> None:
        """Step by step; a round ends after `every` steps outside no_sync blocks."""
        loop, early, pulls = self.loop, self._exchange.before_step, self._exchange.pulls
        rounds: list[Round] = []  # on their way since before the step
        while True:
            event = await loop.next(*(Gradient, StepBegins) if early else (StepBegins,), Idle, Settle, Ends)
            if isinstance(event, Settle | Ends):
                if pulls and loop.kept["local"]:
                    await self._exchange_models(rounds)  # ranks take turns, and the next may wait for this one
                continue
            self._begin_again()
            self._fresh = False
            if isinstance(event, Idle):
                rounds = await self._shadow(rounds)
                continue
            if loop.joining and self._said is None:
                self._said = loop.transport.launch(say(Word(trains=1)))
            if isinstance(event, StepBegins):
                loop.skipping.look()
            if early:
                rounds = rounds or self._early()
                if isinstance(event, Gradient):
                    continue
            elif loop.kept["local"] == 0:
                self._remember()
                if pulls:
                    await loop.runner.begin(loop.buckets)
            if pulls:
                self._pull()
            await loop.next(StepEnds)
            loop.kept["local"] += 1
            if not loop.quiet() and loop.kept["local"] >= self._every:
                rounds = await self._exchange_models(rounds)

    async def _shadow(self, rounds: list[Round]) -> list[Round]:
        """Take part in a round with the model as it is: in this rank's own that it has begun, or in the next."""
        loop, early = self.loop, self._exchange.before_step
        begun = self._said is not None
        loop.others = begun or bool((await loop.transport.launch(say(Word(trains=0)))).trains)
        if not loop.others:
            return rounds
        if loop.kept["local"] == 0 and not rounds:
            self._remember()
            if self._exchange.pulls and not begun:
                await loop.runner.begin(loop.buckets)
        if early and not rounds:
            self._remember()
            rounds = self._launch()
        return await self._exchange_models(rounds)

    @torch.no_grad()
    def restart(self) -> None:
        """With memories that know nothing of the models before."""
        self.loop.kept["local"] = 0
        forget(self.loop)
        self.begin()

    async def save(self) -> dict[str, Any]:
        """The steps since the last exchange; the model of this rank goes with the memories."""
        local = self.loop.kept["local"]
        if self._exchange.pulls and local:
            raise ValueError(
                f"{local} steps into a round of {self._every}, in which ranks take turns, there is no common state; "
                f"save after a multiple of {self._every} steps"
            )
        self._begin_again()
        for bucket, model in zip(self.loop.buckets, self.loop.models(), strict=True):
            bucket.extra["model"].copy_(model)  # the bucket itself may be under way
        return await super().save()

    def check(self, who: str, state: Mapping[str, Any], *, own: bool) -> None:
        """The steps since the last exchange; states of old lack the entry."""
        check_counts(who, "local", state.get("local", 0))

    def in_common(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Ranks meet after so many steps."""
        return {"local": state.get("local", 0)}

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on from this rank's model; on another number of ranks, from the mean of all, with new memories."""
        self.loop.kept["local"] = 0 if resized else int(saved.get("local", 0))
        self._fresh = False
        for bucket in self.loop.buckets:
            bucket.flat.copy_(bucket.extra["model"])
        self.loop.take()
        if resized:
            self.restart()

    def _begin_again(self) -> None:
        """Start from the parameters as they are, if no step has been taken yet."""
        if self._fresh:
            self.begin()

    @torch.no_grad()
    def _remember(self) -> None:
        for bucket in self.loop.gather():
            bucket.extra["before"].copy_(bucket.flat)

    def _early(self) -> list[Round]:
        """Launch the models once per round, before its last step changes them."""
        loop = self.loop
        if loop.quiet() or loop.kept["local"] + 1 < self._every:
            return []
        self._remember()
        return self._launch()

    def _launch(self) -> list[Round]:
        self.loop.runner.telemetry.begin()
        return [self.loop.runner.launch(bucket, before=bucket.extra["before"]) for bucket in self.loop.buckets]

    async def _exchange_models(self, rounds: list[Round]) -> list[Round]:
        """Exchange the models, or wait for those that are on their way; returns the rounds that are open then."""
        loop, sent = self.loop, bool(rounds)
        if not sent:
            with torch.no_grad():
                loop.gather()
            rounds = self._launch()
        for going, members in zip(rounds, loop.members, strict=True):
            await loop.runner.wait(going)
            if sent:  # x_half + (mixed - x)
                with torch.no_grad():
                    going.x.sub_(going.bucket.extra["before"])
                    for one, view in zip(members, going.bucket.views, strict=True):
                        view += one.local
        if self._said is not None:
            await self._said
            self._said = None
        loop.runner.check(rounds)
        loop.take()
        loop.kept["local"] = 0
        loop.runner.end_round()
        if self._exchange.scope == "neighbours" and loop.runner.round % SAMPLE_EVERY == 0:
            await loop.runner.measure(loop.buckets)
        return []

    @torch.no_grad()
    def _pull(self) -> None:
        """g + v + penalty x, with g = 0 for a parameter without a gradient."""
        comm = self.loop.runner.comm
        for bucket, members in zip(self.loop.buckets, self.loop.members, strict=True):
            linear = torch.cat([chunk.state["linear"] for chunk in bucket.chunks])
            penalty = bucket.exchange.penalty(comm.rank, comm.size)
            for one, at, size in zip(members, bucket.layout.offsets, bucket.layout.sizes, strict=False):
                p = one.parameter
                pull = linear[at : at + size].view(p.shape).to(p.dtype) + penalty * p
                p.grad = pull if p.grad is None else p.grad.add_(pull)
