"""Ok-Topk: a sparse all-reduce whose volume does not grow with the number of ranks.

Sends at most 6k (n-1)/n values and places, k = round(ratio d), every step. Keeps one residual a rank, and the last
result. See thinwire.exchange.ok_topk for the equations.

Reference: Li, Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022, arXiv 2201.07598.

Departs from the paper: see thinwire.exchange.ok_topk.
"""

from __future__ import annotations

from thinwire.compressors.sparse import Indices
from thinwire.compressors.topk import TopK
from thinwire.core.method import Method, method
from thinwire.exchange.ok_topk import OkTopk


@method("oktopk")
def oktopk(ratio: float = 0.01, exact_every: int = 32, indices: Indices = "gaps") -> Method:
    """About the largest `ratio` of the elements of the sum; the threshold is exact every `exact_every` steps.

    >>> oktopk(ratio=0.02).id
    'oktopk:ratio=0.02'
    """
    return Method(OkTopk(TopK(ratio, indices=indices), exact_every))
