"""Company: the ranks that measure at the same time, and those of them that share this machine.

Ranks that share a machine share its cores, its memory and its GPU, and what one of them computes takes longer while
the others do the same. They therefore measure in step: they wait for each other before everything that is timed. A
machine is known by the identity of its running kernel, which is the same in all network namespaces.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist

from thinwire.comm.control import of_first
from thinwire.engine.naming import new_group
from thinwire.planning.link import LANES

Reduction: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
BOOT = Path("/proc/sys/kernel/random/boot_id")


@final
@dataclass(frozen=True)
class Company:
    """`here` counts the ranks on this machine, with this one; groups are gloo's, and None for a rank by itself."""

    here: int = 1
    everybody: dist.ProcessGroup | None = None
    mates: dist.ProcessGroup | None = None  # those on this machine, where there are several
    lanes: tuple[dist.ProcessGroup, ...] = ()  # of everybody, for what travels at the same time

    @classmethod
    def of_group(cls) -> Company:
        """The ranks of the default process group, all of which call this."""
        everybody = new_group(backend="gloo")
        machines = [int(found) for found in _gathered(torch.tensor([_number(machine())]), everybody)]
        mine, here, mates = machines[dist.get_rank()], 1, None
        for one in dict.fromkeys(machines):  # every rank makes every group, in one order
            ranks = [rank for rank, other in enumerate(machines) if other == one]
            made = new_group(ranks, backend="gloo") if len(ranks) > 1 else None
            if one == mine:
                here, mates = len(ranks), made
        return cls(here, everybody, mates, tuple(new_group(backend="gloo") for _ in range(LANES)))

    def together(self) -> None:
        """Wait for everybody."""
        if self.everybody is not None:
            dist.barrier(self.everybody)

    def in_step(self) -> None:
        """Wait for those on this machine."""
        if self.mates is not None:
            dist.barrier(self.mates)

    def slowest(self, values: Sequence[float]) -> list[float]:
        """The largest of all ranks, value by value."""
        return self._reduced(values, lambda found: found.amax(0))

    def typical(self, values: Sequence[float]) -> list[float]:
        """The median of all ranks, value by value; of an even number of ranks, the mean of the two in the middle."""
        return self._reduced(values, lambda found: found.quantile(0.5, dim=0))

    def total_here(self, values: Sequence[float]) -> list[float]:
        """The sum over the ranks on this machine, value by value."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        return mine.tolist() if self.mates is None else torch.stack(_gathered(mine, self.mates)).sum(0).tolist()

    def of_first(self, mine: Any) -> Any:
        """What rank 0 has, in values that JSON has."""
        return mine if self.everybody is None else of_first(mine, self.everybody)

    def agree(self, what: object) -> bool:
        """Whether `what` reads the same on all ranks."""
        number = torch.tensor([_number(repr(what))])
        return self.everybody is None or len({int(one) for one in _gathered(number, self.everybody)}) == 1

    def _reduced(self, values: Sequence[float], over: Reduction) -> list[float]:
        mine = torch.tensor(list(values), dtype=torch.float64)
        if self.everybody is None or not len(mine):
            return mine.tolist()
        return [float(one) for one in over(torch.stack(_gathered(mine, self.everybody)))]


def machine() -> str:
    """What names the machine on which this process runs; its name on the network where the kernel has no identity."""
    return BOOT.read_text().strip() if BOOT.exists() else platform.node()


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _gathered(mine: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return found
