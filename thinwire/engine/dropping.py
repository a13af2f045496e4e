"""Dropping: the neighbours that this rank has given up, and whether enough ranks are left to go on.

A rank goes on with those whom it can still reach over edges of the graph, by way of others too. It knows which of its
own edges broke, and asks all ranks whether they are there (`engine/liveness.py`), which it does from the first
neighbour on that it gives up. Where fewer are left than the quorum, it raises: a machine that was cut off from the
others would otherwise train alone to the end, and end as if all were well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from thinwire.core.errors import PeerError
from thinwire.engine.liveness import ALSO, Peer
from thinwire.engine.waiting import named

if TYPE_CHECKING:
    from thinwire.engine.watch import Watch

log = logging.getLogger("thinwire")
ALONE = 2  # the quorum, unless it is given
REFUSED = 3.0  # seconds after which a rank whose port is closed has died, or has ended
OFTEN = 1.0  # seconds between counts


@final
class Dropping:
    """What one rank has given up. `edges` are those of the graph, all steps of it; `gone` is shared with drivers."""

    def __init__(self, watch: Watch, edges: Sequence[tuple[int, int]], quorum: int, timeout: float) -> None:
        self.gone: set[int] = set()
        self._watch, self._edges, self._quorum, self._timeout = watch, edges, quorum, timeout
        self._lock = threading.Lock()
        self._known: set[int] = set()
        self._counted = 0.0  # when

    def drop(self, peer: int, why: BaseException | None) -> None:
        """Go on without a neighbour. Threads of several edges call it."""
        with self._lock:
            if peer in self._known:
                return
            self._known.add(peer)
        self.gone.add(peer)
        watch = self._watch
        cause = str(why)
        if watch.liveness is not None:
            if len(self._known) == 1:
                watch.liveness.ask(on=True)
            other = watch.liveness.peers.get(peer)
            if watch.waiting is not None and other is not None and other.unreachable is not None:
                cause = watch.waiting.describe([peer])
        mine, theirs = watch.names(watch.rank), watch.names(peer)
        log.warning("rank %d has dropped rank %d, and goes on without it: %s", mine, theirs, cause)

    def check(self) -> None:
        """Raise PeerError where too few are left."""
        now = time.monotonic()
        if not self._known or now - self._counted < OFTEN:
            return
        self._counted = now
        if self._quorum <= 1 or len(self._left(self._dead())) >= self._quorum:
            return
        dead = self._dead() - self._watch.ended_well()
        left = sorted(self._left(dead))
        if len(left) >= self._quorum:
            return
        watch = self._watch
        lost = tuple(watch.names(rank) for rank in range(watch.size) if rank not in left)
        still = "alone" if len(left) == 1 else f"among {named([watch.names(rank) for rank in left])}"
        raise PeerError(
            f"{watch.names.of([watch.rank])} is left {still}, and has lost {named(lost)}; at least {self._quorum} "
            "must be left to go on. Write quorum=1 where a rank may go on alone",
            lost,
        )

    def _dead(self) -> set[int]:
        """Ranks that are not there for anybody, as far as this one knows."""
        peers = {} if self._watch.liveness is None else self._watch.liveness.peers
        now = time.monotonic()
        silent = {rank for rank, peer in peers.items() if peer.met and self._is_dead(peer, now)}
        return silent | {rank for rank in self._known if rank not in peers or not peers[rank].met}

    def _is_dead(self, peer: Peer, now: float) -> bool:
        limits = ((peer.refused, REFUSED), (peer.unreachable, ALSO), (peer.silent, self._timeout))
        return any(since is not None and now - since >= limit for since, limit in limits)

    def _left(self, dead: set[int]) -> set[int]:
        """The part of the graph that this rank is in, without the dead and without its own broken edges."""
        rank = self._watch.rank
        edges = [
            {a, b}
            for a, b in self._edges
            if not {a, b} & dead and not (rank in (a, b) and (a in self._known or b in self._known))
        ]
        left = {rank}
        while reached := set().union(*(edge for edge in edges if edge & left)) - left:
            left |= reached
        return left
