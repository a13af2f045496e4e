"""What `attach` refuses before anything is sent: schedules that the engine lacks, and graphs that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.core.method import Method


def check_method(method: Method, ranks: int, *, drop_dead: bool) -> None:
    """Refuse a method that `attach` cannot run, with the line to write instead."""
    sync, exchange = method.sync, method.exchange
    models = sync.of.models
    together = sync.staleness == 0 or (sync.staleness is None and exchange.asynchronous)
    if not together or (sync.every != 1 and not models):
        raise ValueError(f"attach exchanges every step, at once; got {sync!r}: write Sync()")
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
