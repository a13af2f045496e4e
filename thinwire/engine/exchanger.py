"""Exchanger: buckets over a lane; what `attach` and `ddp_hook` share.

A bucket's round is one agreement and one exchange per chunk, launched in this order. The agreement tells every rank
whether all gradients are finite, whether all learning rates are equal and which tensors have a gradient. If a
gradient is not finite, nothing is encoded, every rank gets NaN for the bucket, and memories stay as they were. Sums
of plain float32 carry a NaN by themselves, so they start without waiting for the agreement.

Models that gossip need no agreement, and wait only for neighbours. A model that is not finite is an error.
"""

from __future__ import annotations

import logging
import math
import struct
import sys
import time
import weakref
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, final

import torch
import torch.distributed as dist

import thinwire
from thinwire.core.clock import Clock, Span
from thinwire.core.types import Context, Key
from thinwire.engine.bucket import Agreed, Bucket, Chunk, Round
from thinwire.engine.consensus import apart, average, sample
from thinwire.engine.ending import release, watch_over
from thinwire.engine.groups import Lent, Wanted, lend
from thinwire.engine.handover import Handover
from thinwire.engine.handshake import handshake, in_common
from thinwire.engine.lane import Lane, Piece, Work
from thinwire.engine.meeting import Meeting
from thinwire.engine.motion import Motion, depth_of
from thinwire.engine.stats import SAMPLE_EVERY, Stats, compression_error
from thinwire.engine.watch import Watch, private_store
from thinwire.exchange.all_reduce import AllReduce
from thinwire.exchange.gossip import Gossip
from thinwire.exchange.proximal import Proximal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from thinwire.comm.base import Comm
    from thinwire.comm.processes import Processes
    from thinwire.core.exchange import Exchange
    from thinwire.core.method import Method
    from thinwire.engine.plan import Parcel

T = TypeVar("T")
log = logging.getLogger("thinwire")
PLAIN = AllReduce()
LOOK = 0.2  # seconds between looks at the alarm while waiting
LATE = 1.0  # seconds between looks at who has left
FAREWELL = 1.0  # seconds that threads are given to end
LAST = 255  # the largest value of a byte


@final
class Exchanger:
    """Runs the rounds of one method on one process group. `round` counts them, and is part of the noise's key."""

    def __init__(
        self,
        method: Method,
        group: dist.ProcessGroup,
        seed: int,
        timeout: float,
        optimizer: Optimizer | None,
        drop_dead: bool = False,
    ) -> None:
        depth = depth_of(method)
        if depth and optimizer is None:
            raise ValueError(
                f"{method.id} looks at the steps of the optimizer; write tw.ddp_hook(method, model, optimizer)"
            )
        self.method, self.group = method, group
        self.seed = seed
        self.timeout = timeout
        self.round = 0
        self.stats = Stats()
        self.events: list[Span] = []  # of the last round
        exchange, size = method.exchange, dist.get_world_size(group)
        self.drops = drop_dead
        self.distances: list[tuple[int, float]] = []  # rounds, and how far apart the models were after them
        self.gossips = isinstance(exchange, Gossip)
        self.plain: Exchange = PLAIN if exchange.plain == PLAIN else exchange.plain
        backend = "gloo" if drop_dead else dist.get_backend(group)  # nccl ends the process when a peer breaks off
        one = backend == "nccl" or isinstance(exchange, Proximal)
        slots = 1 if one else method.overlap.in_flight
        groups = exchange.groups(size)
        if drop_dead and isinstance(exchange, Gossip):
            groups = list(exchange.edges(size))  # one group per edge: when one breaks, the others stay whole
        self.watch = Watch(private_store(group), dist.get_rank(group), size)
        self.meeting = Meeting(self.watch, timeout, group)
        self.farewell: Callable[[], object] | None = None  # what neighbours expect before this rank ends
        self._lent: list[Lent] = []
        try:
            made = self.borrow(Wanted(slots, tuple(groups), timeout, backend)).drivers(set() if drop_dead else None)
        except BaseException as error:
            self.watch.leave(f"it failed in attach: {error}")
            self.watch.stop()
            raise
        self.comm = made[0].comm
        self.traffic = [driver.traffic for driver in made]
        self.lane = Lane(made, self.watch.explain)
        self.watch.launched = self.lane.launched
        self.motion = Motion(optimizer, depth)
        # A wire that is forgotten together with its model and its optimizer leaves no threads behind.
        self._forgotten = weakref.finalize(self, _stop, self.lane, self.watch)
        self._forgotten.atexit = False  # `leave` is called at exit
        watch_over(self)

    def borrow(self, wanted: Wanted) -> Lent:
        """Process groups that no other wire uses, until `close`; every rank calls it."""
        self._lent.append(lend(self.group, wanted, self.meeting))
        return self._lent[-1]

    def call(self, work: Work[T]) -> T:
        """Run `work(driver)` in its turn and wait for it."""
        return self._wait(self.lane.launch(work))

    @classmethod
    def meet(
        cls,
        method: Method,
        group: dist.ProcessGroup,
        seed: int,
        timeout: float,
        fields: Mapping[str, str],
        optimizer: Optimizer | None,
        drop_dead: bool = False,
    ) -> Exchanger:
        """An exchanger on every rank; ValueError on all of them if they differ in method or `fields`.

        The optimizer's steps are measured where a memory of the method asks for them. Rank 0 logs the method's note.
        """
        exchanger = cls(method, group, seed, timeout, optimizer, drop_dead)
        common = {
            "thinwire version": thinwire.__version__,
            "method": method.id,
            "the method's settings": method.to_json(),
            "seed": str(seed),
            "drop_dead": str(drop_dead),
            "timeout": str(timeout),
        }
        try:
            differs = exchanger.call(lambda driver: driver.run(handshake(driver.comm, {**common, **fields})))
        except BaseException as error:
            exchanger.close(failed=True, why=f"it failed in attach: {error}")
            raise
        if differs:
            exchanger.close()
            raise ValueError(differs)
        if method.recipe.note and exchanger.comm.rank == 0:
            log.warning("%s: %s", method.id, method.recipe.note)
        return exchanger

    def bucket(self, index: int, parcel: Parcel) -> Bucket:
        """A bucket with its buffer and state."""
        compressed = parcel.compressed and self.method.exchange != self.plain
        exchange = self.method.exchange if compressed else self.plain
        return Bucket(index, parcel, exchange, self.comm, self.method.overlap.chunk_mb)

    @property
    def warm(self) -> bool:
        """Whether this round still travels uncompressed."""
        return self.round < self.method.sync.warmup

    def launch(self, bucket: Bucket, lr: float = 1.0, before: Tensor | None = None) -> None:
        """Send the filled buffer on its way; `before` is the model before the local step."""
        exchange = self.plain if self.warm else bucket.exchange
        handover, used = Handover(bucket.flat.device), bytes(bucket.used)
        chunks = [Chunk(0, bucket.layout.numel, bucket.layout, {})] if exchange is PLAIN else bucket.chunks
        clock = Clock(bucket.index, -1)
        clock.mark("launch")
        agreed = None
        if not self.gossips:
            agreed = self.lane.launch(lambda driver: _agree(driver, bucket, used, lr, handover, clock))
        bucket.round = Round(handover, agreed, lr, models=before is not None, clocks=[clock])
        for number, chunk in enumerate(chunks):
            ctx = self._context(bucket, number, chunk, lr, before)
            sampled = number == 0 and bucket.compressed and self.round % SAMPLE_EVERY == 0
            work = self._work(bucket, chunk, exchange, ctx, bucket.round, sample=sampled)
            bucket.round.parts.append(self.lane.launch(work))
            bucket.round.clocks.append(ctx.clock)

    def begin(self, buckets: Sequence[Bucket]) -> None:
        """Let a proximal exchange prepare its round; the buffers hold the models."""
        waiting: list[Piece[None]] = []
        for bucket in buckets:
            for number, chunk in enumerate(bucket.chunks):
                ctx = self._context(bucket, number, chunk, 1.0, None)
                waiting.append(self.lane.launch(_begin(bucket, chunk, ctx)))
        for piece in waiting:
            self._wait(piece)

    def wait(self, bucket: Bucket) -> Agreed:
        """Wait until the buffer holds the result; returns what all ranks know about the round."""
        going, bucket.round = bucket.round, None
        assert going is not None
        for part in going.parts:
            self._wait(part)
        agreed = Agreed(broken=0, same_lr=True, used=[]) if going.agreed is None else self._wait(going.agreed)
        if not agreed.same_lr:
            raise ValueError(
                f"learning rates differ between ranks in step {self.round}: rank {self.comm.rank} has {going.lr}; "
                "give every rank the same schedule, or replicas drift apart"
            )
        if going.models and not agreed.finite:
            who = f"rank {agreed.broken - 1}" if agreed.broken < LAST else "some rank"
            raise FloatingPointError(f"the model of {who} is not finite in step {self.round}")
        going.handover.take()
        if not agreed.finite:
            bucket.flat.fill_(math.nan)
        bucket.emptied()
        for clock in going.clocks:
            self.events += clock.spans
            self.stats.time(clock.spans)
        self.stats.elements += bucket.layout.numel
        self.stats.skipped += not agreed.finite
        return agreed

    def measure(self, buckets: Sequence[Bucket]) -> None:
        """Estimate how far apart the models in the buffers are."""
        x = sample(buckets, self.seed, self.round)
        _, distance = self.call(lambda driver: driver.run(apart(driver.comm, x, some_gone=self.drops)))
        self.distances.append((self.round, distance))
        self.stats.distance = distance

    def common(self, names: list[str]) -> list[str]:
        """The names that every rank has, in one order."""
        return self.call(lambda driver: driver.run(in_common(driver.comm, names)))

    def average(self, x: Tensor) -> Tensor:
        """The mean of `x` over all ranks."""
        return self.call(lambda driver: driver.run(average(driver.comm, x, some_gone=self.drops)))

    def consensus(self, models: Sequence[Tensor]) -> list[tuple[Tensor, float]]:
        """For each vector, the mean over all ranks and their distance to it."""
        return [
            self.call(lambda driver, x=model: driver.run(apart(driver.comm, x, some_gone=self.drops)))  # type: ignore[misc]
            for model in models
        ]

    def end_round(self) -> None:
        """Count the round."""
        self.round += 1
        self.stats.rounds += 1

    def report(self) -> dict[str, float]:
        """The figures of `Stats`, with what the drivers have sent."""
        sent, messages = sum(t.bytes for t in self.traffic), sum(t.messages for t in self.traffic)
        return self.stats.report(sent, messages, self.comm.size)

    def forget_traffic(self) -> None:
        """Count from here: what attach itself sent is not part of training."""
        for traffic in self.traffic:
            traffic.bytes = traffic.messages = 0

    def succeed(self, old: Exchanger) -> None:
        """Go on counting where another exchanger stopped."""
        before = old.report()
        self.forget_traffic()
        self.round, self.stats, self.distances = old.round, old.stats, old.distances
        self.motion.restore(old.motion.steps)
        self.stats.bytes_before, self.stats.messages_before = int(before["bytes_sent"]), int(before["messages"])

    def close(self, *, failed: bool = False, why: str = "") -> None:
        """Stop the threads, and give the process groups back unless messages may be left on them."""
        release(self)
        self._forgotten.detach()
        self.watch.leave(why or f"it detached after {self.round} rounds")
        self.lane.close()
        self.watch.stop()
        self.motion.close()
        self.watch.join(FAREWELL)
        if not failed and not self.watch.alarmed.is_set() and self.lane.join(FAREWELL):
            for lent in self._lent:
                lent.give_back()
        self._lent = []

    def leave(self, why: str) -> None:
        """Stop because the interpreter ends, without waiting for anybody unless the schedule has promised to."""
        raised = getattr(sys, "last_value", None)  # what ended the script
        if raised is not None:
            why = f"it raised {type(raised).__name__}: {raised}"
        elif self.farewell is not None:
            with suppress(Exception):  # there is nobody left to tell
                self.farewell()
        self.watch.leave(why)
        _stop(self.lane, self.watch)
        self.lane.join(FAREWELL)
        self.watch.join(FAREWELL)

    def _work(
        self, bucket: Bucket, chunk: Chunk, exchange: Exchange, ctx: Context, going: Round, *, sample: bool
    ) -> Work[None]:
        def work(driver: Processes) -> None:
            # A plain sum needs no agreement to start: it carries what is not finite by itself.
            if going.agreed is not None and exchange is not PLAIN and not going.agreed.result().worth_sending:
                return
            with going.handover.work():
                x = bucket.flat[chunk.start : chunk.stop]
                if going.agreed is None and not _finite(x):
                    raise FloatingPointError(f"the model is not finite in step {ctx.key.step}: {bucket.names(chunk)}")
                if sample and not isinstance(exchange, AllReduce) and exchange.channels[0].compressor.keeps_scale:
                    self.stats.nmse = compression_error(exchange.channels[0].compressor, x, chunk.layout, ctx.key)
                if going.agreed is not None:
                    _rescale(exchange, chunk, ctx.lr)
                out = driver.run(exchange(x, chunk.state, replace(ctx, comm=driver.comm)), ctx.clock)
                if out.data_ptr() != x.data_ptr():
                    x.copy_(out)

        return work

    def _context(self, bucket: Bucket, number: int, chunk: Chunk, lr: float, before: Tensor | None) -> Context:
        key = Key(self.seed, self.round, self.comm.rank, bucket.index, 0, chunk.start)
        model = None if before is None else before[chunk.start : chunk.stop]
        motion = tuple(self.motion.steps)
        return Context(self.comm, chunk.layout, key, Clock(bucket.index, number), lr, model, motion)

    def _wait(self, piece: Piece[T]) -> T:
        """Wait for the result; PeerError soon after a rank raises the alarm or leaves, whatever is waited for."""
        looked = time.monotonic()
        while True:
            try:
                return piece.result(timeout=LOOK)
            except NotYet:
                if piece.done():
                    raise  # the work itself timed out
                if self.watch.alarmed.is_set():
                    raise self.watch.verdict() from None
                if not self.drops and time.monotonic() - looked > LATE:
                    looked = time.monotonic()
                    self.watch.look_out(piece.number)


def _begin(bucket: Bucket, chunk: Chunk, ctx: Context) -> Work[None]:
    def work(driver: Processes) -> None:
        exchange = bucket.exchange
        assert isinstance(exchange, Proximal)
        x = bucket.flat[chunk.start : chunk.stop]
        driver.run(exchange.begin(x, chunk.state, replace(ctx, comm=driver.comm)), ctx.clock)

    return work


def _agree(driver: Processes, bucket: Bucket, used: bytes, lr: float, handover: Handover, clock: Clock) -> Agreed:
    """Take the largest value of each byte over all ranks; numbers are equal if largest and smallest bytes agree."""
    number = struct.pack("<d", lr)
    with handover.work():
        finite = _finite(bucket.flat) if bucket.finite is None else bucket.finite
        broken = 0 if finite else min(driver.comm.rank + 1, LAST)
        flags = torch.tensor([broken, *used, *number, *(LAST - byte for byte in number)], dtype=torch.uint8)
        said = driver.run(_largest(driver.comm, flags), clock).tolist()
    most, least = said[1 + len(used) : -len(number)], [LAST - byte for byte in said[-len(number) :]]
    return Agreed(said[0], same_lr=most == least, used=[bool(flag) for flag in said[1 : 1 + len(used)]])


async def _largest(comm: Comm, flags: Tensor) -> Tensor:
    return await comm.all_reduce(flags, "max")


def _finite(x: Tensor) -> bool:
    """A sum is finite only if every term is; if the sum is not, it may merely have overflowed."""
    return math.isfinite(float(x.sum())) or bool(x.isfinite().all())


def _stop(lane: Lane, watch: Watch) -> None:
    lane.close()
    watch.stop()


def _rescale(exchange: Exchange, chunk: Chunk, lr: float) -> None:
    """Residuals are in units of the gradient; keep lr times the residual when the learning rate changes."""
    if lr > 0:
        if chunk.lr is not None and chunk.lr != lr:
            exchange.rescale(chunk.state, chunk.lr / lr)
        chunk.lr = lr
