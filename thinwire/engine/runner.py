"""Runner: the rounds of one method over a transport.

A bucket's round is one agreement (`engine/agreement.py`) and one exchange per chunk, launched in this order. If a
gradient is not finite, nothing is encoded, every rank gets NaN for the bucket, and memories stay as they were. Sums
of plain float32 carry a NaN by themselves, so they start without waiting for the agreement, and may share one.

Models that gossip need no agreement, and wait only for neighbours. A model that is not finite is an error.

A round has its own vector, which may be borrowed, and several rounds of a bucket may be open: a chunk's exchange
starts when the one before it has ended, because they share its memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, final

import torch

from thinwire.core.desk import NOTHING
from thinwire.core.errors import PayloadError
from thinwire.core.types import Context, Key
from thinwire.core.verdicts import Verdicts
from thinwire.engine.agreement import LAST, Agreed, agree, finite, largest
from thinwire.engine.bucket import Bucket, Chunk
from thinwire.engine.consensus import apart, average, sample
from thinwire.engine.handover import Handover
from thinwire.engine.handshake import in_common
from thinwire.engine.round import Before, Facts, Promise, Round
from thinwire.engine.stats import SAMPLE_EVERY, compression_error

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.core.exchange import Exchange
    from thinwire.core.method import Method
    from thinwire.engine.motion import Motion
    from thinwire.engine.plan import Parcel
    from thinwire.engine.telemetry import Telemetry
    from thinwire.engine.transport import Transport, Work

T = TypeVar("T")
TOP = torch.finfo(torch.float32).max


@final
class Runner:
    """Launches rounds and waits for them. `round` counts them, and is part of the noise's key."""

    def __init__(
        self, method: Method, transport: Transport, telemetry: Telemetry, motion: Motion, seed: int, round_: int = 0
    ) -> None:
        self.method, self.transport, self.telemetry, self.motion = method, transport, telemetry, motion
        self.seed, self.round = seed, round_
        self.plain = method.exchange.plain
        self.times = 1  # what its means are multiplied by: the number of ranks, where gradients are to be summed
        self._facts = {id(one): Facts.of(one) for one in (self.plain, method.exchange)}

    @property
    def comm(self) -> Comm:
        """The rank among all."""
        return self.transport.comm

    @property
    def _name(self) -> int:
        return self.transport.name(self.comm.rank)

    @property
    def warm(self) -> bool:
        """Whether this round still travels uncompressed."""
        return self.round < self.method.sync.warmup

    def bucket(self, index: int, parcel: Parcel) -> Bucket:
        """A bucket with its buffer and state; where servers keep the model, their schedule has the memories."""
        exchange = self.method.exchange
        compressed = parcel.compressed and exchange != self.plain and not exchange.served
        exchange = self.method.exchange if compressed else self.plain
        sizes = self.method.overlap.sizes(parcel.items[0].device.type)
        return Bucket(index, parcel, exchange, self.comm, sizes.chunk_mb, sizes.sum_mb)

    async def latest(self) -> int:
        """The largest number of rounds that a rank has taken."""

        async def largest(comm: Comm) -> int:
            return int(await comm.all_reduce(torch.tensor(self.round, dtype=torch.int64), op="max"))

        return await self.transport.launch(largest)

    def launch(
        self,
        bucket: Bucket,
        lr: float = 1.0,
        before: Tensor | None = None,
        x: Tensor | None = None,
        *,
        since: int = 0,
        alone: bool = True,
        patient: bool = False,
        idle: bool = False,
    ) -> Round:
        """Send the filled buffer, or the vector `x`, on its way; `before` is the model before the local step.

        `since` is how many rounds this rank has had since its last step.

        A round that is not `alone` is one of several: `agree` comes after the last of them, and until then a small
        one need not have been handed over. One that is `patient` waits for its agreement even if it is a plain sum.
        """
        exchange = self.plain if self.warm else bucket.exchange
        facts = self._facts.get(id(exchange)) or Facts.of(exchange)
        x = bucket.flat if x is None else x
        going = Round(self.round, bucket, x, lr, before, Handover(x.device), bytes(bucket.used), bucket.tame, since)
        going.limit, going.launched, going.idle = facts.limit, self.telemetry.now(), idle
        chunks = bucket.sums if facts.bare else bucket.chunks
        # A single chunk that must wait for the agreement makes it on its own way: one piece of work in place of two.
        going.heavy = any(chunk.heavy for chunk in chunks)
        waits = going.waits = facts.agrees and (patient or not facts.carries_nan)
        at_once = waits and len(chunks) == 1
        if facts.agrees and not at_once and (alone or waits):
            self._agree([going])
        for number, chunk in enumerate(chunks):
            context = self.context(going, number, chunk)
            sampled = number == 0 and bucket.compressed and self.round % SAMPLE_EVERY == 0 and facts.measurable
            work = self._carry(going, chunk, exchange, facts, context, agrees=at_once, sampled=sampled)
            weight = None if alone else 4 * (chunk.stop - chunk.start)
            piece = self.transport.launch(work, context.clock, weight)
            chunk.last, chunk.handover = piece, going.handover
            if at_once:
                going.agreement = piece
            going.parts.append(piece)
            going.clocks.append(context.clock)
        going.owes = facts.agrees and going.agreement is None
        bucket.open.append(going)
        return going

    def agree(self, rounds: Sequence[Round]) -> None:
        """Let those of the rounds that have no agreement make one together, and hand over what is still here."""
        owing = [going for going in rounds if going.owes]
        if owing:
            self._agree(owing)
        else:
            self.transport.hand_over()

    def _agree(self, rounds: Sequence[Round]) -> None:
        clock = self.telemetry.clock(rounds[-1].bucket.index, -1)
        rounds[-1].clocks.append(clock)
        early = (
            self.method.overlap.into_forward is not None
        )  # then the first module waits for it, and not for all sums
        made = self.transport.launch(lambda comm: agree(comm, rounds), clock, aside=early)
        for going in rounds:
            going.agreement, going.owes = made, False

    async def wait(self, going: Round) -> Agreed:
        """Wait until the round's vector holds the result; returns what all ranks know about the round.

        On a GPU the result may still be computed, and whether it was made of sound payloads is not known: `check`
        comes before anything that cannot be undone.
        """
        bucket = going.bucket
        bucket.open.remove(going)
        if going.agreement is not None:
            await going.agreement
        for part in going.parts:
            await part
        agreed = going.agreed
        if not agreed.same_lr:
            raise ValueError(
                f"learning rates differ between ranks in step {going.number}: rank {self._name} has {going.lr}; "
                "give every rank the same schedule, or replicas drift apart"
            )
        if not agreed.in_step:
            raise ValueError(
                f"some ranks have called optimizer.step() since the last exchange and others have not (rank "
                f"{self._name} has exchanged {going.since} times since its last step): replicas have drifted "
                "apart. Let all ranks step or none, and write `with wire.no_sync():` around the backward pass of one "
                "rank alone"
            )
        if going.x.is_cuda:
            going.handover.take()
        if agreed.large and agreed.worth_sending:
            agreed = self._looked_at(going)
        if going.before is not None and agreed.broken:
            raise FloatingPointError(f"{agreed.what(self.transport.name)} is not finite in step {going.number}")
        if agreed.broken:
            going.x.fill_(math.nan)
        self.telemetry.arrived(going)
        return agreed

    def _looked_at(self, going: Round) -> Agreed:
        """What is known of a round of large numbers, whose result is the same on all ranks.

        If it is not finite, memories are what they were. Where later rounds of the bucket are under way, only those
        chunks are that are not finite.
        """
        if not self.times * largest(going.x) <= TOP:  # which NaN is not either
            for before in () if going.bucket.open else going.before_it:
                before.restore()
            going.agreed = replace(going.agreed, broken=LAST, overflowed=True)
        return going.agreed

    def check(self, rounds: Sequence[Round]) -> None:
        """PayloadError if a payload of these rounds was damaged. Where GPUs check, it is the one wait for them."""
        try:
            for going in rounds:
                for verdicts in going.verdicts:
                    verdicts.raise_if_any()
        except PayloadError as error:
            raise self.transport.explain(error) from error

    async def begin(self, buckets: Sequence[Bucket]) -> None:
        """Let an exchange that pulls prepare its round; the buffers hold the models."""
        rounds, waiting = [], []
        for bucket in buckets:
            going = Round(self.round, bucket, bucket.flat, 1.0, None, Handover(bucket.flat.device), b"", tame=False)
            rounds.append(going)
            for number, chunk in enumerate(bucket.chunks):
                context = self.context(going, number, chunk)
                waiting.append(self.transport.launch(_begin(going, chunk, context), context.clock))
        for piece in waiting:
            await piece
        for going in rounds:
            going.handover.take()
        self.check(rounds)

    def end_round(self) -> None:
        """Count the round."""
        self.round += 1
        self.telemetry.stats.rounds += 1

    async def measure(self, buckets: Sequence[Bucket]) -> None:
        """Estimate how far apart the models in the buffers are."""
        x = sample(buckets, self.seed, self.round)
        _, distance = await self._apart(x)
        self.telemetry.apart(self.round, distance)

    async def common(self, names: list[str]) -> list[str]:
        """The names that every rank has, in one order."""
        return await self.transport.launch(lambda comm: in_common(comm, names))

    async def average(self, x: Tensor) -> Tensor:
        """The mean of `x` over all ranks."""
        handover = Handover(x.device)

        async def work(comm: Comm) -> Tensor:
            with handover.work(x):
                return await average(comm, x, some_gone=self.transport.drops)

        mean = await self.transport.launch(work)
        handover.take(mean)
        return mean

    async def consensus(self, models: Sequence[Tensor]) -> list[tuple[Tensor, float]]:
        """For each vector, the mean over all ranks and their distance to it."""
        return [await self._apart(model) for model in models]

    def context(self, going: Round, number: int, chunk: Chunk) -> Promise:
        """What an exchange will be told about a chunk."""
        bucket, model = going.bucket, going.before
        key = Key(self.seed, going.number, self.comm.rank, bucket.index, 0, chunk.start)
        before = None if model is None else model[chunk.start : chunk.stop]
        clock = self.telemetry.clock(bucket.index, number)
        verdicts = Verdicts() if going.x.is_cuda else None
        if verdicts is not None:
            going.verdicts.append(verdicts)
        return Promise(chunk.layout, key, clock, going.lr, before, tuple(self.motion.steps), verdicts)

    async def _apart(self, x: Tensor) -> tuple[Tensor, float]:
        handover = Handover(x.device)

        async def work(comm: Comm) -> tuple[Tensor, float]:
            with handover.work(x):
                return await apart(comm, x, some_gone=self.transport.drops)

        mean, distance = await self.transport.launch(work)
        handover.take(mean)
        return mean, distance

    def _carry(
        self,
        going: Round,
        chunk: Chunk,
        exchange: Exchange,
        facts: Facts,
        context: Promise,
        *,
        agrees: bool,  # whether this piece of work is to make the agreement itself
        sampled: bool,
    ) -> Work[None]:
        earlier, theirs = chunk.last, chunk.handover  # of the round before, which may still be open

        async def carry(comm: Comm) -> None:
            if earlier is not None:
                await earlier
            if agrees:
                await agree(comm, (going,))
            elif going.waits and going.agreement is not None:
                await going.agreement
            # A plain sum needs no agreement to start: it carries what is not finite by itself.
            if going.waits and not going.agreed.worth_sending:
                return
            if context.verdicts is None:  # on the host nothing is to be done around it
                await exchanged(comm)
                return
            with going.handover.work(going.x, going.before, *chunk.state.values(), earlier=theirs):
                with _due(comm, context.verdicts):
                    await exchanged(comm)
                context.verdicts.send()

        async def exchanged(comm: Comm) -> None:
            whole = chunk.stop - chunk.start == going.bucket.layout.numel
            x = going.x if whole else going.x[chunk.start : chunk.stop]
            if not facts.agrees and not finite(x):
                names = going.bucket.names(chunk)
                raise FloatingPointError(f"the model is not finite in step {going.number}: {names}")
            if sampled:
                compressor = exchange.channels[0].compressor
                self.telemetry.stats.nmse = compression_error(compressor, x, chunk.layout, context.key)
            before = Before.of(chunk) if going.agreed.large and exchange.remembers else None
            if facts.agrees:
                _rescale(exchange, chunk, going.agreed.lr if going.idle else going.lr)
            out = _vector(exchange, await exchange(x, chunk.state, Context(comm, *context)), x)
            if out is not x and out.data_ptr() != x.data_ptr():
                x.copy_(out)
            if not facts.agrees and x.is_cpu and not finite(x):  # a GPU would have to wait; the next round says so
                raise FloatingPointError(f"the exchange in step {going.number} has made the model not finite")
            if before is not None:
                going.before_it.append(before)
                lost = torch.tensor([not before.kept_finite(x, facts.limit)], dtype=torch.uint8)
                if (
                    await comm.all_reduce(lost, "max")
                ).any():  # ranks decode the same result, and have memories of their own
                    before.restore()
                    x.fill_(math.nan)

        return carry


def _begin(going: Round, chunk: Chunk, context: Promise) -> Work[None]:
    async def begin(comm: Comm) -> None:
        with going.handover.work(going.x, *chunk.state.values()):
            x = going.x[chunk.start : chunk.stop]
            with NOTHING if context.verdicts is None else _due(comm, context.verdicts):
                await going.bucket.exchange.begin(x, chunk.state, Context(comm, *context))
            if context.verdicts is not None:
                context.verdicts.send()

    return begin


def _vector(exchange: Exchange, out: object, like: Tensor) -> Tensor:
    """What an exchange returned, refused where it is nothing like what it was given."""
    if not isinstance(out, torch.Tensor) or out.shape != like.shape:
        got = f"shape {tuple(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__
        raise TypeError(f"{exchange.name} returned {got}; an exchange returns a vector of {like.numel()} elements")
    return out


@contextmanager
def _due(comm: Comm, verdicts: Verdicts) -> Iterator[None]:
    """Let the driver look at the checks before it sends anything that was made of what they checked."""
    comm.due.append(verdicts)
    try:
        yield
    finally:
        comm.due.remove(verdicts)


def _rescale(exchange: Exchange, chunk: Chunk, lr: float) -> None:
    """Residuals are in units of the gradient; keep lr times the residual when the learning rate changes."""
    if lr > 0:
        if chunk.lr is not None and chunk.lr != lr:
            exchange.rescale(chunk.state, chunk.lr / lr)
        chunk.lr = lr
