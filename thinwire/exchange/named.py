"""Exchanges by name: the choice that methods which run over more than one architecture give their users.

all-gather       every payload to every rank: one lossy step, n-1 payloads per rank
scatter-gather   through the owners of shards: two lossy steps, 2 (n-1)/n payloads per rank
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from thinwire.core.channel import Channel
from thinwire.core.config import check_choice
from thinwire.core.exchange import Exchange
from thinwire.exchange.all_gather import AllGather
from thinwire.exchange.scatter_gather import ScatterGather

Named = Literal["scatter-gather", "all-gather"]

EXCHANGES: dict[str, Callable[[Channel], Exchange]] = {"scatter-gather": ScatterGather, "all-gather": AllGather}


def through(method: str, exchange: Named, channel: Channel) -> Exchange:
    """The exchange called `exchange`, with `channel` on all its hops."""
    check_choice(method, "exchange", exchange, tuple(EXCHANGES))
    return EXCHANGES[exchange](channel)
