"""Wire: the handle that `attach`, `ddp_hook` and `fsdp` return."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from thinwire.core.clock import Span
from thinwire.core.method import Method
from thinwire.core.trace import write_trace
from thinwire.engine import checkpoint, inside_state
from thinwire.engine.advice import advice
from thinwire.engine.averages import mean_of, moments
from thinwire.engine.builder import Builder
from thinwire.engine.consensus import Consensus
from thinwire.engine.hooks import MakeDriver, Removable
from thinwire.engine.inside import Inside, split
from thinwire.engine.joining import joined, refuse_in_join
from thinwire.engine.local import local
from thinwire.engine.misuse import check_method_type, check_unclaimed, claim, unclaim
from thinwire.engine.parameters import Trained
from thinwire.engine.plan import Plan, check_exclude
from thinwire.engine.planner import resume, said, saved_plan
from thinwire.engine.replicas import described, described_parts, equalise, floating, synchronise
from thinwire.engine.settings import Settings
from thinwire.engine.share import Share, Whole
from thinwire.engine.stepping import Resumed, Traffic, warn_without_round
from thinwire.engine.telemetry import stamp


@final
class Wire:
    """What `attach` returns. Use it with `with`, or call `detach` at the end."""

    read_checkpoint = staticmethod(checkpoint.read)

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        members: list[Trained],
        method: Method,
        group: dist.ProcessGroup,
        settings: Settings,
        make_driver: MakeDriver,
        *,
        equal: bool = False,
        block: str = "`with wire.no_sync():`",
        share: Share | None = None,
    ) -> None:
        """With `equal`, parameters and buffers are the same on all ranks already; `block` accumulates gradients."""
        self._optimizer, self._trained, self._share = optimizer, members, share or Whole()
        check_unclaimed(members)
        check_exclude([item for _, item in members], settings.exclude)
        self._model = weakref.ref(model)
        self._quiet, self._ended = 0, False  # depth of no_sync blocks; whether it is detached
        self._builder = Builder(
            optimizer,
            members,
            floating(model),
            partial(described_parts, members) if equal else partial(described, model),
            group,
            settings,
            self._share,
            make_driver,
            quiet=lambda: self._quiet > 0,
            block=block,
        )
        self._skipped = 0  # steps left out under methods before a switch
        self._hooks: list[Removable] = []
        self._resumed: Resumed | None = None  # until the first step, on rank 0
        self.inside: Inside | None = None  # what compresses inside the shard groups, under `fsdp`
        self._build(method, settings.seed)
        try:
            if not equal:
                synchronise(model)
                self._transport.direct(lambda driver: equalise(model, driver.everybody))
            self._begin()
        except BaseException as error:
            self._driver.close()
            self._close(failed=True, why=f"it failed in attach: {error}")
            raise
        self._transport.watch.beating = False
        if optimizer is not None:
            self._hold(Traffic(optimizer, group))
            if self._runner.comm.rank == 0:
                self._resumed = Resumed(optimizer, method)
                self._hold(self._resumed)
        self._advise()
        claim(members, optimizer)

    # What a training loop uses.

    @property
    def method(self) -> Method:
        """The method in use."""
        return self._runner.method

    @property
    def trains(self) -> bool:
        """Whether this rank trains: not if it only serves (`servers=2`), and then `detach` serves till the end."""
        return self._driver.schedule.trains

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in the block only accumulate; the next one outside it exchanges the sum.

        Where models are exchanged, optimizer steps in the block are local.
        """
        self._driver.check_no_sync()
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    @contextmanager
    def join(self) -> Iterator[None]:
        """A block in which ranks may have different numbers of batches; all of them enter it.

        A rank that comes to its end takes part in what the others still exchange, until all have come there. Means
        are taken over all ranks: of gradients a rank that has ended sends zeros. Afterwards all ranks have one model,
        and where gradients are exchanged the optimizer's state of a rank that trained to the last. With servers, call
        `detach`, or take the next step, before the models are one.
        """
        with joined(self._driver, self._transport, self._model(), self._level):
            yield
        self._share.forget_copies()

    def batch(self, samples: int) -> int:
        """How many samples this rank should take next, where ranks take `samples` on average.

        With `r2sp`, ranks that call it before every step take batches in proportion to their speed, so that all take
        equally long, and a gradient weighs as much as it has samples. With `cr_psgd` batches grow from `samples`, and
        it is 0 when the budget is used up, on all ranks in the same step. With other methods it is `samples`.
        """
        if samples < 1:
            raise ValueError(f"batch({samples}): write how many samples a rank takes on average, such as batch(64)")
        return self._driver.schedule.batch(samples)

    def stats(self) -> dict[str, float]:
        """What this rank has sent since attach, beside what DDP would have, and how long training waited for it.

        The keys that begin with "last_" are about the last steps: 100 of them, or as many whole rounds.
        """
        skipped = {"steps_skipped": self._skipped + self._loop.skipping.skipped}
        inside = {} if self.inside is None else self.inside.stats()
        report = {**self._driver.schedule.report(), **self._runner.telemetry.report(), **self._transport.report()}
        return {**skipped, **report, **inside}

    def time_gpu(self, *, on: bool = True) -> None:
        """Time encoding and decoding by the GPU's own clock from here on: `encode_gpu_s`, `decode_gpu_s` in `stats`.

        Without it, `encode_s` and `decode_s` of CUDA tensors are what it takes to queue the work. It makes steps
        slower: the GPU holds the work back for some milliseconds, until the host has queued all of it.
        """
        self._runner.telemetry.stamp = stamp if on else None

    def plan(self) -> Plan:
        """What happens to every tensor; it prints as a table."""
        plan = self._loop.plan
        return plan if self.inside is None else replace(plan, inside=self.inside.plan())

    def events(self) -> list[Span]:
        """What happened when in the last round: launch, encode, wire, decode, backward ends."""
        return sorted(self._runner.telemetry.events, key=lambda span: span.start)

    def trace(self, path: str | Path, beside: str | Path | None = None) -> None:
        """Write `events` as a trace file of this rank, for Perfetto, with the workers of another file `beside` it.

        The other one may come from `tw.sim.foresee(..., marks=True).trace(path)`, or from another rank.
        """
        write_trace(path, {self._runner.comm.rank: self.events()}, beside)

    def consensus(self) -> Consensus:
        """The mean of all ranks' models, and how far they are from it; every rank calls it."""
        refuse_in_join(self._loop, "wire.consensus()")
        return self._consensus()

    def _consensus(self) -> Consensus:
        self._driver.run(self._driver.settle())
        with torch.no_grad():
            found = self._transport.run(self._runner.consensus(self._loop.models()))
        return Consensus.of(self._loop.buckets, found)

    def anchor(self) -> dict[str, torch.Tensor]:
        """The model from which the ranks of an outer loop set out, by parameter: equal on all, and worth testing."""
        return self._driver.schedule.anchor()

    def report_loss(self, loss: torch.Tensor | float) -> None:
        """Say what the loss of this step is, for methods whose period follows it (`adacomm`); others ignore it."""
        if self._driver.schedule.hears_loss:
            self._loop.losses.tell(loss)

    def settle(self) -> None:
        """Let nobody wait for this rank until its next step, or until all have called it, and end that step here.

        With `Overlap(into_forward=...)`, call it before you read parameters yourself, which may lack what has not yet
        arrived, or gradients between backward and step. It is also for ranks that are about to meet elsewhere, as in
        `dist.barrier`: servers whose rules wait for gradients would otherwise wait for ranks which wait for them.
        """
        self._driver.run(self._driver.settle())

    def distances(self) -> list[tuple[int, float]]:
        """How far apart the models were, as (round, estimate), measured every 50 rounds of a method that gossips."""
        return list(self._runner.telemetry.distances)

    def switch(self, method: Method) -> None:
        """Go on with another method; memories that both have are kept. Every rank calls it between steps.

        If either method exchanges models or has a server, all ranks go on from the mean of their models and of the
        moments of their optimizers, without memories.
        """
        refuse_in_join(self._loop, "wire.switch(method)")
        check_method_type(method, "wire.switch({})")
        self._driver.check_switch(method)
        self._share.forget_copies()
        self._driver.run(self._driver.schedule.settle())
        transport, runner, driver, loop = self._transport, self._runner, self._driver, self._loop
        models = any(one.sync.of.models or one.exchange.served for one in (self.method, method))
        kept = None if models else checkpoint.collect(runner, loop.buckets)
        self._build(method, runner.seed)  # a meeting that fails leaves everything as it was
        driver.run(driver.ends())
        driver.close()
        self._skipped += loop.skipping.skipped
        self._runner.telemetry.succeed(runner.telemetry)
        self._runner.round = runner.round
        self._runner.motion.restore(runner.motion.steps)
        runner.motion.close()
        transport.close(why=f"it switched to {method.id}")
        if kept is None:
            self._average()
            self._begin()
        else:
            self._restore(checkpoint.states_of(kept), on_resize="error")
        self._advise()
        self._transport.watch.beating = False

    def state_dict(self) -> dict[str, Any]:
        """The memories of this rank by parameter, for torch.save (one file per rank) or torch.distributed.checkpoint.

        Where models are exchanged, this rank's model is part of it. With servers, it waits until all workers that
        train have called it or have ended, and what a server keeps is part of it.
        """
        with torch.no_grad():
            more = self._transport.run(self._driver.schedule.save())
        more |= said(self._loop)
        state = self._share.stored(checkpoint.collect(self._runner, self._loop.buckets, more))
        return state if self.inside is None else {**state, "inside": self.inside.state_dict()}

    def gather_state(self) -> dict[str, Any]:
        """What `state_dict` returns on every rank, in one dict on rank 0; the others get an empty one.

        Every rank calls it. One file holds it, `load_state_dict` takes it whole, and any number of ranks can load it.
        """
        refuse_in_join(self._loop, "wire.gather_state()")
        self._share.check_gathered()
        return self._transport.run(checkpoint.gathered(self._runner, self.state_dict()))

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, on_resize: checkpoint.OnResize = "mean"
    ) -> None:
        """Go on where `state_dict` or `gather_state` was taken; every rank calls it.

        Methods that keep nothing of a rank's own take the state of any rank. On another number of ranks, pass what
        `gather_state` returned, or the states of all ranks as a list: every rank then takes the mean of the
        residuals ("mean"), starts without residuals ("reset"), or refuses ("error"). Where models are exchanged,
        every rank starts from the mean of the models, without memories; with servers, from the model that they had.
        """
        refuse_in_join(self._loop, "wire.load_state_dict(state)")
        runner, schedule = self._runner, self._driver.schedule
        self._driver.run(schedule.settle())  # what is loaded afterwards must not be stepped
        self._share.forget_copies()

        def checked() -> tuple[checkpoint.States, inside_state.Checked | None, Plan | None]:
            rest, residuals = split(self.inside, state, on_resize=on_resize)
            states = checkpoint.checked(runner, self._loop.buckets, schedule, self._share.loaded(rest), on_resize)
            return states, residuals, saved_plan(self._loop, states)

        states, residuals, plan = self._transport.run(checkpoint.agreed(runner, checked, self._share.agree))
        self._transport.run(checkpoint.agree_on(runner, states, schedule))
        if self.inside is not None and residuals is not None:
            self.inside.take(residuals)
        if plan is not None:
            self._driver.run(resume(self._driver, plan))
        found = self._restore(states, on_resize=on_resize)
        if self._resumed is not None:
            self._resumed.remove()
        self._driver.load(found.own, resized=found.resized)
        with torch.no_grad():
            self._transport.run(self._driver.schedule.adopt(found))

    def read(self, path: str, name: str = "wire") -> list[dict[str, Any]]:
        """What `load_state_dict` needs of a torch.distributed.checkpoint, whatever ranks and shards it was saved on.

        `name` is the key under which the handle was saved: `dcp.save({"wire": wire, ...})`.
        """
        inside = [] if self.inside is None else [{"inside": inside_state.read(path, name)}]
        return [*self._share.read(path, name), *inside]

    def detach(self) -> None:
        """Remove every hook and stop; an asynchronous method waits for its neighbours to do the same."""
        self._end()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a wire cannot be copied or saved, nor can a model that holds it; write wire.state_dict(), or "
            "torch.save(model.module, path) where DistributedDataParallel has the hook"
        )

    def _build(self, method: Method, seed: int) -> None:
        """Make what `method` works with, after a handshake; a meeting that fails leaves everything as it was."""
        self._transport, self._runner, self._loop, self._driver = self._builder.build(method, seed)

    def _advise(self) -> None:
        """Say, on one rank, if the method and the optimizer do not suit each other."""
        compressed = any(parcel.compressed for parcel in self._loop.plan.parcels)
        comm = self._runner.comm
        if compressed and comm.rank == 0 and (text := advice(self.method, self._optimizer, comm.size)):
            warnings.warn(text, stacklevel=4)

    def _begin(self) -> None:
        """Start to train with the method at hand; what attach itself has sent does not count."""
        self._runner.telemetry.forget_traffic()
        self._driver.schedule.begin()
        self._driver.run(self._driver.start())

    def _end(self, error: BaseException | None = None) -> None:
        if self._ended:
            return  # another wire may have the model by now
        self._ended = True
        unclaim(self._trained, self._optimizer)
        for hook in self._hooks:
            hook.remove()
        failed = error is not None
        try:
            if not failed:
                self._share.forget_copies()
                self._driver.run(self._driver.ends())
                warn_without_round(self.method, self._runner.round, self._driver.steps)
        except BaseException as late:
            self._close(failed=True, why=f"it raised {type(late).__name__}: {late}")
            raise
        finally:
            self._driver.close()
        detached = f"it detached after {self._runner.round} rounds"
        self._close(failed=failed, why=f"it raised {type(error).__name__}: {error}" if failed else detached)

    def _close(self, *, failed: bool, why: str) -> None:
        self._transport.close(failed=failed, why=why)
        self._runner.motion.close()

    def _hold(self, hook: Removable) -> None:
        """Keep a hook until the end."""
        self._hooks.append(hook)

    @torch.no_grad()
    def _restore(self, states: checkpoint.States, *, on_resize: checkpoint.OnResize) -> checkpoint.Restored:
        return self._transport.run(checkpoint.restore(self._runner, self._loop.buckets, states, on_resize=on_resize))

    def _level(self) -> bool:
        """The same, unless all models are equal already."""
        apart = self._consensus().distance > 0
        if apart:
            self._average()
        return apart

    @torch.no_grad()
    def _average(self) -> None:
        """Set every model and all moments to the mean over ranks: replicas whose moments differ drift apart.

        Ranks that did not wait for each other have taken different numbers of rounds, and go on from the largest.
        """
        self._runner.round = self._transport.run(self._runner.latest())
        mean = self._consensus().model
        for p, item in self._trained:
            local(p).copy_(mean[item.name])
        self._transport.run(mean_of(self._runner, moments(self._optimizer, self._trained)))
