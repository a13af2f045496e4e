"""Lossy maps, one idea a file. `get("qsgd:bits=4")` makes one from its id."""

from thinwire.compressors.block import BlockQuantiser
from thinwire.compressors.cast import Cast
from thinwire.compressors.identity import Identity
from thinwire.compressors.int_block import IntBlock
from thinwire.compressors.k_level import KLevel
from thinwire.compressors.laq_grid import LaqGrid
from thinwire.compressors.low_precision import LowPrecision
from thinwire.compressors.minifloat import MiniFloat
from thinwire.compressors.natural import Natural
from thinwire.compressors.natural_dithering import NaturalDithering
from thinwire.compressors.one_bit import OneBit
from thinwire.compressors.qsgd import Qsgd
from thinwire.compressors.scaled_sign import ScaledSign
from thinwire.compressors.sign import Sign
from thinwire.compressors.terngrad import TernGrad
from thinwire.core.compressor import Compressor
from thinwire.core.registry import Registry

__all__ = [
    "COMPRESSORS",
    "BlockQuantiser",
    "Cast",
    "Compressor",
    "Identity",
    "IntBlock",
    "KLevel",
    "LaqGrid",
    "LowPrecision",
    "MiniFloat",
    "Natural",
    "NaturalDithering",
    "OneBit",
    "Qsgd",
    "ScaledSign",
    "Sign",
    "TernGrad",
    "get",
]

COMPRESSORS: Registry[Compressor] = Registry("compressor", "thinwire.compressors")
"""Every compressor by the name in its id."""

for _cls in (
    Cast,
    Identity,
    IntBlock,
    KLevel,
    LaqGrid,
    LowPrecision,
    MiniFloat,
    Natural,
    NaturalDithering,
    OneBit,
    Qsgd,
    ScaledSign,
    Sign,
    TernGrad,
):
    COMPRESSORS.add(_cls.name, _cls)


def get(text: str) -> Compressor:
    """The compressor of an id.

    >>> get("qsgd:bits=4,norm=l2")
    Qsgd(bits=4, levels=None, norm='l2', symmetric=True, block=512)
    >>> get("qsdg:bits=4")
    Traceback (most recent call last):
    ValueError: unknown compressor 'qsdg'; did you mean 'qsgd' or 'sign'?
    """
    return COMPRESSORS.parse(text)
