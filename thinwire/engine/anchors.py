"""Anchors: the models from which ranks set out, by bucket, and the outer optimizer that moves them.

An anchor is a vector like its bucket's buffer, `extra["anchor"]`, and part of a checkpoint. The outer optimizer sees
it as parameters, one per tensor, in groups like those of the ranks' optimizer. Moments of the outer optimizer are
saved by the names of the parameters, and equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from thinwire import kernels
from thinwire.engine.damage import check_moments
from thinwire.server.plain import copied
from thinwire.server.steppers import Outer

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from thinwire.engine.bucket import Bucket
    from thinwire.engine.loop import Loop
    from thinwire.engine.parameters import Trained
    from thinwire.sync.outer import OuterStep

DIGESTS = 2**63 - 1


@final
class Anchors:
    """Those of one loop, whose buckets have `extra["anchor"]`."""

    def __init__(self, loop: Loop, outer: OuterStep) -> None:
        self._loop, self._stepper = loop, Outer(outer)
        self._parameters: dict[int, list[nn.Parameter]] = {}  # by bucket, as its views
        self._optimizer: Optimizer | None = None

    @torch.no_grad()
    def begin(self) -> None:
        """The anchors are what lies in the buffers; nothing is remembered of earlier rounds."""
        for bucket in self._loop.buckets:
            bucket.extra["anchor"].copy_(bucket.flat)
        self._make()

    def way(self, bucket: Bucket) -> None:
        """Turn the model that lies in the buffer into the way from the anchor, with the sign of a gradient."""
        anchor = bucket.extra["anchor"].to(bucket.flat.device, non_blocking=True)
        torch.sub(anchor, bucket.flat, out=bucket.flat)

    def way_of(self, bucket: Bucket, members: Sequence[Trained]) -> None:
        """Fill the buffer with the way of these parameters, in one pass, which also sees whether it is tame."""
        anchor = bucket.extra["anchor"].to(bucket.flat.device, non_blocking=True)
        bucket.tame = True
        for view, start, one in zip(bucket.views, bucket.cut(anchor), members, strict=True):
            if _plain(view, one.local):
                bucket.tame &= kernels.select(view).difference(start, one.local, view)
            else:
                torch.sub(start, one.local, out=view)
                bucket.tame = False

    def take_mean(self, bucket: Bucket, members: Sequence[Trained]) -> None:
        """Move anchor and parameters by what lies in the buffer, both to the same place, in one pass."""
        anchor = bucket.extra["anchor"]
        if not all(_plain(view, one.local) for view, one in zip(bucket.views, members, strict=True)):
            anchor.sub_(bucket.flat.to(anchor.device))  # one copy for all tensors, where it lies elsewhere
            for value, one in zip(bucket.cut(anchor.to(bucket.flat.device)), members, strict=True):
                one.local.copy_(value)
            return
        for d, start, one in zip(bucket.views, bucket.cut(anchor), members, strict=True):
            kernels.select(d).difference(start, d, one.local, again=start)
            torch.autograd.graph.increment_version(one.local)  # autograd has not seen it change

    @property
    def left(self) -> bool:
        """Whether the parameters are elsewhere."""
        return any(
            not one.local.detach().to(view.device, view.dtype).equal(view)
            for bucket, members in zip(self._loop.buckets, self._loop.members, strict=True)
            for view, one in zip(bucket.cut(bucket.extra["anchor"]), members, strict=True)
        )

    def digest(self) -> int:
        """A number that tells the anchors from others."""
        return sum(digest(bucket.extra["anchor"]) for bucket in self._loop.buckets) % DIGESTS

    def step(self, buckets: Sequence[Bucket]) -> None:
        """Move the anchors of these buckets by the pseudo-gradients that lie in their buffers."""
        optimizer = self.optimizer
        self._stepper.prepare(optimizer, [self._loop.lr(group) for group in self._groups], scale=1.0)
        for bucket in buckets:
            d = bucket.flat.to(bucket.extra["anchor"].device)
            for p, grad in zip(self._parameters[bucket.index], bucket.cut(d), strict=True):
                p.grad = grad
        optimizer.step()
        optimizer.zero_grad()

    @property
    def optimizer(self) -> Optimizer:
        """The outer optimizer."""
        assert self._optimizer is not None, "begin or load comes first"
        return self._optimizer

    @torch.no_grad()
    def reset(self) -> None:
        """Set the parameters to their anchors."""
        for bucket, members in zip(self._loop.buckets, self._loop.members, strict=True):
            for start, one in zip(bucket.cut(bucket.extra["anchor"]), members, strict=True):
                one.local.copy_(start)

    def model(self) -> dict[str, Tensor]:
        """Copies of the anchors by parameter."""
        return {
            item.name: view.clone()
            for bucket in self._loop.buckets
            for item, view in zip(bucket.items, bucket.cut(bucket.extra["anchor"]), strict=True)
        }

    def save(self) -> dict[str, dict[str, Any]]:
        """What the outer optimizer remembers, by parameter."""
        return {name: copied(dict(self.optimizer.state[p])) for name, p in self._named() if p in self.optimizer.state}

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember what `save` returned."""
        self._make()
        for name, p in self._named():
            if name in saved:
                self.optimizer.state[p] = {key: _placed(value, p) for key, value in saved[name].items()}

    def check(self, who: str, saved: Any) -> None:
        """Raise ValueError if `save` cannot have returned this."""
        check_moments(who, "outer", saved, {name: (self._stepper, p, 1) for name, p in self._named()})

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (item.name, p)
            for bucket in self._loop.buckets
            for item, p in zip(bucket.items, self._parameters[bucket.index], strict=True)
        ]

    def _make(self) -> None:
        groups: dict[int, list[nn.Parameter]] = {}
        for bucket in self._loop.buckets:
            anchors = [nn.Parameter(view) for view in bucket.cut(bucket.extra["anchor"])]
            self._parameters[bucket.index] = anchors
            for item, p in zip(bucket.items, anchors, strict=True):
                groups.setdefault(item.group, []).append(p)
        self._groups = sorted(groups)
        self._optimizer = self._stepper.optimizer([groups[number] for number in self._groups])


def digest(x: Tensor) -> int:
    """A number that tells a float32 vector from others: the sum of its bits, which others hardly ever have."""
    return int(x.view(torch.int32).sum(dtype=torch.int64)) % DIGESTS


def _plain(view: Tensor, parameter: Tensor) -> bool:
    """Whether the passes of the CPU's kernels can take both."""
    return view.is_cpu and parameter.is_cpu and parameter.dtype == view.dtype and parameter.is_contiguous()


def _placed(value: Any, p: nn.Parameter) -> Any:
    """A copy where the optimizer expects it: moments beside the anchor, counts where they were."""
    if isinstance(value, Tensor) and value.shape == p.shape:
        return value.detach().to(p.device, copy=True)
    return copied(value)
