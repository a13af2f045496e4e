"""Profile: all that is measured of a model on this machine, from which every method is replayed on any link.

`measured` trains copies of the model, so that the model itself stays as it is. Codecs are timed on the model's own
gradient, bucket by bucket, once by themselves and once beside a training loop, as the engine's lanes run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, final

import torch

from thinwire.engine.plan import plan_of
from thinwire.planning.alone import ENGINE, overheads
from thinwire.planning.computing import Computing, gradients, measure
from thinwire.planning.contestant import Contestant, of_method
from thinwire.planning.link import Sockets
from thinwire.planning.record import record
from thinwire.planning.rivals import RIVALS
from thinwire.planning.script import Work

if TYPE_CHECKING:
    from torch import Tensor, nn

    from thinwire.core.method import Method
    from thinwire.engine.plan import Parcel
    from thinwire.planning.computing import Makes, Step
    from thinwire.planning.script import Script

ROUNDS, BESIDE = 3, 2  # of each bucket that are timed, alone and beside a training loop
MOST = 2.0  # times, by which both may differ from what sharing cores explains; more was something else on the machine


@final
@dataclass
class Profile:
    """Of one rank. `spent` are seconds per step of DDP's ways and of the engine, besides what they send."""

    computing: Computing
    grads: Mapping[str, Tensor]
    spent: dict[str, float]
    sockets: Sockets
    step: Step | None = None  # a step of training, to be run beside codecs
    say: Callable[[str], None] = field(default=lambda text: None)
    _known: dict[tuple[object, ...], tuple[Script, ...]] = field(default_factory=dict)

    def rivals(self) -> list[Contestant]:
        """DDP and its hooks."""
        items = self.computing.items
        return [rival.contestant(name, items, self.spent.get(name, 0.0)) for name, rival in RIVALS.items()]

    def contestant(self, method: Method, ranks: int) -> Contestant:
        """A method on so many ranks, measured now."""
        self.say(method.id)

        def recorded(method: Method, parcel: Parcel) -> tuple[Script, ...]:
            return self._recorded(method, parcel, ranks)

        made = of_method(method, self.computing.items, ranks, recorded)
        beside, disturbed = self._beside(made, method, ranks)
        return replace(made, overhead=self.spent.get(ENGINE, 0.0), beside=beside, disturbed=disturbed)

    def _recorded(self, method: Method, parcel: Parcel, ranks: int, rounds: int = ROUNDS) -> tuple[Script, ...]:
        """Buckets of equal shapes are measured once."""
        which = (method.id, parcel.layout.shapes, parcel.compressed, ranks, rounds)
        if which not in self._known:
            self._known[which] = record(method, parcel, self._flat(parcel), ranks, rounds)
        return self._known[which]

    def _flat(self, parcel: Parcel) -> Tensor:
        return torch.cat([self.grads[item.name] for item in parcel.items])

    def _beside(self, made: Contestant, method: Method, ranks: int) -> tuple[float, float]:
        """What a codec takes longer beside a training loop, and the loop beside a codec, cores apart."""
        if self.step is None or not made.codec:
            return 1.0, 1.0
        parcel = max(plan_of(method, self.computing.items, None, ()).parcels, key=lambda one: one.layout.numel)
        alone = sum(script.seconds for script in self._recorded(method, parcel, ranks))
        flat, times = self._flat(parcel), []
        with ThreadPoolExecutor(1) as lane:
            going = lane.submit(record, method, parcel, flat, ranks, BESIDE)
            while not going.done():
                start = time.perf_counter()
                self.step()
                times.append(time.perf_counter() - start)
        both = sum(script.seconds for script in going.result())
        cores = self.computing.cores + _cores(self._recorded(method, parcel, ranks))
        expected = max(1.0, cores / self.computing.share)
        whole = times[:-1] or times  # the last may have had the machine to itself
        slower = (both / alone, median(whole) / self.computing.step)
        beside, disturbed = (min(MOST, max(1 / MOST, max(1.0, one) / expected)) for one in slower)
        return beside, disturbed


def _cores(scripts: tuple[Script, ...]) -> float:
    works = [part for script in scripts for part in script.parts if isinstance(part, Work)]
    total = sum(work.seconds for work in works)
    return sum(work.seconds * work.cores for work in works) / total if total else 0.0


def measured(
    model: nn.Module, makes: Makes, *, share: float, sockets: Sockets, say: Callable[[str], None] = lambda text: None
) -> Profile:
    """Train copies of `model` as `makes` says, and measure."""
    say("computing")
    twin = copy.deepcopy(model)
    computing = measure(twin, makes, share=share)
    grads = gradients(twin, computing.items)
    say("DDP and its hooks")
    spent = overheads(model, makes)
    step, _ = makes(twin)
    return Profile(computing, grads, spent, sockets, step, say)
