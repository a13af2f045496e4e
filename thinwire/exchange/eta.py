"""How far to move towards the neighbours, when nobody says: from the compressor's contraction and the graph.

In the direction of an eigenvector of W with eigenvalue lambda, let a = eta (1 - lambda), x the disagreement and e
what compression has left out, |C(v) - v| <= q |v| with q = sqrt(1 - delta). Without gradients both DeepSqueeze and
CHOCO-SGD then obey

    DeepSqueeze, y = x - a e    |y| <= (1 - a) |y| + a^2 |e|,   |e| <= q |y| + q (1 + a) |e|
    CHOCO-SGD                   |x| <= (1 - a) |x| + a |e|,     |e| <= q a |x| + q (1 + a) |e|

with the old values on the right. Either matrix has its eigenvalues inside the unit circle if and only if
a < (1 - q) / (2 q), for a <= 1. The largest 1 - lambda is |I - W|, so both are stable for

    eta <= (1 - q) / (2 q |I - W|)

CHOCO-SGD takes this, or 1 if that is less: what it sends tends to zero, and what it leaves out with it. Without that
(DeepSqueeze, or no memory) a message leaves out q of the whole model, and x moves by a (e' - e): ranks stay apart by
about eta |I - W| q |x|, the more the larger eta is. Their own steps of length s, which the graph mixes away at the
rate eta gap, keep them apart by about s / (eta gap). The sum of the two is least for

    eta = sqrt((s / |x|) / (gap |I - W| q))

where thinwire takes s / |x| = 0.001 for granted. The smaller of the two etas is used, 1 at most.

delta is the larger of the declared bound and of what the compressor leaves of a Gaussian vector. Worst-case bounds
are of little use here: for scaled signs the declared 1/d would freeze the ranks, where 2/pi is what is seen.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from thinwire.core.gaussian import MATRIX, lost
from thinwire.topology.mixing import gap, largest_pull

if TYPE_CHECKING:
    from thinwire.core.compressor import Compressor
    from thinwire.topology.base import Topology

STEP = 0.001  # of the length of a model: a local step
EXACT = 1e-6  # of the length: a compressor that leaves no more out is no compressor


def check_eta(exchange: str, eta: float | None) -> None:
    """Refuse what cannot be a step between two models."""
    if eta is not None and not 0 < eta <= 1:
        raise ValueError(f"{exchange}(eta={eta}) is outside 0 < eta <= 1; write eta=None to have it chosen")


@lru_cache(maxsize=256)
def chosen_eta(compressor: Compressor, topology: Topology, n: int, *, settles: bool) -> float:
    """The eta above, or an error where the compressor loses more than it sends.

    `settles`: what is sent tends to zero.

    >>> from thinwire.compressors import ScaledSign
    >>> from thinwire.topology import Ring
    >>> [round(chosen_eta(ScaledSign(), Ring(), 8, settles=both), 2) for both in (True, False)]
    [0.25, 0.08]
    """
    left = left_out(compressor)
    if left >= 1:
        raise ValueError(
            f"{compressor.id} loses more of a model than it sends ({left:.2f} of |x|^2): no eta is stable; "
            f"write Shrunk({compressor!r}), or more bits"
        )
    q = math.sqrt(left)
    pull = largest_pull(topology, n)
    if q < EXACT or not pull:
        return 1.0
    stable = (1 - q) / (2 * q * pull)
    return min(1.0, stable if settles else min(stable, math.sqrt(STEP / (gap(topology, n) * pull * q))))


def left_out(compressor: Compressor) -> float:
    """1 - delta: what is lost of a Gaussian, or the declared bound where that is smaller."""
    declared = compressor.delta(math.prod(MATRIX))
    return min(lost(compressor, MATRIX), math.inf if declared is None else 1 - declared)
