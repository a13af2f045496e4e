"""Plain synchronous SGD: the float32 gradient, averaged by all-reduce. The baseline.

Sends every gradient, 32 bits per element, every step; keeps no state.

    x = x - (lr / n) sum_i g_i

Departs from the paper: nothing.
"""

from __future__ import annotations

from thinwire.core.method import Method, method
from thinwire.exchange.all_reduce import AllReduce


@method("sgd")
def sgd() -> Method:
    """All-reduce of float32.

    >>> sgd().id
    'sgd'
    """
    return Method(AllReduce())
