"""Stage: where real steps are taken: a copy of the model between the hosts, under a method or one of DDP's ways."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from thinwire.engine.attach import attach
from thinwire.planning.rivals import RIVALS

if TYPE_CHECKING:
    from torch import nn

    from thinwire.core.method import Method
    from thinwire.planning.company import Company
    from thinwire.planning.computing import Makes, Step


@final
@dataclass(frozen=True)
class Stage:
    """The model stays as it is. All ranks do the same at the same time."""

    model: nn.Module
    makes: Makes
    company: Company

    @contextmanager
    def attached(self, method: Method) -> Iterator[Step]:
        """Steps under a method of ours."""
        net = copy.deepcopy(self.model)
        step, optimizer = self.makes(net)
        with attach(net, optimizer, method):
            yield step

    @contextmanager
    def rival(self, name: str) -> Iterator[Step]:
        """Steps under DDP or one of its hooks, by the name that `RIVALS` has for it."""
        assert self.company.everybody is not None  # there are hosts
        yield self.makes(RIVALS[name].wrap(copy.deepcopy(self.model), self.company.everybody, None))[0]

    def seconds(self, step: Step, times: int = 1) -> float:
        """Of a step on this rank, from when all ranks start; the mean of so many in a row."""
        self.company.together()
        start = time.perf_counter()
        for _ in range(times):
            step()
        return (time.perf_counter() - start) / times
