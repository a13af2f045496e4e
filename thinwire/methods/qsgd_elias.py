"""QSGD as it was published: L2 scales, and levels in Elias' codes, dense or sparse.

Sends, every step, each block's norm (32 bits) and its levels q; keeps no state. Sizes depend on the data.

    x = x - (lr / n) sum_i Q(g_i),    Q(g) = (|g|_2 / levels) q, unbiased
    form=dense    Elias(|q| + 1) of every level, and a sign where it is not zero; levels = sqrt(B): 3.0 bits
    form=sparse   Elias(distance), sign, Elias(|q|) of the levels that are not zero; 4 levels: 1.1 bits, 1 level: 0.5

With one block of n elements and one level the sparse form takes O(sqrt(n) log n) bits, at a variance of sqrt(n).
`code` chooses among Elias' codes. `levels=None` is the square root of the block for the dense form, 4 for the sparse.

Reference: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017,
arXiv 1610.02132, section 3.2, theorem 3.2 and corollary 3.3.

Departs from the paper: its 2.8 n + 32 bits of the dense form are asymptotic; the literal code takes 2.93 to 2.99 bits
per element on a Gaussian, the same levels under `qsgd:code=rans` 2.2. The sparse form ends with the distance to the
end of the vector, which the paper leaves open. Blocks share one list of levels.
"""

from __future__ import annotations

import math
from typing import Literal

from thinwire.codecs.elias import Code, EliasDense, EliasSparse
from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.config import check_choice
from thinwire.core.method import Method, method
from thinwire.exchange.named import Named, through

FORMS = {"dense": EliasDense, "sparse": EliasSparse}


@method("qsgd-elias")
def qsgd_elias(
    form: Literal["dense", "sparse"] = "dense",
    levels: int | None = None,
    code: Code = "omega",
    block: int | None = 512,
    exchange: Named = "all-gather",
) -> Method:
    """QSGD with L2 scales and Elias-coded levels.

        form       "dense" or "sparse", as above
        levels     non-zero magnitudes; None takes sqrt(B) for the dense form, 4 for the sparse one
        code       which of Elias' codes: "gamma", "delta" or "omega"
        block      B, elements that share a norm; None: all of a message
        exchange   "scatter-gather": through the owners of shards, who compress the mean once more; a rank sends
                   2 (n-1)/n payloads. "all-gather": every payload to every rank, compressed once; a rank sends n - 1

    >>> qsgd_elias(form="sparse", levels=1, block=None).id
    'qsgd-elias:form=sparse,levels=1,block=none'
    >>> qsgd_elias().exchange.channel.compressor.levels  # sqrt(512)
    22
    """
    check_choice("qsgd_elias", "form", form, tuple(FORMS))
    if levels is None and form == "dense" and block is None:
        raise ValueError("qsgd_elias(form='dense', block=None) has no square root to take: write levels=127")
    s = levels or {"dense": min(127, math.isqrt(block or 1)), "sparse": 4}[form]
    quantiser = Qsgd(levels=s, norm="l2", block=block)
    return Method(through("qsgd_elias", exchange, Channel(quantiser, codec=FORMS[form](code))))
