"""Lossy maps, one idea per file. `get("qsgd:bits=4")` makes one from its id."""

from thinwire.compressors.atomo import AtomoEntries, AtomoSpectral
from thinwire.compressors.atomo_fourier import AtomoFourier
from thinwire.compressors.block import BlockQuantiser
from thinwire.compressors.block_topk import BlockTopK
from thinwire.compressors.blockwise8 import Blockwise8
from thinwire.compressors.cast import Cast
from thinwire.compressors.centred import Centred, CentredK
from thinwire.compressors.count_sketch import CountSketch
from thinwire.compressors.dct_topk import DctTopK
from thinwire.compressors.dead_zone import DeadZone
from thinwire.compressors.dgc_topk import DgcTopK
from thinwire.compressors.drive import Drive
from thinwire.compressors.eden import Eden
from thinwire.compressors.identity import Identity
from thinwire.compressors.int_block import IntBlock
from thinwire.compressors.k_level import KLevel
from thinwire.compressors.laq_grid import LaqGrid
from thinwire.compressors.low_precision import LowPrecision
from thinwire.compressors.low_rank import LowRank
from thinwire.compressors.minifloat import MiniFloat
from thinwire.compressors.modulo import Modulo
from thinwire.compressors.natural import Natural
from thinwire.compressors.natural_dithering import NaturalDithering
from thinwire.compressors.one_bit import OneBit
from thinwire.compressors.qsgd import Qsgd
from thinwire.compressors.quantile8 import Quantile8
from thinwire.compressors.quantised_topk import QuantisedTopK
from thinwire.compressors.random_k import RandomK
from thinwire.compressors.refining import Refining
from thinwire.compressors.rotated import Rotated
from thinwire.compressors.sampled_topk import SampledTopK
from thinwire.compressors.sbc import Sbc
from thinwire.compressors.scaled_sign import ScaledSign
from thinwire.compressors.shrunk import Shrunk
from thinwire.compressors.sign import Sign
from thinwire.compressors.sparse_loco import SparseLoco
from thinwire.compressors.sparse_precision import SparsePrecision
from thinwire.compressors.strom import Strom
from thinwire.compressors.terngrad import TernGrad
from thinwire.compressors.topk import TopK
from thinwire.compressors.uniform8 import Uniform8
from thinwire.compressors.wangni import Wangni
from thinwire.core.compressor import Compressor
from thinwire.core.per_tensor import PerTensor
from thinwire.core.registry import Registry

__all__ = [
    "COMPRESSORS",
    "AtomoEntries",
    "AtomoFourier",
    "AtomoSpectral",
    "BlockQuantiser",
    "BlockTopK",
    "Blockwise8",
    "Cast",
    "Centred",
    "CentredK",
    "Compressor",
    "CountSketch",
    "DctTopK",
    "DeadZone",
    "DgcTopK",
    "Drive",
    "Eden",
    "Identity",
    "IntBlock",
    "KLevel",
    "LaqGrid",
    "LowPrecision",
    "LowRank",
    "MiniFloat",
    "Modulo",
    "Natural",
    "NaturalDithering",
    "OneBit",
    "PerTensor",
    "Qsgd",
    "Quantile8",
    "QuantisedTopK",
    "RandomK",
    "Refining",
    "Rotated",
    "SampledTopK",
    "Sbc",
    "ScaledSign",
    "Shrunk",
    "Sign",
    "SparseLoco",
    "SparsePrecision",
    "Strom",
    "TernGrad",
    "TopK",
    "Uniform8",
    "Wangni",
    "get",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)


COMPRESSORS: Registry[Compressor] = Registry("compressor", "thinwire.compressors")
"""Every compressor by the name in its id."""

for _cls in (
    AtomoEntries,
    AtomoFourier,
    AtomoSpectral,
    BlockTopK,
    Blockwise8,
    Cast,
    Centred,
    CentredK,
    CountSketch,
    DctTopK,
    DeadZone,
    DgcTopK,
    Drive,
    Eden,
    Identity,
    IntBlock,
    KLevel,
    LaqGrid,
    LowPrecision,
    LowRank,
    MiniFloat,
    Modulo,
    Natural,
    NaturalDithering,
    OneBit,
    Qsgd,
    Quantile8,
    QuantisedTopK,
    RandomK,
    Refining,
    Rotated,
    SampledTopK,
    Sbc,
    ScaledSign,
    Shrunk,
    Sign,
    SparseLoco,
    SparsePrecision,
    Strom,
    TernGrad,
    TopK,
    Uniform8,
    Wangni,
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
