"""What one run was: its tests tick by tick, when every step ended, and the row that is made of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

from thinwire.lab.records import Row
from thinwire.lab.stragglers.course import LEARNT, TASK, TESTS, TICK, Run

Where = Literal["processes", "clock"]
SHOWN = 2  # ticks from one point of a curve to the next
SAME = 1e-9  # seconds, or ticks, that are rounding errors
FIGURES = ("updates", "dropped", "staleness_mean", "staleness_max")  # of a server; AD-PSGD has the last two


@final
@dataclass
class Measured:
    """The k-th test is of the model as it was at (k + 1) `TICK`; `ends` has the seconds of every step, by rank."""

    target: float
    limit: float
    ends: list[list[float]]
    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    def due(self, seconds: float) -> int:
        """Tests that are still to be made of models as they were before this time."""
        ticks = round(self.limit / TICK)
        if seconds <= self.limit:
            ticks = math.ceil(seconds / TICK - SAME) - 1
        return max(0, ticks - len(self.accuracy))

    def tested(self, figures: Mapping[str, float], times: int = 1) -> None:
        """Add a test, which stands for so many ticks in which nothing changed."""
        self.accuracy += [figures["accuracy"]] * times
        self.loss += [figures["loss"]] * times

    @property
    def arrival(self) -> int | None:
        """The first test at which the mean of the last `TESTS` has reached the target."""
        for k in range(TESTS - 1, len(self.accuracy)):
            if self._smooth(k) >= self.target:
                return k
        return None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to test."""
        return not self.due(math.inf)

    @property
    def lost(self) -> bool:
        """Whether the loss is no longer a number."""
        return bool(self.loss) and not math.isfinite(self.loss[-1])

    @property
    def hopeless(self) -> bool:
        """Whether after a quarter of the time the accuracy is below the share of the time that is over.

        What has learnt something goes on to the limit: a slow method may still arrive.
        """
        share = len(self.accuracy) * TICK / self.limit
        return share > 1 / 4 and self._smooth(len(self.accuracy) - 1) < min(share, LEARNT)

    def row(self, run: Run, where: Where, stats: Mapping[str, float], load: float | None = None) -> Row:
        """One row, with its curves, in which the accuracy is the mean of the last tests.

        `stats` are those of rank 0, and `load` is the machine's before the run.
        """
        at, last = self.arrival, len(self.accuracy) - 1
        ticks = [round(TICK * (k + 1), 6) for k in range(len(self.accuracy))]
        length = ticks[-1] if ticks else 0.0
        steps = [[_until(ends, t) for ends in self.ends] for t in ticks]
        done = steps[-1] if steps else [0] * run.workers
        ages = {name.removeprefix("staleness_"): count for name, count in stats.items() if name not in FIGURES}
        return {
            "task": TASK,
            "stragglers": run.stragglers,
            "where": where,
            "workers": run.workers,
            "rate": run.rate,
            "method": run.method,
            "seed": run.seed,
            "lr": run.lr,
            "target": run.target,
            "limit": run.limit,
            "reached": at is not None,
            "seconds": ticks[at] if at is not None else length,
            "steps": sum(steps[at] if at is not None else done),
            "accuracy": self._smooth(last) if last >= 0 else 0.0,
            "loss": self.loss[-1] if self.loss else math.nan,
            "steps_per_s": sum(done) / length if length else 0.0,
            "fastest": max(done),
            "slowest": min(done),
            **{name: stats.get(name) for name in FIGURES},
            "staleness": " ".join(f"{age}:{count:g}" for age, count in ages.items() if age.isdigit()),
            "load": load,
            "curves": {
                "seconds": ticks[SHOWN - 1 :: SHOWN],
                "accuracy": [round(self._smooth(k), 5) for k in range(len(ticks))][SHOWN - 1 :: SHOWN],
                "loss": [round(loss, 5) for loss in self.loss][SHOWN - 1 :: SHOWN],
                "steps": steps[SHOWN - 1 :: SHOWN],
            },
        }

    def _smooth(self, k: int) -> float:
        return sum(self.accuracy[max(0, k + 1 - TESTS) : k + 1]) / TESTS


def _until(ends: Sequence[float], seconds: float) -> int:
    """Steps that had ended by then."""
    return sum(end <= seconds + SAME for end in ends)
