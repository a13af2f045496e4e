"""simulate: how long training takes on a network that is not there, and what comes out of it.

Every worker trains: its gradients, messages and models are real, and only time is virtual. The schedule and the
exchanges are those of `attach`; the same seed gives the same run, to the bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import nn

from thinwire.comm.clock import VirtualClock
from thinwire.engine.legal import check_method
from thinwire.engine.misuse import check_method_type
from thinwire.sim.arguments import check_arguments
from thinwire.sim.problem import PROBLEMS, Problem
from thinwire.sim.worker import Setting, Worker

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.comm.network import Network
    from thinwire.comm.stragglers import Stragglers
    from thinwire.core.method import Method

log = logging.getLogger("thinwire")


class Moment(NamedTuple):
    """One worker has ended one step."""

    seconds: float
    rank: int
    step: int
    loss: float  # before the step


@final
@dataclass(frozen=True)
class Simulation:
    """What `simulate` returns."""

    seconds: float  # until the last worker had ended
    moments: tuple[Moment, ...]  # in the order of time
    stats: tuple[dict[str, float], ...]  # as `Wire.stats`, by worker
    models: tuple[nn.Module, ...]
    tests: tuple[dict[str, float], ...]  # what the problem's test says about each model
    anchors: tuple[dict[str, Tensor], ...] = ()  # as `Wire.anchor`, by worker, where there is an outer loop

    @property
    def bytes_sent(self) -> int:
        """By all workers."""
        return int(sum(one["bytes_sent"] for one in self.stats))

    def __str__(self) -> str:
        steps = max((1 + one.step for one in self.moments), default=0)
        if not steps:
            return f"{len(self.models)} workers, no steps, {self.seconds:.3f} s"
        lines = [
            f"{len(self.models)} workers, {steps} steps, {self.seconds:.3f} s",
            f"{self.seconds / steps * 1000:.2f} ms per step",
            f"{self.bytes_sent / len(self.models) / steps:,.0f} bytes per worker and step",
        ]
        for name in self.tests[0]:
            lines.append(f"{name} {sum(one[name] for one in self.tests) / len(self.tests):.4g}")
        return "\n".join(lines)


def simulate(
    method: Method,
    task: Problem | str,
    workers: int = 8,
    *,
    steps: int = 100,
    network: Network | None = None,
    stragglers: Stragglers | None = None,
    failures: Mapping[int, float] | None = None,
    seed: int = 0,
    min_size: int | None = None,
    watch: Callable[[Moment], None] | None = None,
    until: Callable[[int, int], bool] | None = None,
) -> Simulation:
    """Train `task` on `workers` simulated workers for so many steps.

    `task` is the name of a task of the lab, such as "digits", or a `thinwire.sim.Problem`. Without a `network` it has
    1 Gbit/s and 1 ms. `watch` is told of every step of every worker. `until(rank, step)` is asked before each step: a
    worker for which it is true ends there, and so does one that has used up the budget of `Wire.batch`. Servers set
    apart are among the workers. `failures` says which ranks die, and after how many seconds: PeerError is raised when
    the others can no longer go on.

    >>> import thinwire as tw
    >>> print(tw.simulate(tw.methods.qsgd(), "digits", workers=4, steps=2, network=tw.Network("100mbit", "1ms")))
    4 workers, 2 steps, 0.2... s
    1... ms per step
    ... bytes per worker and step
    accuracy 0...
    """
    check_method_type(method, "tw.simulate({}, task)")
    check_arguments(
        "simulate",
        workers,
        steps,
        seed,
        min_size,
        network=network,
        stragglers=stragglers,
        failures=failures,
        watch=watch,
        until=until,
    )
    if not isinstance(task, Problem | str):
        raise TypeError(f"{type(task).__name__} is no task; write tw.simulate(method, tw.sim.Problem(model, loss))")
    if steps < 1:
        raise ValueError(f"simulate(steps={steps}) trains nothing; write steps=100")
    check_method(method, workers, drop_dead=False)
    if doubt := method.sync.of.too_few_rounds(steps, method.sync.every):
        log.warning("%s: %s", method.id, doubt)
    problem = PROBLEMS[task](workers, seed) if isinstance(task, str) else task
    clock = VirtualClock(workers, network, stragglers, seed)
    setting = Setting(problem, method, min_size, seed)
    everybody = [Worker(clock, rank, setting) for rank in range(workers)]
    for worker in everybody[1:]:  # as `attach` does it, since a task may draw its weights
        worker.model.load_state_dict(everybody[0].model.state_dict())
    moments: list[Moment] = []
    ended: list[float] = []  # when each worker had; one that is to die later does so without counting

    async def life(worker: Worker) -> None:
        worker.begin()
        await worker.driver.start()
        for number in range(steps if worker.driver.schedule.trains else 0):
            if worker.done or (until is not None and until(worker.rank, number)):
                break
            loss = await worker.step(number)
            moments.append(Moment(clock.now, worker.rank, number, loss))
            if watch is not None:
                watch(moments[-1])
        await worker.driver.ends()
        ended.append(clock.now)

    for rank, time in (failures or {}).items():
        clock.check_failure(rank, time)
    with torch.no_grad():  # tasks take turns, so that what one of them turns on must not stay on
        for worker in everybody:
            clock.spawn(worker.rank, life(worker))
        for rank, time in (failures or {}).items():
            clock.fail(rank, time)
        clock.run()
    stats = tuple({**one.driver.schedule.report(), **one.runner.telemetry.report()} for one in everybody)
    tests = tuple({} if problem.test is None else problem.test(one.model) for one in everybody)
    anchors = tuple(one.driver.schedule.anchor() for one in everybody if method.sync.of.outer_loop)
    return Simulation(
        max(ended, default=clock.now), tuple(moments), stats, tuple(one.model for one in everybody), tests, anchors
    )
