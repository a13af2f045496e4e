"""What `attach` refuses before anything is sent: schedules that the engine lacks, and graphs that do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from thinwire.core.signals import Grad, Param
from thinwire.engine.motion import depth_of
from thinwire.sync.delta import Delta

if TYPE_CHECKING:
    from thinwire.core.method import Method


def check_method(method: Method, ranks: int, *, drop_dead: bool, sums: bool = False) -> None:
    """Refuse a method that `attach` cannot run, with the line to write instead; it `sums` where reduce is "sum"."""
    sync, exchange = method.sync, method.exchange
    models = sync.of.models
    if sums:
        _check_sums(method)
    _check_planned(method)
    _check_forward(method)
    if sync.batches is not None and (models or exchange.served or sync.staleness != 0):
        raise ValueError(
            f"batches are said where gradients are exchanged in step; got {method!r}: "
            f"write Method(AllReduce(), Sync(batches={sync.batches!r}))"
        )
    if exchange.served:
        _check_served(method, ranks, drop_dead=drop_dead)
        return
    if sync.staleness is None and not exchange.asynchronous:
        write = "Server(rule=thinwire.server.Asgd())" if exchange.scope == "server" else "Sync()"
        raise ValueError(f"{exchange.name} has rounds that ranks take together; got {sync!r}: write {write}")
    if sync.staleness and not (sync.of.lasts and exchange.scope == "everybody"):
        raise ValueError(f"only gradients that all ranks exchange may come late; got {sync!r}: write Sync()")
    if sync.every != 1 and not models:
        raise ValueError(f"attach exchanges gradients in every step; got {sync!r}: write Sync()")
    if isinstance(sync.of, Delta):
        _check_outer(method, sync.of)
    elif models and exchange.scope == "everybody" and exchange != exchange.plain:
        raise ValueError(
            f"{exchange.name} would compress the parameters themselves, and lose what it rounds away of the model; "
            f"write Sync(of=thinwire.sync.Delta(), every={sync.every}) to exchange how far they have moved"
        )
    if exchange.scope == "neighbours":
        if not models:
            raise ValueError(f"{exchange.name} exchanges models; got {sync!r}: write Sync(of=Param())")
        if sync.warmup:
            raise ValueError(f"gossip has no uncompressed steps; got {sync!r}: write Sync(of=Param())")
    exchange.check(ranks)
    if not drop_dead:
        return
    if exchange.scope != "neighbours":
        raise ValueError(
            f"drop_dead is for methods that gossip; {method.id} needs every rank: write deepsqueeze(), or d_psgd()"
        )
    if exchange.cannot_drop:
        raise ValueError(f"{method.id} cannot go on without a neighbour; {exchange.cannot_drop}")


def _check_sums(method: Method) -> None:
    if method.sync.of.models or method.exchange.served:
        raise ValueError(
            f"{method.id} exchanges no gradients that could be summed; divide the loss by the samples or tokens of "
            "this rank, not of all ranks, and write reduce='mean'"
        )
    if not method.exchange.keeps_scale:
        raise ValueError(f"{method.id} votes, and the length of its result means nothing; write reduce='mean'")


def _check_planned(method: Method) -> None:
    """Buckets are planned where all ranks exchange gradients in rounds."""
    sync, exchange = method.sync, method.exchange
    gradients = not (sync.of.models or exchange.served or sync.batches is not None or sync.staleness is None)
    if method.overlap.buckets != "fixed" and not (gradients and exchange.scope == "everybody"):
        raise ValueError(
            f"{method.id}: only gradients that backward fills buckets with are planned; "
            'write Overlap(buckets="fixed")'
        )
    if method.overlap.buckets != "fixed" and exchange.one_piece:
        raise ValueError(f'{method.id} exchanges the model in one piece; write Overlap(buckets="fixed")')


def can_go_into_forward(method: Method) -> bool:
    """Whether its results may arrive during the next forward pass."""
    try:
        _check_forward(replace(method, overlap=replace(method.overlap, into_forward="ready")))
    except ValueError:
        return False
    return True


def _check_forward(method: Method) -> None:
    """Results may arrive in the next forward pass where they are gradients of this step, bucket by bucket."""
    sync, exchange = method.sync, method.exchange
    if method.overlap.into_forward is None:
        return
    in_step = isinstance(sync.of, Grad) and sync.staleness == 0 and sync.batches is None and not exchange.served
    if sync.adapt is not None:
        raise ValueError(
            f"{method.id} chooses compressors between two steps, when nothing is under way; "
            "write Overlap(into_forward=None)"
        )
    if not in_step or exchange.scope != "everybody":
        raise ValueError(
            f"{method.id}: only gradients that all ranks exchange in step may arrive in the next forward pass; "
            "write Overlap(into_forward=None)"
        )
    if exchange.one_piece:
        raise ValueError(f"{method.id} exchanges the model in one piece; write Overlap(into_forward=None)")
    if depth_of(method):
        raise ValueError(
            f"{method.id} measures each step of the optimizer, which is whole only when all results are there; "
            "write Overlap(into_forward=None)"
        )


def _check_outer(method: Method, of: Delta) -> None:
    """An outer loop goes with every exchange that has rounds; some of it does not go with gossip."""
    sync, exchange = method.sync, method.exchange
    if sync.warmup:
        raise ValueError(f"an outer loop has no uncompressed steps; got {sync!r}: write warmup=0")
    if sync.every % of.fragments:
        raise ValueError(
            f"{of.fragments} fragments do not fit into a period of {sync.every} steps; "
            f"write every={of.fragments * max(1, sync.every // of.fragments)}"
        )
    if of.delay > sync.every:
        raise ValueError(
            f"what is launched must be used before the next round: delay={of.delay} is longer than "
            f"every={sync.every}; write delay={sync.every} or less"
        )
    if exchange.one_piece and of.fragments > 1:
        raise ValueError(f"{exchange.name} exchanges the model in one piece; write fragments=1")
    if exchange.scope == "neighbours":
        plain = replace(Delta(outer=of.outer), period=of.period, buffers=of.buffers, moments=of.moments)
        if of != plain or exchange.before_step or exchange.pulls or exchange.asynchronous:
            raise ValueError(
                f"an outer loop over neighbours has one fragment, no delay and Take(), and mixes after local steps; "
                f"got {method!r}: write thinwire.methods.d_psgd().exchange with Sync(of=Delta(), every=8)"
            )


def _check_ways(method: Method, of: Delta) -> None:
    """Workers of a server have no rounds in common, and go on from its answer."""
    sync, exchange = method.sync, method.exchange
    if not exchange.takes_ways:
        raise ValueError(
            f"{exchange!r} is not for pseudo-gradients; write Server(rule=thinwire.server.Asgd()), or another of "
            "Ssp(), Backup(), Softsync() and R2sp()"
        )
    if sync.warmup or of != Delta(outer=of.outer):
        raise ValueError(
            f"workers of a server push the way of all of the model and go on from the answer, each by itself; "
            f"got {sync!r}: write Sync(of=Delta(outer=...), every={sync.every}, staleness={sync.staleness})"
        )


def _check_served(method: Method, ranks: int, *, drop_dead: bool) -> None:
    """A server takes gradients, ways or models; how far apart workers may be is for its rule to say."""
    sync, exchange = method.sync, method.exchange
    if isinstance(sync.of, Delta):
        _check_ways(method, sync.of)
    elif exchange.local_steps:
        if not isinstance(sync.of, Param) or sync.warmup:
            raise ValueError(
                f"the workers of {exchange!r} push models; got {sync!r}: "
                f"write Sync(of=Param(), every=10, staleness={sync.staleness})"
            )
    elif not isinstance(sync.of, Grad) or sync.every != 1 or sync.warmup:
        raise ValueError(f"a server is pushed the gradient of every step; got {sync!r}: write Sync(staleness=None)")
    if exchange.bounded != (sync.staleness is not None):
        write = "Sync(staleness=4)" if exchange.bounded else "Sync(staleness=None)"
        raise ValueError(f"{exchange!r} with {sync!r}: write {write}")
    if drop_dead:
        raise ValueError(f"{method.id} goes on without workers that vanish by itself; leave drop_dead out")
    exchange.check(ranks)
