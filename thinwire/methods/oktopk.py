"""Ok-Topk: a sparse all-reduce whose volume does not grow with the number of ranks.

Sends at most 6k (n-1)/n values and places, k = round(ratio d), every step. Keeps one residual e_i on every rank, and
the last result.

    p_i = g_i + e_i,    S_i = the k largest of p_i, cut into n regions of which rank j owns region j
    s = sum_i S_i, by the owners, who send on what reaches a threshold t near the k-th largest magnitude of s
    x = x - (lr / n) (s where |s| >= t);    e_i = p_i, but 0 where S_i made it into that

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

        ratio         k/d, the share of the elements of the sum
        exact_every   steps from one exact threshold to the next; between them it is predicted
        indices       how places are written: "gaps", Golomb coded, log2(d/k) + 1.5 bits each; "packed", fields of
                      ceil(log2 d) bits

    >>> oktopk(ratio=0.02).id
    'oktopk:ratio=0.02'
    """
    return Method(OkTopk(TopK(ratio, indices=indices), exact_every))
