"""gTop-k: the k largest elements of the ranks' sum, found by merging sums of k elements in pairs.

Sends k = round(ratio d) values and places in each of log2 n rounds, every step. Keeps one residual e_i on every rank.

    p_i = g_i + e_i,    S_i = the k largest of p_i
    round r: ranks i and i xor 2^r swap their S; both add them up and keep the k largest
    x = x - (lr / n) S after the last round;    e_i = p_i, but 0 where an element of rank i made it into S

Reference: Shi, Wang, Zhao, Tang, Wang, Huang, Chu, "A distributed synchronous SGD algorithm with global top-k
sparsification for low bandwidth networks", ICDCS 2019, arXiv 1901.04359.

Departs from the paper: see thinwire.exchange.gtopk.
"""

from __future__ import annotations

from thinwire.compressors.sparse import Indices
from thinwire.compressors.topk import TopK
from thinwire.core.method import Method, method
from thinwire.exchange.gtopk import GTopK


@method("gtopk")
def gtopk(ratio: float = 0.001, indices: Indices = "gaps") -> Method:
    """The largest `ratio` of the elements of the sum.

        ratio     k/d, the share of the elements that is sent
        indices   how places are written: "gaps", Golomb coded, log2(d/k) + 1.5 bits each; "packed", fields of
                  ceil(log2 d) bits

    >>> gtopk(ratio=0.01).id
    'gtopk:ratio=0.01'
    """
    return Method(GTopK(TopK(ratio, indices=indices)))
