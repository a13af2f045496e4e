"""attach: one line in a training loop. Wire: the handle it returns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.optim import Optimizer

from thinwire.core.clock import Clock, Span
from thinwire.core.method import Method
from thinwire.engine import checkpoint
from thinwire.engine.bucket import Bucket
from thinwire.engine.exchanger import Exchanger
from thinwire.engine.parameters import Trained, check_model, newcomer, trained
from thinwire.engine.plan import Plan, check_exclude, make_plan, smallest
from thinwire.engine.replicas import equalise
from thinwire.engine.signal import GradSource, Source, source

_attached: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method,
    *,
    process_group: dist.ProcessGroup | None = None,
    min_size: int | None = None,
    exclude: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 600.0,
) -> Wire:
    """Exchange the gradients of `model` by `method` from here on; every rank calls it with the same arguments.

    Parameters and buffers become those of rank 0. Each backward pass exchanges what it computed and leaves the
    result in `p.grad`, so that clipping, a GradScaler and `optimizer.step` see it. Tensors below `min_size` elements
    (10,000; 0 for methods that keep no magnitudes) and names that match a pattern in `exclude` travel uncompressed.
    A rank that does not answer for `timeout` seconds is an error; one that has died is noticed at once.
    """
    if not isinstance(method, Method):
        raise TypeError(
            f"attach takes a Method; got {method!r}: write tw.attach(model, optimizer, tw.methods.qsgd())"
        )
    check_model(model)
    if not dist.is_initialized():
        raise ValueError(
            'attach needs a process group; write torch.distributed.init_process_group("gloo") before it, '
            "and start the script with torchrun"
        )
    if optimizer in _attached:
        raise ValueError("this optimizer is attached already; write wire.switch(method), or wire.detach() first")
    group = process_group or dist.group.WORLD
    assert group is not None
    return Wire(model, optimizer, method, group, min_size, exclude, seed, timeout)


@final
class Wire:
    """What `attach` returns. Use it with `with`, or call `detach` at the end."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        group: dist.ProcessGroup,
        min_size: int | None,
        exclude: Sequence[str],
        seed: int,
        timeout: float,
    ) -> None:
        self._optimizer, self._group = optimizer, group
        self._min_size, self._exclude = min_size, exclude
        self._trained: list[Trained] = trained(model, optimizer)
        check_exclude([item for _, item in self._trained], exclude)
        self._known = {id(p) for p, _ in self._trained}
        self._quiet = 0  # depth of no_sync blocks
        self._busy = False  # inside a backward pass that will exchange
        self._fresh = False  # exchanged since the last optimizer.step
        self._launched = 0  # buckets of this round that are on their way
        self._build(method, seed, timeout)
        equalise(model, group)
        self._exchanger.forget_traffic()
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(index)) for index, (p, _) in enumerate(self._trained)
        ]
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        _attached.add(optimizer)

    # What a training loop uses.

    @property
    def method(self) -> Method:
        """What is in use."""
        return self._exchanger.method

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in the block only accumulate; the next one outside exchanges the sum."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def stats(self) -> dict[str, float]:
        """Bytes, bits an element, ratio, compression error and seconds of this rank since attach."""
        return self._exchanger.report()

    def plan(self) -> Plan:
        """What happens to every tensor; print it."""
        return self._plan

    def events(self) -> list[Span]:
        """What happened when in the last round: launch, encode, wire, decode, backward ends."""
        return sorted(self._exchanger.events, key=lambda span: span.start)

    def switch(self, method: Method) -> None:
        """Go on with another method; memories that both have are kept. Every rank calls it between steps."""
        old, seed, timeout = self._exchanger, self._exchanger.seed, self._exchanger.timeout
        kept = checkpoint.collect(old, self._buckets)
        self._build(method, seed, timeout)
        self._exchanger.succeed(old)
        old.close()
        checkpoint.restore(self._exchanger, self._buckets, kept, on_resize="error")

    def state_dict(self) -> dict[str, Any]:
        """The memories of this rank by parameter, for torch.save (a file a rank) or torch.distributed.checkpoint."""
        return checkpoint.collect(self._exchanger, self._buckets)

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, on_resize: checkpoint.OnResize = "mean"
    ) -> None:
        """Go on where `state_dict` was taken; every rank calls it.

        On another number of ranks give all ranks' states, as a list: every rank then gets the mean of the residuals
        ("mean"), or starts without ("reset"), or refuses ("error").
        """
        checkpoint.check(self.method, state)
        checkpoint.restore(self._exchanger, self._buckets, state, on_resize=on_resize)

    def detach(self) -> None:
        """Remove every hook and stop; the model and the optimizer are as before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        _attached.discard(self._optimizer)
        self._exchanger.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    # What the hooks do.

    def _build(self, method: Method, seed: int, timeout: float) -> None:
        """Plan, exchanger, handshake and buckets for `method`."""
        if method.sync.staleness != 0 or method.sync.every != 1:
            raise ValueError(f"attach exchanges every step, at once; got {method.sync!r}: write Sync()")
        signal = source(method.sync.of, self._optimizer)
        plan = make_plan(
            [item for _, item in self._trained],
            method.id,
            bucket_mb=method.overlap.bucket_mb,
            min_size=smallest(method) if self._min_size is None else self._min_size,
            exclude=self._exclude,
        )
        fields = {"model": str([(item.name, item.shape) for _, item in self._trained]), "plan": str(plan)}
        # A meeting that fails leaves everything as it was.
        self._exchanger = Exchanger.meet(method, self._group, seed, timeout, fields, self._optimizer)
        self._source: Source = signal
        self._plan = plan
        self._buckets = [self._exchanger.bucket(i, parcel) for i, parcel in enumerate(plan.parcels)]
        by_name = {one.item.name: one for one in self._trained}
        self._members = [[by_name[item.name] for item in bucket.items] for bucket in self._buckets]
        self._places = {
            item.name: (bucket, place) for bucket in self._buckets for place, item in enumerate(bucket.items)
        }

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def arrived(p: torch.Tensor) -> None:
            if self._quiet == 0:
                self._arrived(self._trained[index])

        return arrived

    def _arrived(self, one: Trained) -> None:
        """A gradient is complete: take it, and launch what has become full, in the order of the plan."""
        if not self._busy:
            self._busy = True
            self._begin()
            Variable._execution_engine.queue_callback(self._finish)
        bucket, place = self._places[one.item.name]
        if bucket.used[place]:
            raise RuntimeError(
                f"{one.item.name} got its gradient twice in one backward pass; "
                "with activation checkpointing write checkpoint(..., use_reentrant=False)"
            )
        self._fill(bucket, place, one)
        while self._launched < len(self._buckets) and self._buckets[self._launched].ready:
            self._launch()

    def _begin(self) -> None:
        self._exchanger.events = []
        self._launched = 0

    def _fill(self, bucket: Bucket, place: int, one: Trained) -> None:
        grad = one.parameter.grad
        assert grad is not None
        if grad.is_sparse:
            raise ValueError(f"{one.item.name} has a sparse gradient; write nn.Embedding(..., sparse=False)")
        view = bucket.fill(place, grad)
        if not self._exchanger.warm:
            self._source.fill(view, one.parameter, one.item.group)

    def _launch(self) -> None:
        bucket = self._buckets[self._launched]
        lr = self._optimizer.param_groups[bucket.items[0].group]["lr"]
        self._exchanger.launch(bucket, float(lr))
        self._launched += 1

    @torch.no_grad()
    def _finish(self) -> None:
        """Backward has ended: launch what is left, with zeros for what has no gradient, and take the results."""
        self._busy = False
        mark = Clock(bucket=-1, chunk=-1)
        mark.mark("backward ends")
        self._exchanger.events += mark.spans
        while self._launched < len(self._buckets):
            bucket = self._buckets[self._launched]
            for place, one in enumerate(self._members[self._launched]):
                if one.parameter.grad is None:
                    bucket.views[place].zero_()
                elif not bucket.used[place]:
                    self._fill(bucket, place, one)
            self._launch()
        warm = self._exchanger.warm
        for bucket, members in zip(self._buckets, self._members, strict=True):
            used = self._exchanger.wait(bucket)
            for (p, item), view, anywhere in zip(members, bucket.views, used, strict=True):
                if anywhere:
                    self._take(p, view, GradSource() if warm else self._source, item.group)
        self._exchanger.end_round()
        self._fresh = True

    def _take(self, p: nn.Parameter, view: torch.Tensor, source: Source, group: int) -> None:
        source.take(view, p, group)
        if p.grad is None:
            p.grad = torch.empty_like(p)
        p.grad.copy_(view)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Exchange now if no backward pass did, so that a rank without gradients does not stop the others."""
        new = newcomer(optimizer, self._known)
        if new:
            raise ValueError(f"{new} wants a gradient since attach; write wire.detach(), then attach again")
        if not self._fresh and self._quiet == 0:
            self._begin()
            self._finish()
        self._fresh = False
