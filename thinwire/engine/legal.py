"""What `attach` refuses before anything is sent: schedules that the engine lacks, and graphs that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thinwire.core.signals import Grad, Param

if TYPE_CHECKING:
    from thinwire.core.method import Method


def check_method(method: Method, ranks: int, *, drop_dead: bool) -> None:
    """Refuse a method that `attach` cannot run, with the line to write instead."""
    sync, exchange = method.sync, method.exchange
    models = sync.of.models
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
    if sync.of.outer and (exchange.scope != "everybody" or sync.warmup):
        raise ValueError(f"{sync.of!r} is for exchanges of all ranks, without warm-up; got {method!r}")
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


def _check_served(method: Method, ranks: int, *, drop_dead: bool) -> None:
    """A server takes the gradients of every step, or models; how far apart workers may be is for its rule to say."""
    sync, exchange = method.sync, method.exchange
    if exchange.local_steps:
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
