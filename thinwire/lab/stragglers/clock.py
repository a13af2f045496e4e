"""The race on the clock: the same problem, method and stragglers, on virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.lab.records import Row
from thinwire.lab.stragglers import course
from thinwire.lab.stragglers.course import LATENCY, Run
from thinwire.lab.stragglers.ending import Ending
from thinwire.lab.stragglers.kinds import KINDS
from thinwire.lab.stragglers.measured import Measured
from thinwire.sim import Moment


def race(run: Run) -> Row:
    """One run. The same run gives the same row."""
    method, problem, models = tw.method(run.method), course.problem(run), []
    tested, measured = course.tester(problem), Measured(run.target, run.limit, [[] for _ in range(run.workers)])
    last: list[int] = []  # what rank 0 has named
    ending = Ending(method, run.workers, last.append, lambda: last[0] if last else None)
    now = 0.0

    def model() -> nn.Module:
        models.append(problem.model())
        return models[-1]

    held: list[Tensor] = [course.flat(problem.model())] * run.workers  # models as of their last step

    def watch(moment: Moment) -> None:
        nonlocal now
        now = moment.seconds
        if (due := measured.due(now)) and not over():
            mean = torch.stack(held).mean(0) if course.averaged(method) else held[0]
            measured.tested(tested(mean), due)
        held[moment.rank] = course.flat(models[moment.rank])
        measured.ends[moment.rank].append(now)

    def over() -> bool:
        if measured.lost or measured.complete:
            return True
        return (run.gives_up and measured.hopeless) or (not run.whole and measured.arrival is not None)

    def until(rank: int, step: int) -> bool:
        return ending.over(rank, step, over())

    stats: Mapping[str, float] = {}
    try:
        stats = tw.simulate(
            method,
            replace(problem, model=model),
            run.workers,
            steps=1 << 30,
            network=tw.Network(run.rate, LATENCY),
            stragglers=KINDS.parse(run.stragglers).of(run.workers),
            seed=run.seed,
            watch=watch,
            until=until,
        ).stats[0]
    except FloatingPointError:  # a gossiping model is no longer finite
        measured.tested({"accuracy": 0.0, "loss": float("nan")})
    return measured.row(run, "clock", stats)
