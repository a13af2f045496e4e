"""Sharded: this rank holds one shard of a replica, and the ranks that hold the others decide together with it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist

from thinwire.engine.share import Share

if TYPE_CHECKING:
    from thinwire.engine.checkpoint import Saved
    from thinwire.engine.parameters import Trained


@final
class Sharded(Share):
    """The shards of the parameters `members` on this rank; `ranks` hold the replica together."""

    def __init__(self, members: Sequence[Trained], ranks: Sequence[int], timeout: float) -> None:
        self.members, self.ranks = list(members), sorted(ranks)
        self._at = self.ranks.index(dist.get_rank())
        # Decisions are single numbers that the host waits for, so they travel from host to host.
        self._group = dist.new_group(
            self.ranks, timeout=timedelta(seconds=timeout), backend="gloo", use_local_synchronization=True
        )

    @property
    def name(self) -> str:
        """Which shard."""
        return f"shard {self._at} of {len(self.ranks)}"

    def agree(self, broken: bool) -> bool:
        """Whether it is broken in any shard: a step that some of them leave out would tear the model apart."""
        if len(self.ranks) == 1:
            return broken
        flag = torch.tensor(int(broken))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag)

    def gather(self, mine: Any) -> list[Any]:
        """What each rank of the replica says; all of them call it."""
        said: list[Any] = [None] * len(self.ranks)
        dist.all_gather_object(said, mine, group=self._group)
        return said

    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        """To come."""
        return state

    def loaded(self, saved: Saved) -> Saved:
        """To come."""
        return saved

    def read(self, path: str, name: str) -> list[dict[str, Any]]:
        """To come."""
        raise NotImplementedError
