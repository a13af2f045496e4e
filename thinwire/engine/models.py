"""Models: after every `every`-th optimizer step the parameters are exchanged, and the results take their place.

    x        the model before the first local step of a round    `before`, kept
    x_half   the model after the last one                        what is exchanged
    x        the result                                          where training goes on

Gradients are not exchanged. An exchange that mixes models before their step is launched by the first gradient of
the last backward pass of a round, and the step's update is added to its result. A proximal one (ADMM) adds its terms
to the gradients of the local steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.engine.rounds import Packed, Rounds
from thinwire.engine.stats import SAMPLE_EVERY
from thinwire.exchange.gossip import Gossip
from thinwire.exchange.proximal import Proximal

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.bucket import Bucket


@final
class Models(Rounds):
    """Hooks before and after the optimizer's step."""

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed)
        self._local = 0  # steps since the last exchange
        self._sent = False  # whether the models before the step are on their way
        exchange = packed.exchanger.method.exchange
        self._early = isinstance(exchange, Gossip) and exchange.before_step
        self._proximal = isinstance(exchange, Proximal)
        for bucket in packed.buckets:
            bucket.extra = {name: torch.zeros_like(bucket.flat) for name in ("model", "before")}
        if self._early:
            for members in packed.members:
                for one in members:
                    self._hooks.append(one.parameter.register_post_accumulate_grad_hook(self._arrived))

    @torch.no_grad()
    def begin(self) -> None:
        """Start what both ends of an edge remember at the common model."""
        for bucket in self._filled():
            if isinstance(bucket.exchange, Gossip):
                for chunk in bucket.chunks:
                    bucket.exchange.start(bucket.flat[chunk.start : chunk.stop], chunk.state)

    @torch.no_grad()
    def before_step(self, *, closure: bool) -> None:
        """Keep the model before the round; a rank whose gradients are not finite does not step."""
        self.packed.skipping.look()
        if self._early:
            self._send_early()
        elif self._local == 0:
            for bucket in self._filled():
                bucket.extra["before"].copy_(bucket.flat)
            if self._proximal:
                self.packed.exchanger.begin(self.packed.buckets)
        if self._proximal:
            self._pull()

    @torch.no_grad()
    def settle(self) -> None:
        """End a proximal round here: ranks take turns in it, and one that waits for its turn cannot go on."""
        if self._proximal and self._local:
            self._exchange()

    def close(self, *, failed: bool = False) -> None:
        """End the round, unless something has failed."""
        if not failed:
            self.settle()
        super().close(failed=failed)

    def save(self) -> dict[str, Any]:
        """The steps since the last exchange; the model of this rank goes with the memories."""
        every = self.packed.exchanger.method.sync.every
        if self._proximal and self._local:
            raise ValueError(
                f"{self._local} steps into a round of {every}, in which ranks take turns, there is no common state; "
                f"save after a multiple of {every} steps"
            )
        for bucket, model in zip(self.packed.buckets, self.models(), strict=True):
            bucket.extra["model"].copy_(model)  # the bucket itself may be under way
        return {"local": self._local}

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on from this rank's model; on another number of ranks, from the mean of all, with new memories."""
        self._local = int(saved.get("local", 0))
        for bucket in self.packed.buckets:
            bucket.flat.copy_(bucket.extra["model"])
        self._take()
        if resized:
            self._local = 0
            for bucket in self.packed.buckets:
                for chunk in bucket.chunks:
                    for tensor in chunk.state.values():
                        tensor.zero_()
            self.begin()

    def _arrived(self, p: Tensor) -> None:
        if not self._sent and not self.packed.quiet():
            self._send_early()

    @torch.no_grad()
    def _send_early(self) -> None:
        """Launch the models once per round, before its last step changes them."""
        if self._sent or self.packed.quiet() or self._local + 1 < self.packed.exchanger.method.sync.every:
            return
        self._sent = True
        self.packed.exchanger.events = []
        for bucket in self._filled():
            bucket.extra["before"].copy_(bucket.flat)
            self.packed.exchanger.launch(bucket, before=bucket.extra["before"])

    @torch.no_grad()
    def after_step(self) -> None:
        """Exchange the models if it is time."""
        self._local += 1
        exchanger = self.packed.exchanger
        if not self.packed.quiet() and self._local >= exchanger.method.sync.every:
            self._exchange()

    def _exchange(self) -> None:
        exchanger = self.packed.exchanger
        if not self._early:
            exchanger.events = []
            for bucket in self._filled():
                exchanger.launch(bucket, before=bucket.extra["before"])
        for bucket, members in zip(self.packed.buckets, self.packed.members, strict=True):
            exchanger.wait(bucket)
            if self._early:  # x_half + (mixed - x)
                bucket.flat -= bucket.extra["before"]
                for one, view in zip(members, bucket.views, strict=True):
                    view += one.parameter
        self._take()
        self._local, self._sent = 0, False
        exchanger.end_round()
        if isinstance(exchanger.method.exchange, Gossip) and exchanger.round % SAMPLE_EVERY == 0:
            exchanger.measure(self.packed.buckets)

    def _filled(self) -> list[Bucket]:
        """The buckets, holding the parameters as they are."""
        self.gather()
        return self.packed.buckets

    def _take(self) -> None:
        for bucket, members in zip(self.packed.buckets, self.packed.members, strict=True):
            for one, view in zip(members, bucket.views, strict=True):
                one.parameter.copy_(view)

    def _pull(self) -> None:
        """g + v + penalty x, with g = 0 for a parameter without a gradient."""
        exchanger = self.packed.exchanger
        for bucket, members in zip(self.packed.buckets, self.packed.members, strict=True):
            exchange = bucket.exchange
            assert isinstance(exchange, Proximal)
            linear = torch.cat([chunk.state["linear"] for chunk in bucket.chunks])
            penalty = exchange.penalty(exchanger.comm.rank, exchanger.comm.size)
            for one, at, size in zip(members, bucket.layout.offsets, bucket.layout.sizes, strict=False):
                p = one.parameter
                pull = linear[at : at + size].view(p.shape).to(p.dtype) + penalty * p
                p.grad = pull if p.grad is None else p.grad.add_(pull)
