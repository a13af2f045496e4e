"""ddp_hook: the same exchange inside PyTorch's DistributedDataParallel.

    model = DDP(model)
    model.register_comm_hook(*tw.ddp_hook(tw.methods.qsgd(bits=4), model))

DDP decides which parameters share a bucket and when it is full: all of them in the first step, smaller buckets from
the second on. Memories are kept by parameter, so they are carried over when the buckets change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire.comm.processes import Processes
from thinwire.core.method import Method
from thinwire.engine import checkpoint
from thinwire.engine.bucket import Bucket
from thinwire.engine.exchanger import Exchanger
from thinwire.engine.handover import Handover
from thinwire.engine.plan import Item, Plan, check_exclude, make_plan, smallest
from thinwire.sync.signals import Grad

WHOLE = float(1 << 20)  # DDP has cut the buckets already
Hook: TypeAlias = Callable[["HookState", dist.GradBucket], Future[Tensor]]


def ddp_hook(
    method: Method,
    model: DistributedDataParallel,
    optimizer: Optimizer | None = None,
    *,
    min_size: int | None = None,
    exclude: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 600.0,
) -> tuple[HookState, Hook]:
    """State and hook for `model.register_comm_hook`; every rank calls it with the same arguments.

    With the optimizer, residuals follow its learning rate (of the first group) as they do under `attach`.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"ddp_hook takes a model wrapped in DistributedDataParallel; got {type(model).__name__}: "
            "write model = DDP(model), or tw.attach(model, optimizer, method)"
        )
    if not isinstance(method.sync.of, Grad):
        raise ValueError(f"{method.id} exchanges {method.sync.of.name}, and DDP only gradients; write tw.attach(...)")
    return HookState(method, model, optimizer, min_size, tuple(exclude), seed, timeout), _hook


@final
class HookState:
    """What the hook keeps: `stats`, `plan`, `state_dict` and `load_state_dict` as on the handle of `attach`."""

    def __init__(
        self,
        method: Method,
        model: DistributedDataParallel,
        optimizer: Optimizer | None,
        min_size: int | None,
        exclude: tuple[str, ...],
        seed: int,
        timeout: float,
    ) -> None:
        self._optimizer = optimizer
        self._min_size = smallest(method) if min_size is None else min_size
        self._exclude = exclude
        named = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        self._items = {id(p): Item(name, tuple(p.shape), p.device) for name, p in named}
        check_exclude(list(self._items.values()), exclude)
        fields = {
            "model": str([(i.name, i.shape) for i in self._items.values()]),
            "exclude": str((min_size, exclude)),
        }
        self._exchanger = Exchanger.meet(method, model.process_group, seed, timeout, fields, optimizer)
        self._exchanger.forget_traffic()
        self._buckets: dict[tuple[str, ...], list[Bucket]] = {}
        self._kept: checkpoint.Saved | None = None  # memories that wait for their bucket
        self._on_resize: checkpoint.OnResize = "error"

    @property
    def method(self) -> Method:
        """What is in use."""
        return self._exchanger.method

    def stats(self) -> dict[str, float]:
        """Bytes, bits an element, ratio, compression error and seconds of this rank."""
        return self._exchanger.report()

    def plan(self) -> Plan:
        """What happens to every tensor, whatever bucket DDP puts it into."""
        return self._make_plan(list(self._items.values())[::-1])

    def state_dict(self) -> dict[str, Any]:
        """The memories of this rank, by parameter."""
        return checkpoint.collect(self._exchanger, [b for several in self._buckets.values() for b in several])

    def load_state_dict(self, state: checkpoint.Saved, *, on_resize: checkpoint.OnResize = "mean") -> None:
        """Go on where `state_dict` was taken, from the next backward pass on. See `Wire.load_state_dict`."""
        checkpoint.check(self.method, state)
        self._kept, self._on_resize, self._buckets = state, on_resize, {}

    def exchange(self, full: dist.GradBucket) -> Future[Tensor]:
        """Launch what DDP has filled; the future holds the mean."""
        items = [self._items[id(p)] for p in full.parameters()]
        buckets = self._for(items, full.index())
        gradients = dict(zip((item.name for item in items), full.gradients(), strict=True))
        lr = 1.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])
        for bucket in buckets:
            for place, item in enumerate(bucket.items):
                bucket.fill(place, gradients[item.name])
            self._exchanger.launch(bucket, lr)
        device = full.buffer().device
        done: Future[Tensor] = Future(devices=[device] if device.type == "cuda" else None)
        handover = Handover(device)

        def write_back(driver: Processes) -> None:
            try:
                with handover.work():
                    for bucket in buckets:
                        self._exchanger.wait(bucket)
                        for item, view in zip(bucket.items, bucket.views, strict=True):
                            gradients[item.name].copy_(view)
                    done.set_result(full.buffer())
            except Exception as error:
                done.set_exception(error)  # type: ignore[arg-type]

        self._exchanger.lane.launch(write_back)
        if full.is_last():
            self._exchanger.end_round()
            self._kept = None
        return done

    def _for(self, items: list[Item], index: int) -> list[Bucket]:
        """The buckets of these parameters: one compressed, one not. New ones take over what others remember."""
        names = tuple(item.name for item in items)
        if names not in self._buckets:
            if self._kept is None and self._buckets:
                self._kept, self._on_resize, self._buckets = self.state_dict(), "error", {}
            plan = self._make_plan(items)
            made = [self._exchanger.bucket(2 * index + i, parcel) for i, parcel in enumerate(plan.parcels)]
            if self._kept is not None:
                checkpoint.restore(self._exchanger, made, self._kept, on_resize=self._on_resize)
            self._buckets[names] = made
        return self._buckets[names]

    def _make_plan(self, items: Sequence[Item]) -> Plan:
        in_order = items[::-1]  # a plan is made from the first layer on; DDP's buckets start with the last
        return make_plan(in_order, self.method.id, bucket_mb=WHOLE, min_size=self._min_size, exclude=self._exclude)


def _hook(state: HookState, bucket: dist.GradBucket) -> Future[Tensor]:
    with torch.no_grad():
        return state.exchange(bucket)


# DDP compares the annotations themselves, and here they are strings.
_hook.__annotations__ = {"bucket": dist.GradBucket, "return": Future[Tensor]}
