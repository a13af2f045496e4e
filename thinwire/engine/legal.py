"""What `attach` refuses before anything is sent: schedules that the engine lacks, and graphs that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.core.method import Method


def check_method(method: Method, ranks: int, *, drop_dead: bool) -> None:
    """Refuse a method that `attach` cannot run, with the line to write instead."""
    sync, exchange = method.sync, method.exchange
    models = sync.of.models
    if sync.staleness is None and not exchange.asynchronous:
        raise ValueError(f"{exchange.name} has rounds that ranks take together; got {sync!r}: write Sync()")
    if sync.staleness and not (sync.of.lasts and exchange.scope == "everybody"):
        raise ValueError(f"only gradients that all ranks exchange may come late; got {sync!r}: write Sync()")
    if sync.every != 1 and not models:
        raise ValueError(f"attach exchanges gradients in every step; got {sync!r}: write Sync()")
    if sync.of.outer and (exchange.scope != "everybody" or sync.warmup):
        raise ValueError(f"{sync.of!r} is for exchanges of all ranks, without warm-up; got {method!r}")
    served = exchange.scope == "server" and sync.staleness is None
    if sync.of.added != served or (served and sync.every != 1):
        raise ValueError(
            f"steps are for a server, which adds each of them: Method(Server(), Sync(of=Update(), staleness=None)); "
            f"got {exchange.name} with {sync!r}: write Sync(), or Sync(of=Param()) to exchange models"
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
