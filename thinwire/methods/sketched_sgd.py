"""Sketched SGD: ranks add sketches of their gradients, find the heavy elements in the sum, and add those exactly.

Sends 2 (n-1)/n of (rows width + fetch) k values, k = round(ratio d), every step, whatever n is. Keeps one residual
e_i on every rank.

    p_i = g_i + e_i,    T = sum_i sketch(p_i),    I = the fetch k places with the largest estimates from T
    s = the k largest of sum_i p_i on I,    x = x - (lr / n) s;    e_i = p_i, but 0 at the places of s

Reference: Ivkin, Rothchild, Ullah, Braverman, Stoica, Arora, "Communication-efficient distributed SGD with
sketching", NeurIPS 2019, arXiv 1903.04488.

Departs from the paper: see thinwire.exchange.sketched.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.exchange.sketched import Sketched


@method("sketched-sgd")
def sketched_sgd(ratio: float = 0.001, rows: int = 5, width: float = 4.0, fetch: float = 4.0) -> Method:
    """The largest `ratio` of the elements of the sum, found in `rows` of `width` k counters.

        ratio   k/d, the share of the elements of the sum
        rows    rows of the sketch
        width   counters in a row, in units of k
        fetch   elements whose exact sums are fetched, in units of k

    >>> sketched_sgd(ratio=0.01).id
    'sketched-sgd:ratio=0.01'
    """
    return Method(Sketched(ratio, rows, width, fetch))
