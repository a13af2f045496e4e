"""gTop-k: the k largest elements of the ranks' sum, found by merging sums of k elements in pairs.

Sends k = round(ratio d) values and places in each of log2 n rounds, every step. Keeps one residual a rank. See
thinwire.exchange.gtopk for the equations.

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

    >>> gtopk(ratio=0.01).id
    'gtopk:ratio=0.01'
    """
    return Method(GTopK(TopK(ratio, indices=indices)))
