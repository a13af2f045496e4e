"""DRIVE: rotate at random and send the signs, with the one scale that leaves no bias.

Sends, for each block x of B elements, S (32 bits) and B signs:

    r = H D_2 H D_1 x,    x^ = S D_1 H D_2 H sgn(r),    S = |r|_2^2 / |r|_1   (biased=True: S = |r|_1 / B)

E|x^ - x|^2 / |x|^2 = pi/2 - 1 = .571 for every x; averaging n ranks divides it by n, because each rank draws its own
signs D from its key. The biased scale has the least error, 1 - 2/pi = .363, and needs error feedback.
Wire: 1 + 32/B bits per element. The decoded values are those of Eden(bits=1), up to rounding.

>>> round(Drive().omega(4096), 3)  # 5% above .571
0.599

Reference: Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher, "DRIVE: one-bit distributed mean
estimation", NeurIPS 2021, arXiv 2105.08339.

Departs from the paper: two rotations (see thinwire.compressors.rotated_code).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from thinwire.compressors.rotated_code import RotatedCode, check_rotation
from thinwire.kernels.rotated_codes import Tables


@final
@dataclass(frozen=True)
class Drive(RotatedCode):
    """One bit per element after a random rotation of blocks of `block` elements."""

    name: ClassVar[str] = "drive"
    biased: bool = False
    rotations: int = 2
    block: int = 4096

    def __post_init__(self) -> None:
        check_rotation("Drive", self.rotations, self.block)

    @property
    def tables(self) -> Tables:
        """One rate: a sign."""
        return Tables((1.0,))

    @property
    def energy(self) -> float:
        """2 / pi."""
        return 2 / math.pi
