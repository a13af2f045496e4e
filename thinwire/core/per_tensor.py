"""PerTensor: a compressor for each tensor of a vector, by the tensor's name.

The body is those of the tensors, one after another, each at a multiple of 64 bytes. A tensor that a chunk or a shard
cuts is compressed piece by piece, with the same option. The choice is a setting like others, so that a payload of a
rank with another choice is refused. Every tensor draws noise of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

from thinwire.core.compressor import Compressor, FusedCompressor
from thinwire.core.types import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key

ALIGNED = 64  # bytes: kernels read whole lines


class Part(NamedTuple):
    """Elements `start` to `stop` of a vector, all of one tensor, and the bytes `low` to `high` of a body."""

    number: int
    start: int
    stop: int
    low: int
    high: int
    layout: Layout
    compressor: Compressor

    def key(self, key: Key) -> Key:
        """Where its noise comes from: no bucket of the engine's has such a number."""
        return key.fold(bucket=(key.bucket + (self.number + 1 << 16)) % (1 << 32))


@final
@dataclass(frozen=True)
class PerTensor(Compressor):
    """`choice` gives tensors by name the place of their option; those that it leaves out have the first."""

    name: ClassVar[str] = "per-tensor"
    options: tuple[Compressor, ...]
    choice: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.options or not all(isinstance(option, Compressor) for option in self.options):
            raise TypeError(f"PerTensor takes compressors; got {self.options!r}: write PerTensor((Qsgd(bits=4),))")
        for option in self.options:
            if not option.fixed_size:
                raise ValueError(
                    f"PerTensor must know where the bytes of each tensor begin, and {option.id} makes bodies of "
                    'sizes that vary; write TopK(indices="packed"), or another option of a fixed size'
                )
        for name, place in self.choice:
            if not 0 <= place < len(self.options):
                raise ValueError(f"PerTensor has options 0 to {len(self.options) - 1}; {name!r} is to have {place}")
        facts = {
            "keeps_scale": all(option.keeps_scale for option in self.options),
            "decodes_any": all(option.decodes_any for option in self.options),
            "whole_tensors": any(option.whole_tensors for option in self.options),
        }
        for fact, value in facts.items():  # elsewhere facts of the class
            object.__setattr__(self, fact, value)

    @property
    def unbiased(self) -> bool:
        """Whether all options are."""
        return all(option.unbiased for option in self.options)

    def omega(self, d: int) -> float | None:
        """The largest of the options; None where one has none."""
        found = [option.omega(d) for option in self.options]
        known = [omega for omega in found if omega is not None]
        return max(known) if len(known) == len(found) else None

    def delta(self, d: int) -> float | None:
        """The smallest of the options; None where one has none."""
        found = [option.delta(d) for option in self.options]
        known = [delta for delta in found if delta is not None]
        return min(known) if len(known) == len(found) else None

    def nbytes(self, layout: Layout) -> int:
        """Those of the parts, each rounded up to 64 but the last."""
        parts = self.parts(layout)
        return parts[-1].high if parts else 0

    def parts(self, layout: Layout) -> list[Part]:
        """Where the tensors of a vector lie, in it and in a body."""
        if layout not in self._parts:
            self._parts[layout] = list(self._cut(layout))
        return self._parts[layout]

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | Tensor | None:
        """Write part after part."""
        end = 0
        for part in self.parts(layout):
            body[end : part.low].zero_()
            part.compressor.write(x[part.start : part.stop], part.layout, part.key(key), body[part.low : part.high])
            end = part.high
        return None

    def write_with_feedback(
        self, x: Tensor, layout: Layout, key: Key, body: Tensor, e: Tensor, alpha: float, beta: float
    ) -> int | Tensor | None:
        """Write part after part, each as its option does with feedback."""
        end = 0
        for part in self.parts(layout):
            body[end : part.low].zero_()
            _with_feedback(part, x[part.start : part.stop], key, body, e[part.start : part.stop], alpha, beta)
            end = part.high
        return None

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add part after part."""
        for part in self.parts(layout):
            sent, into = body[part.low : part.high], out[part.start : part.stop]
            part.compressor.add(sent, part.layout, part.key(key), into, weight)

    def put(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Put part after part, in the passes that the options have for it."""
        for part in self.parts(layout):
            sent, into = body[part.low : part.high], out[part.start : part.stop]
            part.compressor.put(sent, part.layout, part.key(key), into, weight)

    @cached_property
    def _parts(self) -> dict[Layout, list[Part]]:
        return {}

    @cached_property
    def _chosen(self) -> dict[str, Compressor]:
        return {name: self.options[place] for name, place in self.choice}

    def _cut(self, layout: Layout) -> list[Part]:
        found: list[Part] = []
        start = high = 0
        for name, shapes in _by_name(layout):
            part = Layout((name,) * len(shapes), shapes)
            if not part.numel:
                continue
            compressor = self._chosen.get(name, self.options[0])
            low = -(-high // ALIGNED) * ALIGNED
            high = low + compressor.nbytes(part)
            found.append(Part(len(found), start, start + part.numel, low, high, part, compressor))
            start += part.numel
        return found


def _by_name(layout: Layout) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    """The tensors in order; the pieces into which one was cut come together."""
    found: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if found and found[-1][0] == name:
            found[-1] = (name, (*found[-1][1], shape))
        else:
            found.append((name, (shape,)))
    return found


def _with_feedback(part: Part, x: Tensor, key: Key, body: Tensor, e: Tensor, alpha: float, beta: float) -> None:
    compressor, here, own = part.compressor, body[part.low : part.high], part.key(key)
    if isinstance(compressor, FusedCompressor):
        compressor.write_fused(x, part.layout, own, here, residual=e, alpha=alpha, beta=beta)
    else:
        compressor.write_with_feedback(x, part.layout, own, here, e, alpha, beta)
