"""signSGD: one bit per element; the step is the mean of the signs of all ranks.

Sends 1 bit per element to every other rank, every step; keeps no state.

    x = x - (lr / n) sum_i sign(g_i)

Steps are of the size of lr whatever the gradient: take a learning rate as for Adam. To send one bit back too, write
`majority_vote()`.

Reference: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: compressed optimisation for non-convex problems",
ICML 2018, arXiv 1802.04434, algorithm 1.

Departs from the paper: its algorithm 1 has one worker; with several we take the mean of the signs. sign(0) = +1.
"""

from __future__ import annotations

from thinwire.compressors.sign import Sign
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.core.recipe import Recipe
from thinwire.exchange.all_gather import AllGather


@method("signsgd", Recipe(momentum=0.0, lr=3e-3))
def signsgd() -> Method:
    """The mean of signs.

    >>> signsgd().id
    'signsgd'
    """
    return Method(AllGather(Channel(Sign())))
