"""Worker: one rank of a simulation. Its training loop is a coroutine, and its schedule the one of `attach`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from thinwire.engine.driver import Driver
from thinwire.engine.loop import Loop
from thinwire.engine.motion import Motion, depth_of
from thinwire.engine.parameters import trained
from thinwire.engine.plan import plan_of
from thinwire.engine.planner import planner
from thinwire.engine.replicas import floating
from thinwire.engine.runner import Runner
from thinwire.engine.schedules.choose import schedule
from thinwire.engine.signal import source
from thinwire.engine.skipping import Skipping
from thinwire.engine.telemetry import Telemetry
from thinwire.engine.virtual import ClockTransport
from thinwire.sim.problem import FORWARD, Problem

if TYPE_CHECKING:
    from thinwire.comm.clock import VirtualClock
    from thinwire.core.method import Method


@final
@dataclass(frozen=True)
class Setting:
    """What the workers of a simulation have in common."""

    problem: Problem
    method: Method
    min_size: int | None
    seed: int


@final
class Worker:
    """A model, its optimizer and its schedule on the clock."""

    def __init__(self, clock: VirtualClock, rank: int, setting: Setting) -> None:
        self.clock, self.rank, self.problem, method = clock, rank, setting.problem, setting.method
        self.model = setting.problem.model()
        self.optimizer = setting.problem.optimizer(self.model.parameters())
        members = trained(self.model, self.optimizer)
        plan = plan_of(method, [item for _, item in members], setting.min_size, ())
        transport = ClockTransport(clock, rank, method.lanes())
        self._computed = 0.0  # seconds; the rest is waiting
        telemetry = Telemetry(
            transport.now, transport.traffic, clock.size, lambda: max(0.0, clock.now - self._computed)
        )
        self.runner = Runner(method, transport, telemetry, Motion(self.optimizer, depth_of(method)), setting.seed)
        signal, skipping = source(method.sync.of, self.optimizer), Skipping(self.optimizer, "skip")
        buffers = floating(self.model)
        loop = Loop(self.runner, plan, members, self.optimizer, skipping, lambda: False, signal, "", buffers)
        loop.planner = planner(method, [item for _, item in members], setting.min_size, ())
        self.driver = Driver(loop, schedule(loop))

    def begin(self) -> None:
        """Prepare to train; all models are equal."""
        self.driver.schedule.begin()

    @property
    def done(self) -> bool:
        """Whether the method's budget of samples is used up."""
        return self.problem.batch is not None and self.driver.schedule.batch(self.problem.batch) == 0

    async def step(self, number: int) -> float:
        """One step of training; returns the loss before it. Gradients become complete one by one during backward."""
        driver = self.driver
        into_forward = driver.schedule.into_forward
        loss = math.nan if into_forward else self._gradients(number)
        stragglers, seconds = self.clock.stragglers, self.problem.seconds
        if stragglers is not None:
            seconds *= stragglers.factor(self.rank, number, self.clock.seed)
        if self.problem.batch is not None:
            seconds *= driver.schedule.batch(self.problem.batch) / self.problem.batch
        if into_forward:
            await self._forward(FORWARD * seconds)
            loss = self._gradients(number)
        else:
            await self._compute(FORWARD * seconds)
        filling = driver.loop.filling
        places = [place for place in filling.places if place.one.parameter.grad is not None]
        if into_forward:  # whatever order buckets are sent in
            places = [filling.place(p) for p, _ in reversed(driver.loop.trained) if p.grad is not None]
        total = sum(place.one.item.numel for place in places)
        for place in places:  # last layer first, as the plan has them; larger tensors take longer
            await self._compute((1 - FORWARD) * seconds * place.one.item.numel / total)
            grad = place.one.parameter.grad
            assert grad is not None
            await driver.gradient(place.one.parameter, grad)
        if driver.schedule.hears_loss:
            driver.loop.losses.tell(loss)
        await driver.backward_ends()
        await driver.all_launched()

        async def again() -> None:
            self._gradients(number)
            await self._compute(seconds)

        driver.loop.again = again
        await driver.step_begins()
        self.optimizer.step()
        await driver.step_ends()
        return loss

    async def _compute(self, seconds: float) -> None:
        await self.runner.comm.sleep(seconds)
        self._computed += seconds

    async def _forward(self, seconds: float) -> None:
        """First layer first: each waits for its own parameters; larger ones take longer."""
        trained, loop = self.driver.loop.trained, self.driver.loop
        total = sum(one.item.numel for one in trained)
        for one in trained:
            await self.driver.schedule.catch_up([loop.filling.place(one.parameter).bucket.index])
            await self._compute(seconds * one.item.numel / total)

    def _gradients(self, number: int) -> float:
        """Forward and backward on the batch of a step; returns the loss."""
        with torch.enable_grad():
            self.optimizer.zero_grad()
            loss = self.problem.loss(self.model, self.rank, number)
            loss.backward()
        return float(loss)
