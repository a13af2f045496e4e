"""How far to move towards the neighbours, when nobody says: from the compressor, the graph, and a rank's own step.

*Stability.* A rank moves by eta (1 - W_ii) away from what it sent itself, with what compression scatters into that;
what its neighbours' messages scatter is independent of it. So it obeys the loop x = x - b m of
`thinwire.exchange.loop` with b = eta (1 - W_ii), and with the largest 1 - W_ii of the graph

    eta <= edge / (1 - min W_ii)

CHOCO-SGD takes this, or 1 if that is less: what it sends tends to zero, and what it leaves out with it.

*Noise.* DeepSqueeze (or no memory) sends whole models, which do not tend to zero. A message scatters by
sqrt(scatter) |x|, and mixing spreads that over the ranks: however close they were, they are apart by

    eta noise |x|,    noise = sqrt(scatter) |I - W|_F / sqrt(n)

after it. This changes from round to round, and the mean of the models feels little of it; steps that ranks go in
directions of their own change little from round to round, and move the mean. So eta must be large where steps are
long, and only as small as the noise makes it. With ratio = |local step| / |x| DeepSqueeze takes

    eta noise = BASE + STEPS ratio

the stable eta at most: ranks may be apart by BASE of a model, and by as much more as they go in STEPS of their steps.
Nets in training have ratios of about 0.01 or less, where BASE decides; convex problems with long steps stand more.

Models are not Gaussian: where a message scatters more than that of a Gaussian does, |m - x|^2 / |x|^2 of the message
itself stands for scatter, and the stable eta is less in proportion to 1 + scatter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, final

import torch

from thinwire.core.gaussian import MATRIX, lost
from thinwire.exchange.loop import edge, scatter
from thinwire.topology.mixing import matrices

if TYPE_CHECKING:
    from thinwire.core.compressor import Compressor
    from thinwire.topology.base import Topology

BASE = 0.3
STEPS = 12.0
USUAL = 0.01  # ratio where it is not known: what nets in training show
EXACT = 1e-10  # scatter of a compressor that is none


@final
@dataclass(frozen=True)
class Pace:
    """Eta for a ratio, and for a message that scatters more than that of a Gaussian."""

    reach: float  # the stable eta times 1 + scatter, which may be above 1
    scatter: float  # of a Gaussian
    spread: float  # |I - W|_F / sqrt(n)

    def at(self, ratio: float, scatter: float = 0.0) -> float:
        """Eta of a rank that moves by `ratio` of its length in a round."""
        scatter = max(self.scatter, scatter)
        noise = math.sqrt(scatter) * self.spread
        stable, apart = min(1.0, self.reach / (1 + scatter)), BASE + STEPS * ratio
        return stable if stable * noise <= apart else apart / noise


def check_eta(exchange: str, eta: float | None) -> None:
    """Refuse what cannot be a step between two models."""
    if eta is not None and not 0 < eta <= 1:
        raise ValueError(f"{exchange}(eta={eta}) is outside 0 < eta <= 1; write eta=None to have it chosen")


@lru_cache(maxsize=256)
def stable_eta(compressor: Compressor, topology: Topology, n: int) -> float:
    """The stable eta above, 1 at most; or an error where the compressor loses more than it sends.

    >>> from thinwire.compressors import ScaledSign, TopK
    >>> from thinwire.topology import Ring
    >>> [round(stable_eta(c, Ring(), 8), 2) for c in (ScaledSign(), TopK(ratio=0.1))]
    [1.0, 0.38]
    """
    left = left_out(compressor)
    if left >= 1:
        raise ValueError(
            f"{compressor.id} loses more of a model than it sends ({left:.2f} of |x|^2): no eta is stable; "
            f"write Shrunk({compressor!r}), or more bits"
        )
    return min(1.0, _edge(compressor, topology, n))


@lru_cache(maxsize=256)
def pace(compressor: Compressor, topology: Topology, n: int) -> Pace:
    """How eta follows the step, for messages that do not tend to zero.

    >>> from thinwire.compressors import ScaledSign
    >>> from thinwire.topology import Ring
    >>> [round(pace(ScaledSign(), Ring(), 8).at(ratio), 2) for ratio in (0.1, 0.01, 0.001)]
    [0.83, 0.23, 0.17]
    """
    stable_eta(compressor, topology, n)  # refuses
    some, eye = _some(topology, n), torch.eye(n, dtype=torch.float64)
    spread = sum(float((eye - w).square().sum()) / n for w in some) / len(some)
    usual = scatter(compressor) if scatter(compressor) > EXACT else 0.0
    return Pace(_edge(compressor, topology, n) * (1 + usual), usual, math.sqrt(spread))


def _edge(compressor: Compressor, topology: Topology, n: int) -> float:
    """The edge over what a rank gives away at most."""
    away = max(1 - float(w.diagonal().min()) for w in _some(topology, n))
    return edge(compressor) / away if scatter(compressor) > EXACT and away else math.inf


def left_out(compressor: Compressor) -> float:
    """1 - delta: what is lost of a Gaussian, or the declared bound where that is smaller."""
    declared = compressor.delta(math.prod(MATRIX))
    return min(lost(compressor, MATRIX), math.inf if declared is None else 1 - declared)


def _some(topology: Topology, n: int) -> list[torch.Tensor]:
    """The matrices of a period; the first 16 where W never repeats."""
    return list(islice(matrices(topology, n), topology.period(n) or 16))
