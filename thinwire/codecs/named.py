"""Codecs by name: the choice that methods which send integer symbols give their users.

bits      fields of equal width, packed in the pass that rounds
rans      the entropy of the symbols plus less than 1%
huffman   zero runs and symbols in whole bits
"""

from __future__ import annotations

from typing import Literal

from thinwire.codecs.huffman import Huffman
from thinwire.codecs.rans import Rans
from thinwire.core.bitpack import BitPack
from thinwire.core.codec import Codec
from thinwire.core.config import check_choice

Code = Literal["bits", "rans", "huffman"]

CODES: dict[str, Codec] = {"bits": BitPack(), "rans": Rans(), "huffman": Huffman()}


def coded(method: str, code: Code) -> Codec:
    """The codec called `code`."""
    check_choice(method, "code", code, tuple(CODES))
    return CODES[code]
