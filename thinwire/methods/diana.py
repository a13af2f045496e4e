"""DIANA: ranks send quantised differences from a shift that follows their gradient, so that the error vanishes.

Sends b + 32/B bits per element to every other rank, every step (1 level: b = 2). Keeps a shift h_i on every rank and
their mean h on all, in float64.

    d_i = Q(g_i - h_i),    h_i += alpha d_i
    g^ = h + (1/n) sum_i d_i,    h += alpha (1/n) sum_i d_i;    x = x - lr g^

With full gradients of strongly convex functions it converges to the optimum at a linear rate, where quantised
gradient descent stops at a distance that the differences between the ranks' gradients set.
`alpha=None` takes 1 / (1 + omega), omega the quantiser's bound for a block.

Reference: Mishchenko, Gorbunov, Takac, Richtarik, "Distributed learning with compressed gradient differences", 2019,
arXiv 1901.09269, algorithm 1.

Departs from the paper: alpha is larger. Its theory asks for alpha_p / 2 at most, with alpha_p = 2 / (1 + sqrt(B)) for
max scaling and 1 / sqrt(B) for L2. Ours is alpha_p for max scaling, twice as much, and 1 / (1 + sqrt(B)) for L2, 1.92
times as much at B = 512, from the bound omega = sqrt(B) that QSGD states; give `alpha` to keep to the theory. There
is no server: every rank keeps h. Momentum and the proximal step are the optimizer's (thinwire.optim.ProximalSGD has
L1 and L2 terms). The shifts start at zero. `levels` above 1 is the generalisation of Horvath et al., arXiv
1904.05115.
"""

from __future__ import annotations

from typing import Literal

from thinwire.compressors.qsgd import Qsgd
from thinwire.core.channel import Channel
from thinwire.core.method import Method, method
from thinwire.exchange.all_gather import AllGather
from thinwire.memory.difference import Difference


@method("diana")
def diana(
    levels: int = 1,
    norm: Literal["max", "l2"] = "max",
    block: int = 512,
    alpha: float | None = None,
) -> Method:
    """Quantised gradient differences with `levels` non-zero magnitudes in blocks of `block` elements.

        levels   non-zero magnitudes of the quantiser Q
        norm     what scales a block: "max", its largest magnitude, or "l2", its length
        block    B, elements that share a scale
        alpha    how fast the shifts h follow; None takes 1 / (1 + omega)

    >>> diana(norm="l2").id
    'diana:norm=l2'
    >>> diana(block=9).exchange.channel.memory  # omega = (sqrt(9) - 1) / 2
    Difference(alpha=0.5)
    """
    quantiser = Qsgd(levels=levels, norm=norm, block=block)
    omega = quantiser.omega(block) or 0.0
    return Method(AllGather(Channel(quantiser, Difference(1 / (1 + omega) if alpha is None else alpha))))
