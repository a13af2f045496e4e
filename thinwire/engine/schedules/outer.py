"""Outer: local steps; then the way that each worker went is exchanged, and an outer optimizer follows the mean.

    d        = mean over ranks of (anchor - x_i)     exchanged as a gradient is, through any channel
    anchor   = outer step of the anchor by d         equal on all ranks
    x_i      = merge of x_i and the anchor           by default the anchor
    z_i      = x_i + mean over ranks of (z_i - x_i)  for points that the inner optimizer keeps beside x_i

Fragments of the model take turns: with P of them and a period of H steps, one is launched every H / P steps. What is
launched is used `delay` steps later, and travels while training goes on.

    anchor, x_i       extra["anchor"], the parameters
    d                 the buckets' buffers, from launch to use
    what was sent     extra["sent"], for merges that ask

Neighbours that gossip exchange models: there d = anchor_i - (what x_i was mixed to).

Reference: Douillard, Feng, Rusu, et al., "DiLoCo: distributed low-communication training of language models", 2023,
arXiv 2311.08105, algorithm 1; Douillard, Donchev, Rush, et al., "Streaming DiLoCo with overlapping communication",
2025, arXiv 2501.18512, for fragments, delay and mixing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import torch

from thinwire.engine import averages
from thinwire.engine.anchors import Anchors
from thinwire.engine.checksums import digest
from thinwire.engine.damage import check_counts, check_like
from thinwire.engine.events import Ends, Idle, StepBegins, StepEnds
from thinwire.engine.handshake import differing
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.schedules.words import Word, forget, say
from thinwire.sync.outer import Place, Seen

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.averages import Means
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.loop import Loop
    from thinwire.engine.parameters import Trained
    from thinwire.engine.round import Round
    from thinwire.sync.delta import Delta

CLOSED = -1  # for a fragment of which nothing is under way


@final
class Outer(Schedule):
    """`kept`: local steps; by fragment, in which step it is launched next, and in which what is under way is used."""

    looks_at_gradients = True

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        of = self._of = cast("Delta", loop.method.sync.of)
        self.hears_loss = of.period.hears_loss
        self._gossips = loop.method.exchange.scope == "neighbours"
        self.shared_extra = () if self._gossips else ("anchor",)
        self._fragments: list[list[tuple[Bucket, list[Trained]]]] = [[] for _ in range(of.fragments)]
        for bucket, members in zip(loop.buckets, loop.members, strict=True):
            self._fragments[bucket.fragment].append((bucket, members))
        self.apart = self._gossips
        self._steps, self._lr = 0, 0.0  # of this rank when it ended its batches, and what others step with
        self._rounds: dict[int, list[Round]] = {}  # under way, by fragment
        self.fresh = True  # no step has been taken since `begin`
        self._points = averages.may_keep_points(loop.optimizer) and not self._gossips
        self.weight = 1.0  # of this rank's way in the mean
        self.anchors = Anchors(loop, of.outer)
        loop.extra("anchor", *["sent"] * of.merge.needs_sent, on_cpu=of.on_cpu)
        loop.extra("model", *["arrived"] * bool(of.delay), on_cpu=True)  # for checkpoints alone

    @torch.no_grad()
    def begin(self) -> None:
        """The anchor is the common model.

        It is taken again when the first step begins: until then a checkpoint may be read into the parameters, by
        `load_state_dict` or by whatever else writes there, and training goes on from that.
        """
        loop, of = self.loop, self._of
        for bucket in loop.gather():
            for chunk in bucket.chunks:
                bucket.exchange.start(bucket.flat[chunk.start : chunk.stop], chunk.state)
        self.anchors.begin()
        first, count = of.period.first(loop.method.sync.every), of.fragments
        self._rounds, self.fresh = {}, True
        loop.kept = {
            "step": 0,
            "launched": 0,
            "due": [first * (number + 1) // count for number in range(count)],
            "used": [CLOSED] * count,
            "first": [0.0, 0.0],  # loss and learning rate of the first round
        }

    async def run(self) -> None:
        """Count steps outside no_sync blocks; what is due is used, and what is due is launched."""
        loop = self.loop
        while True:
            event = await loop.next(StepBegins, Idle, Ends)
            self._begin_again()
            if isinstance(event, Idle):
                await self._shadow()
                continue
            if isinstance(event, Ends):
                await self._end()
                continue
            self.fresh = False
            loop.skipping.look()
            await loop.next(StepEnds)
            loop.kept["step"] += 1
            if not loop.quiet():
                await self._turn()

    def due(self) -> list[int]:
        """The fragments that are to be launched."""
        kept = self.loop.kept
        return [number for number, step in enumerate(kept["due"]) if step <= kept["step"]]

    async def launch(self, due: Sequence[int]) -> None:
        """Send the way of these fragments."""
        ahead, kept = await self._ahead(), self.loop.kept
        for number in due:
            kept["due"][number] = kept["step"] + ahead
            self._launch(number)

    async def _turn(self) -> None:
        kept, due = self.loop.kept, self.due()
        for number, step in enumerate(kept["used"]):
            if step != CLOSED and (step <= kept["step"] or number in due):
                await self._use(number)
        if due:
            if self.loop.joining and not await self._some_train():
                return
            await self._check_start()
            await self.launch(due)
        if not self._of.delay:
            for number in due:
                await self._use(number)

    async def _some_train(self) -> bool:
        """Whether some rank has not ended its batches. If all have, the last round is over when this returns."""
        loop, kept = self.loop, self.loop.kept
        mine = Word(0, step=self._steps, moved=self.anchors.left) if loop.idle else Word(1, loop.lr(0))
        said = await loop.transport.launch(say(mine))
        self._lr, loop.others = said.lr, bool(said.trains)
        if not loop.others:
            kept["step"] = int(said.step)
            await self._level(moved=bool(said.moved))
        return loop.others

    async def _shadow(self) -> None:
        """Take part in the next round, as if steps had left the model where it is."""
        kept, self._steps, self.fresh = self.loop.kept, self.loop.kept["step"], False
        if self._of.period.at_end:  # others say that they train in no round; they come when they have ended
            await self._some_train()
            return
        while not self.due():
            kept["step"] = min(step for step in (*kept["due"], *kept["used"]) if step > kept["step"])
            if not self.due():
                await self._turn()  # something arrives
        await self._turn()

    async def _level(self, *, moved: bool) -> None:
        """All ranks have ended: use what is under way, exchange what was not; all have the anchor then."""
        kept, every = self.loop.kept, self.loop.method.sync.every
        for number, step in enumerate(kept["used"]):
            if step != CLOSED:
                await self._use(number)
        if moved and not self._gossips:
            await self._check_start()
            for number in range(len(self._fragments)):
                self._launch(number)
            for number in range(len(self._fragments)):
                await self._use(number)
            self.anchors.reset()
            first = kept["step"] if self._of.period.at_end else min(kept["due"]) - every
            kept["due"] = [step - first + kept["step"] for step in kept["due"]]  # a whole period follows

    @torch.no_grad()
    def restart(self) -> None:
        """Neighbours that gossip have one model again, and one anchor."""
        forget(self.loop)
        for bucket in self.loop.gather():
            for chunk in bucket.chunks:
                bucket.exchange.start(bucket.flat[chunk.start : chunk.stop], chunk.state)
            bucket.extra["anchor"].copy_(bucket.flat)

    async def _end(self) -> None:
        """Training ends: what is under way is used, and a period that waited for this has its round."""
        for number, step in enumerate(self.loop.kept["used"]):
            if step != CLOSED:
                await self._use(number)
        if self._of.period.at_end:
            await self._check_start()
            for number in range(len(self._fragments)):
                self._launch(number)
            for number in range(len(self._fragments)):
                await self._use(number)

    def _begin_again(self) -> None:
        """Take the anchor from the parameters as they are, if no step has been taken yet."""
        if self.fresh:
            self.begin()

    async def _check_start(self) -> None:
        """Before the first round: ranks that set out from different models would never have one again."""
        if self.loop.kept["launched"] or self._gossips:
            return
        digest = self.anchors.digest()
        differ = await self.loop.transport.launch(lambda comm: differing(comm, digest, self.loop.transport.name))
        if differ:
            raise ValueError(
                f"ranks set out from different models ({differ}): what was written into the parameters after attach "
                "was not the same on all ranks; load the same checkpoint on every rank, or load it before attach"
            )

    async def _ahead(self) -> int:
        """Steps to the next round, from what all ranks know."""
        loop, kept, period = self.loop, self.loop.kept, self._of.period
        lr, loss = self._lr if loop.idle else loop.lr(0), 0.0
        if period.hears_loss and loop.joining:
            loss = await self._mean_of_reported()
        elif period.hears_loss:
            loss = float(await loop.runner.average(loop.losses.mean()))
        if not kept["launched"]:
            kept["first"] = [loss, lr]
        first_loss, first_lr = kept["first"]
        every = loop.method.sync.every
        return period.ahead(Seen(every, kept["launched"], kept["step"], lr, first_lr, loss, first_loss))

    async def _mean_of_reported(self) -> float:
        """The mean over the ranks that took steps since the last round."""
        losses = self.loop.losses
        mine = [float(losses.mean()), 1.0] if losses.save() or not self.loop.idle else [0.0, 0.0]
        total, count = (await self.loop.runner.average(torch.tensor(mine))).tolist()
        return float(total / count) if count else 0.0

    @torch.no_grad()
    def _launch(self, number: int) -> None:
        loop, kept = self.loop, self.loop.kept
        loop.runner.telemetry.begin()
        self._rounds[number] = []
        for bucket, members in self._fragments[number]:
            bucket.changed()
            if self._of.merge.needs_sent or self._gossips:
                self._fill(bucket, members)
                if self._of.merge.needs_sent:
                    bucket.extra["sent"].copy_(bucket.flat)
                if not self._gossips:
                    self.anchors.way(bucket)
            else:
                self.anchors.way_of(bucket, members)
            if self.weight != 1.0:
                bucket.flat.mul_(self.weight)
                bucket.changed()
            before = bucket.extra["anchor"] if self._gossips else None
            self._rounds[number].append(loop.runner.launch(bucket, before=before))
        kept["used"][number] = kept["step"] + self._of.delay
        kept["launched"] += 1
        loop.runner.end_round()

    async def _use(self, number: int) -> None:
        self.take(number, await self.arrive(number))

    async def arrive(self, number: int) -> Means:
        """Wait for what was launched, and for the means of what is not exchanged; nothing has changed yet."""
        loop, of = self.loop, self._of
        await self._arrived(number)
        found: Means = []
        with torch.no_grad():
            some = [one for _, members in self._fragments[number] for one in members]
            points = averages.points(loop.optimizer, some) if self._points else {}
            if of.moments == "mean":
                moments = averages.moments(loop.optimizer, some)
                found += await averages.means(loop.runner, {k: v for k, v in moments.items() if k not in points})
            if self._points:
                found += await averages.offsets(loop.runner, points)
            if of.buffers == "mean" and number == len(self._fragments) - 1:
                found += await averages.means(loop.runner, loop.buffers)
        return found

    @torch.no_grad()
    def take(self, number: int, found: Means) -> None:
        """Take the outer step with what has arrived, and go on from there."""
        of, parts = self._of, self._fragments[number]
        self.loop.kept["used"][number] = CLOSED
        buckets = [bucket for bucket, _ in parts]
        if self._gossips:
            for bucket in buckets:
                self.anchors.way(bucket)
        if of.outer.adds_up and of.merge.takes:
            for bucket, members in parts:
                self.anchors.take_mean(bucket, members)
        else:
            before = [bucket.extra["anchor"].clone() if of.merge.needs_before else bucket.flat for bucket in buckets]
            self.anchors.step(buckets)
            for (bucket, members), old in zip(parts, before, strict=True):
                self._merge(bucket, members, old)
        averages.put(found)

    async def _arrived(self, number: int) -> None:
        """Wait for what is under way; after a checkpoint it lies in the buffers already."""
        runner, rounds = self.loop.runner, self._rounds.pop(number, [])
        for going in rounds:
            agreed = await runner.wait(going)
            if not agreed.finite:
                raise FloatingPointError(
                    f"{agreed.what(runner.transport.name)} is not finite in round {going.number}"
                )
        runner.check(rounds)

    def _merge(self, bucket: Bucket, members: list[Trained], before: Tensor) -> None:
        extra, of, device = bucket.extra, self._of, bucket.flat.device
        if of.merge.needs_x:
            self._fill(bucket, members)
        anchor, sent = extra["anchor"].to(device), extra.get("sent", bucket.flat).to(device)
        at = Place(bucket.flat, anchor, before.to(device), sent, self.loop.runner.comm.size)
        for value, one in zip(bucket.cut(of.merge.merge(at)), members, strict=True):
            one.local.copy_(value)

    def _fill(self, bucket: Bucket, members: list[Trained]) -> None:
        for view, one in zip(bucket.views, members, strict=True):
            view.copy_(one.local)

    def give_up(self) -> None:
        """Forget what is under way, whose work has ended."""
        self._rounds = {}
        for bucket in self.loop.buckets:
            bucket.open.clear()
            for chunk in (*bucket.sums, *bucket.chunks):
                chunk.last = chunk.handover = None

    async def save(self) -> dict[str, Any]:
        """The model of this rank goes with its anchor; what is under way is waited for, and used when it is due."""
        self._begin_again()
        for number in list(self._rounds):
            await self._arrived(number)
        for bucket, model in zip(self.loop.buckets, self.loop.models(), strict=True):
            bucket.extra["model"].copy_(model)
            if self._of.delay:
                bucket.extra["arrived"].copy_(bucket.flat)
        kept = {name: list(value) if isinstance(value, list) else value for name, value in self.loop.kept.items()}
        losses = self.loop.losses.save() if self._of.period.hears_loss else []
        return {**kept, "outer": self.anchors.save(), "losses": losses}

    def check(self, who: str, state: Mapping[str, Any], *, own: bool) -> None:
        """Counts, moments of the outer optimizer, and sums of losses."""
        for name, like in self.loop.kept.items():
            check_like(who, name, state.get(name), like)
            if name != "first":
                check_counts(who, name, state[name], least=CLOSED if name == "used" else 0)
        self.anchors.check(who, state.get("outer"))
        losses = state.get("losses")
        check_like(who, "losses", losses, [0.0, 0] if losses else [])

    def in_common(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """All but the losses; where neighbours gossip, anchors and their moments are each rank's own."""
        entries = {name: state[name] for name in self.loop.kept}
        return entries if self._gossips else {**entries, "outer": digest(state["outer"])}

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on from this rank's model; on another number of ranks, from the mean of all."""
        loop, self._rounds, self.fresh = self.loop, {}, False
        for name in list(loop.kept):
            value = saved[name]
            loop.kept[name] = list(value) if isinstance(value, list | tuple) else value
        for bucket in loop.buckets:
            bucket.flat.copy_(bucket.extra["model"])
        loop.take()
        if self._of.delay:
            for bucket in loop.buckets:
                bucket.flat.copy_(bucket.extra["arrived"])
        self.anchors.load(saved["outer"])
        loop.losses.load(saved["losses"])

    def anchor(self) -> dict[str, Tensor]:
        """A copy."""
        self._begin_again()
        return self.anchors.model()

    def report(self) -> dict[str, float]:
        """Rounds that were launched, and local steps."""
        return {"outer_rounds": self.loop.kept["launched"], "local_steps": self.loop.kept["step"]}
