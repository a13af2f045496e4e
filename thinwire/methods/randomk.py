"""Random-k SGD: all ranks send the same random elements of their gradients, summed on the wire.

Sends k = round(ratio d) values, no places, through an all-reduce: 2 (n-1)/n of 32 k bits, every step. Each rank
keeps one residual e, or nothing.

    p = g + e,    q = p on a subset of k places that all draw alike,    e = p - q,    x = x - (lr / n) sum_i q_i

`feedback=False` sends (d/k) g on the subset, which is unbiased with omega = d/k - 1.

Reference: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018, arXiv 1809.07599, algorithm 1.

Departs from the paper: ranks share the subset, so that its sum is exact and costs what an all-reduce of k does.
"""

from __future__ import annotations

from thinwire.compressors.random_k import RandomK
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_reduce import AllReduce
from thinwire.memory import ErrorFeedback, NoMemory


@method("randomk")
def randomk(ratio: float = 0.01, feedback: bool = True) -> Method:
    """A random `ratio` of the elements, with error feedback or scaled up.

        ratio      k/d, the share of the elements that is sent
        feedback   keep the residual e; False sends d/k times the elements instead, which is unbiased

    >>> randomk(feedback=False).id
    'randomk:feedback=false'
    """
    memory = ErrorFeedback() if feedback else NoMemory()
    return Method(AllReduce(Channel(RandomK(ratio, scaled=not feedback), memory)))
