"""Lossless codes for symbols, one idea a file."""

from thinwire.codecs.bitpack import BitPack
from thinwire.core.codec import Codec

__all__ = ["BitPack", "Codec"]
