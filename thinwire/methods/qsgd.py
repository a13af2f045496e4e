"""QSGD: every rank quantises its gradient at random, without bias, and all average what they decode.

Sends b + 32/B bits per element, every step; keeps no state.

    x = x - (lr / n) sum_i Q(g_i)

`exchange="all-gather"` sends each payload to every other rank; the default sends shards to their owners, who quantise
the mean once more, so that what a rank sends does not grow with n. `code="rans"` or `"huffman"` sends the levels at
their entropy instead of in fields: with 4 levels and L2 scales 0.8 bits per element, not 4.

Reference: Alistarh et al., NeurIPS 2017, arXiv 1610.02132, algorithm 1.

Departs from the paper: its broadcast is `exchange="all-gather"`; scatter-gather adds one unbiased rounding of the
mean. See thinwire.compressors.qsgd for what `bits` counts, thinwire.methods.qsgd_elias for the paper's own codes.
"""

from __future__ import annotations

from typing import Literal

from thinwire.codecs.named import Code, coded
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.named import Named, through


@method("qsgd")
def qsgd(
    bits: int | None = 4,
    levels: int | None = None,
    norm: Literal["max", "l2"] = "max",
    block: int | None = 512,
    exchange: Named = "scatter-gather",
    code: Code = "bits",
) -> Method:
    """QSGD with fields of `bits`, or with `levels` non-zero magnitudes (`bits` is then ignored).

        bits       b, width of a field: a sign and b - 1 bits of magnitude, 2^(b-1) - 1 levels
        levels     non-zero magnitudes; where they are given, `bits` is ignored
        norm       what scales a block: "max", its largest magnitude, or "l2", its length
        block      B, elements that share a scale; None: all of a message
        exchange   "scatter-gather": through the owners of shards, who compress the mean once more; a rank sends
                   2 (n-1)/n payloads. "all-gather": every payload to every rank, compressed once; a rank sends n - 1
        code       how levels are written: "bits", fields of equal width; "rans", their entropy and 1 to 2% more;
                   "huffman", whole bits and runs of zeros. On a GPU the last runs on the host

    >>> qsgd(bits=2).id
    'qsgd:bits=2'
    """
    quantiser = Qsgd(bits if levels is None else None, levels, norm, block=block)
    return Method(through("qsgd", exchange, Channel(quantiser, codec=coded("qsgd", code))))
