"""Adapted: gradients, as in `gradients.py`, and every so many rounds a new compressor for each tensor.

    g = mean over ranks of the gradients       as in `gradients.py`
    G = G + g_0                                rank 0, extra["seen"]
    every `every` rounds                       rank 0 measures each option on G, decides, and tells all; G = 0

All ranks wait for the choice, with nothing under way, so that the next round is the first one with it on every rank.
A tensor whose gradients were all zero keeps the uniform compressor. Rounds of warm-up count, but show nothing.

Reference: Markov, Alim, Frantar, Alistarh, "L-GreCo: layerwise-adaptive gradient compression for efficient and
accurate deep learning", MLSys 2024, arXiv 2210.17357, algorithm 1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch

from thinwire.core.budget import no_worse, total
from thinwire.core.types import Key, Layout
from thinwire.engine.damage import check_counts
from thinwire.engine.schedules.base import Schedule
from thinwire.engine.schedules.gradients import launched
from thinwire.engine.stats import compression_error

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.adapt import Adapt
    from thinwire.core.comm import Comm
    from thinwire.core.compressor import Compressor
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.filling import Place
    from thinwire.engine.loop import Loop

log = logging.getLogger("thinwire")
PIECE = 1 << 16  # elements
MEASURED = 255  # the hop in the key of the noise with which options are measured: no exchange has so many


@final
class Adapted(Schedule):
    """`kept`: the option of each tensor by name, 0 where it is the uniform one; and how many choices were made."""

    hears_gradients = True

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        assert loop.method.sync.adapt is not None
        self._adapt, self._exchange = loop.method.sync.adapt, loop.method.exchange
        self._buckets = [bucket for bucket in loop.buckets if bucket.compressed]
        self._names = [name for bucket in self._buckets for name in bucket.layout.names]
        self._decides = loop.runner.comm.rank == 0
        loop.kept = {"choices": 0}
        self._take(dict.fromkeys(self._names, 0))
        if self._decides:
            for bucket in self._buckets:
                bucket.extra["seen"] = torch.zeros_like(bucket.flat)
        self._views = {bucket.index: bucket.cut(bucket.extra["seen"]) for bucket in self._buckets if self._decides}

    async def run(self) -> None:
        """For ever: exchange what backward computed, and now and then choose."""
        see = self._see if self._decides else None
        while True:
            if not (rounds := await launched(self.loop, see=see)):
                continue
            await self.loop.filling.results(rounds)
            if self.loop.runner.round % self._adapt.every == 0 and self._names:
                await self._choose()

    def report(self) -> dict[str, float]:
        """How often a choice was made, and its bytes over those of the uniform one."""
        kept, choices = self.loop.kept, self._adapt.choices
        layouts = [_alone(bucket.layout, name) for bucket in self._buckets for name in bucket.layout.names]
        sizes = [(choices[kept["choice"][one.names[0]]].nbytes(one), choices[0].nbytes(one)) for one in layouts]
        uniform = sum(size for _, size in sizes)
        return {
            "choices": kept["choices"],
            "chosen_size": sum(size for size, _ in sizes) / uniform if uniform else 1.0,
        }

    async def save(self) -> dict[str, Any]:
        """The choice; G goes with the memories."""
        return {"choices": self.loop.kept["choices"], "choice": dict(self.loop.kept["choice"])}

    def check(self, who: str, state: Mapping[str, Any], *, own: bool) -> None:
        """Options by name; a tensor that was not compressed then has none."""
        check_counts(who, "choices", state.get("choices"))
        choice, options = state.get("choice"), len(self._adapt.choices)
        if not isinstance(choice, Mapping):
            raise ValueError(f"{who} has no dict 'choice'; it is damaged")
        for name, option in choice.items():
            check_counts(who, f"choice.{name}", option)
            if name not in state["parameters"] or option >= options:
                raise ValueError(f"{who} has 'choice' with {name!r} = {option}; it is damaged")

    def in_common(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Rank 0 has chosen for all."""
        return {"choices": state["choices"], "choice": dict(state["choice"])}

    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on with the choice, which on another number of ranks is as good."""
        self.loop.kept["choices"] = saved["choices"]
        self._take({name: saved["choice"].get(name, 0) for name in self._names})

    @torch.no_grad()
    def _see(self, place: Place, grad: Tensor) -> None:
        """Add a gradient to G."""
        views = self._views.get(place.bucket.index)
        if views is not None and not self.loop.runner.warm:
            add_finite(views[place.number], grad)

    async def _choose(self) -> None:
        """Decide on rank 0, and take up the choice on all."""
        decided = self._decided() if self._decides else [0] * len(self._names)
        said = torch.tensor(decided, dtype=torch.uint8)

        async def tell(comm: Comm) -> Tensor:
            return await comm.all_reduce(said, "max")

        everywhere = await self.loop.runner.transport.launch(tell)
        self.loop.kept["choices"] += 1
        self._take(dict(zip(self._names, everywhere.tolist(), strict=True)))

    def _take(self, choice: Mapping[str, int]) -> None:
        self.loop.kept["choice"] = dict(choice)
        for bucket in self._buckets:
            own = {name: choice[name] for name in bucket.layout.names}
            bucket.exchange = self._adapt.chosen(self._exchange, own)

    @torch.no_grad()
    def _decided(self) -> list[int]:
        """The option of each tensor, by what rank 0 has seen; G starts anew."""
        found = decided(
            self._adapt,
            (
                (seen, _alone(bucket.layout, name), self._key(bucket))
                for bucket in self._buckets
                for name, seen in zip(bucket.layout.names, self._views[bucket.index], strict=True)
            ),
        )
        for bucket in self._buckets:
            bucket.extra["seen"].zero_()
        uniform = self._adapt.uniform.id
        log.info("%s: %.3f of the bytes of %s for all", self.loop.method.id, found.size, uniform)
        return found.options

    def _key(self, bucket: Bucket) -> Key:
        runner = self.loop.runner
        return Key(runner.seed, runner.round, 0, bucket.index, MEASURED)


def add_finite(seen: Tensor, grad: Tensor) -> None:
    """G = G + g; what is not finite counts as 0, since such a step is not taken.

    A CPU does it in pieces that stay in its cache: a copy of a whole large gradient would be new memory every time.
    """
    seen, grad = torch.atleast_1d(seen, grad)
    rows = max(1, PIECE * len(grad) // max(1, grad.numel())) if grad.is_cpu else max(1, len(grad))
    for kept, part in zip(seen.split(rows), grad.split(rows), strict=True):
        kept.add_(torch.nan_to_num(part, 0.0, 0.0, 0.0))


class Decided(NamedTuple):
    """The option of each tensor, and the bytes of all together over those of the uniform one."""

    options: list[int]
    size: float


def decided(adapt: Adapt, seen: Iterable[tuple[Tensor, Layout, Key]]) -> Decided:
    """The choice for tensors, of each of which is given what was seen of it, and the key of the noise."""
    errors, sizes = [], []
    for tensor, layout, key in seen:
        errors.append(_errors(adapt.choices, tensor, layout, key))
        sizes.append([option.nbytes(layout) for option in adapt.choices])
    found = no_worse(errors, sizes, bins=adapt.bins)
    return Decided(found, total(sizes, found) / max(1, total(sizes, [0] * len(sizes))))


def _errors(options: Sequence[Compressor], seen: Tensor, layout: Layout, key: Key) -> list[float]:
    """|C(G) - G|^2 by option; where G is 0, or beyond all bounds, nothing is known and only the first is allowed."""
    square, flat = float(seen.square().sum(dtype=torch.float64)), seen.view(-1)
    found = [square * float(compression_error(option, flat, layout, key)) for option in options] if square else []
    return found if found and math.isfinite(found[0]) else [0.0] + [math.inf] * (len(options) - 1)


def _alone(layout: Layout, name: str) -> Layout:
    """One tensor of a layout."""
    return Layout((name,), (layout.shapes[layout.names.index(name)],))
