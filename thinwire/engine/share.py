"""Share: how much of a replica of the model this rank holds, and what that asks of decisions and of checkpoints.

Ranks that exchange hold the same share. Under `attach` that is the whole model; under `fsdp` it is a shard, and the
ranks that hold the other shards of the same replica must come to the same decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from thinwire.engine import checkpoint
from thinwire.engine.checksums import sealed

if TYPE_CHECKING:
    from thinwire.core.method import Method


class Share(ABC):
    """Base class."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called when ranks compare what they hold."""

    @property
    @abstractmethod
    def speaks(self) -> bool:
        """Whether this rank says what concerns all that hold this replica."""

    @abstractmethod
    def check(self, method: Method) -> None:
        """ValueError if the method cannot be used on such a share."""

    @abstractmethod
    def agree(self, broken: bool) -> bool:
        """Whether something is broken on any rank of this replica; all of them call it."""

    @abstractmethod
    def forget_copies(self) -> None:
        """Parameters change outside of a step: copies that something has made of them are no longer right."""

    @abstractmethod
    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        """The form in which a state of this rank goes into a checkpoint."""

    @abstractmethod
    def check_gathered(self) -> None:
        """ValueError if one rank cannot have the states of all."""

    @abstractmethod
    def loaded(self, saved: checkpoint.Saved) -> checkpoint.Saved:
        """The states again, from that form."""

    @abstractmethod
    def read(self, path: str, name: str) -> list[dict[str, Any]]:
        """The states of all replicas from a torch.distributed.checkpoint, in the form in which they were stored."""


@final
class Whole(Share):
    """All of the model."""

    name = "all of it"
    speaks = True

    def check(self, method: Method) -> None:
        """Any can."""

    def agree(self, broken: bool) -> bool:
        """Nobody else is asked."""
        return broken

    def forget_copies(self) -> None:
        """There are none."""

    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        """As it is, with checksums."""
        return {rank: sealed(mine) for rank, mine in state.items()}

    def check_gathered(self) -> None:
        """It can."""

    def loaded(self, saved: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> checkpoint.Saved:
        """As it is."""
        return saved

    def read(self, path: str, name: str) -> list[dict[str, Any]]:
        """One state per rank."""
        return checkpoint.read(path, name)
