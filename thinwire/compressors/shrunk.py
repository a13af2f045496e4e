"""Shrunk: an unbiased compressor divided by 1 + omega, which makes it a contraction.

    C'(x) = c C(x),  c = 1 / (1 + omega),    E|C'(x) - x|^2 = (1 - 2 c + c^2 (1 + omega)) |x|^2 = (1 - c) |x|^2

Error feedback and difference coding need contractions: around a compressor with omega > 1 their errors grow.

Reference: Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
communication", ICML 2019, arXiv 1902.00340.

Departs from the paper: omega is measured on a Gaussian vector, unless `w` is given. Bounds for the
worst vector would shrink too much: QSGD with 2 bits and blocks of 512 has the bound 10.8 and measures 1.6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.compressors.qsgd import Qsgd
from thinwire.core.compressor import Biased, Compressor
from thinwire.core.gaussian import MATRIX, lost

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, Layout


@final
@dataclass(frozen=True)
class Shrunk(Biased):
    """`compressor` divided by 1 + omega; `w` replaces the omega measured on a Gaussian."""

    name: ClassVar[str] = "shrunk"
    compressor: Compressor = field(default_factory=lambda: Qsgd(bits=2))
    w: float | None = None  # omega, if it is given

    def __post_init__(self) -> None:
        if not isinstance(self.compressor, Compressor):
            raise TypeError(f"Shrunk(compressor=...) takes a Compressor; got {self.compressor!r}")
        if not self.compressor.unbiased:
            raise ValueError(f"{self.compressor.id} is biased, and has no omega to divide by; write it alone")
        if self.w is not None and self.w < 0:
            raise ValueError(f"Shrunk(w={self.w}): write w=None, or a number of at least 0")
        # Elsewhere these are facts of the class, here of the inner compressor.
        for fact in ("fixed_size", "keeps_scale", "whole_tensors"):
            object.__setattr__(self, fact, getattr(self.compressor, fact))

    @property
    def scale(self) -> float:
        """1 / (1 + omega)."""
        return 1 / (1 + (lost(self.compressor, MATRIX) if self.w is None else self.w))

    def delta(self, d: int) -> float | None:
        """2 c - c^2 (1 + omega) with the declared omega; None where that bound is too large for c."""
        bound, c = self.compressor.omega(d), self.scale
        delta = 0.0 if bound is None else 2 * c - c * c * (1 + bound)
        return delta if delta > 0 else None

    def nbytes(self, layout: Layout) -> int:
        """The bytes of the inner compressor."""
        return self.compressor.nbytes(layout)

    def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | Tensor | None:
        """Write with the inner compressor."""
        return self.compressor.write(x, layout, key, body)

    def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
        """Add with the inner compressor, at a smaller weight."""
        self.compressor.add(body, layout, key, out, weight * self.scale)
