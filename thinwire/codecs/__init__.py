"""Lossless codes for symbols, one idea per file."""

from thinwire.codecs.elias import EliasDense, EliasSparse
from thinwire.codecs.gaps import bound_gaps, pack_gaps, unpack_gaps
from thinwire.codecs.golomb import GolombRuns
from thinwire.codecs.huffman import Huffman
from thinwire.codecs.rans import Rans
from thinwire.core.bitpack import BitPack
from thinwire.core.codec import Codec

__all__ = [
    "BitPack",
    "Codec",
    "EliasDense",
    "EliasSparse",
    "GolombRuns",
    "Huffman",
    "Rans",
    "bound_gaps",
    "pack_gaps",
    "unpack_gaps",
]


def __dir__() -> list[str]:
    """What is public: the files of this folder are not shown beside their contents."""
    return sorted(__all__)
