"""How far to move towards the neighbours, when nobody says: from the compressor, the graph, and a rank's own step.

*Stability.* A rank moves by eta (1 - W_ii) away from what it sent itself, with what compression scatters into that;
what its neighbours' messages scatter is independent of it. So it obeys the loops of `thinwire.exchange.loop` with
b = eta (1 - W_ii), and with the largest 1 - W_ii of the graph

    eta <= edge / (1 - min W_ii)

CHOCO-SGD takes this with `lag_edge`, or 1 if that is less: what it sends tends to zero, and what it leaves out too.

*Noise.* DeepSqueeze (or no memory) sends whole models, which do not tend to zero. However close ranks were, mixing
leaves them apart by two things: what a message scatters, sqrt(scatter) |x|, and what its sender holds back, |e|. Both
spread by |I - W|_F / sqrt(n). The mean of the models feels little of it; steps that ranks go in directions of
their own move the mean. So eta must be large where steps are long, and only as small as the noise makes it. With
ratio = |local step| / |x| DeepSqueeze takes the stable eta, and at most

    eta sqrt(scatter) spread = APART far
    eta |e| / |x| spread     = HELD far tolerance

    far = ratio / LONG, 1 at least
    tolerance = edge (1 + scatter) / 2, 1 at least: how much more than independent noise the loop stands

Nets in training have ratios below LONG; convex problems with long steps stand more.

This serves the mean of the models. Each rank's own model is farther from the optimum than with a smaller eta, since
mixing scatters more into it than it takes away: `thinwire bench eta` judges both. No ratio tells which eta is best
for both, since it does not say whether ranks go in directions of their own.

Models are not Gaussian: where a message scatters more than that of a Gaussian does, or more is held back, what is
measured counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, final

import torch

from thinwire.core.gaussian import MATRIX, lost
from thinwire.exchange.loop import edge, held, lag_edge, scatter
from thinwire.topology.mixing import matrices

if TYPE_CHECKING:
    from thinwire.core.compressor import Compressor
    from thinwire.topology.base import Topology

APART = 0.4
HELD = 1.5
LONG = 0.03
USUAL = 0.01  # ratio where it is not known: what nets in training show
EXACT = 1e-10  # scatter of a compressor that is none


@final
@dataclass(frozen=True)
class Pace:
    """Eta for a ratio, and for messages that scatter or hold back more than those of a Gaussian."""

    stable: float
    scatter: float  # of a Gaussian
    held: float
    spread: float  # |I - W|_F / sqrt(n)
    tolerance: float

    def at(self, ratio: float, scatter: float = 0.0, held: float = 0.0) -> float:
        """Eta of a rank that moves by `ratio` of its length in a round."""
        far = max(1.0, ratio / LONG)
        apart = math.sqrt(max(self.scatter, scatter)) * self.spread / (APART * far)
        back = max(self.held, held) * self.spread / (HELD * far * self.tolerance)
        return 1 / max(1 / self.stable, apart, back)


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
    _check(compressor)
    return min(1.0, edge(compressor) / _away(compressor, topology, n))


@lru_cache(maxsize=256)
def lag_eta(compressor: Compressor, topology: Topology, n: int) -> float:
    """The stable eta of differences, 1 at most."""
    _check(compressor)
    return min(1.0, lag_edge(compressor) / _away(compressor, topology, n))


def _check(compressor: Compressor) -> None:
    left = left_out(compressor)
    if left >= 1:
        raise ValueError(
            f"{compressor.id} loses more of a model than it sends ({left:.2f} of |x|^2): no eta is stable; "
            f"write Shrunk({compressor!r}), or more bits"
        )


@lru_cache(maxsize=256)
def pace(compressor: Compressor, topology: Topology, n: int) -> Pace:
    """How eta follows the step, for messages that do not tend to zero.

    >>> from thinwire.compressors import ScaledSign
    >>> from thinwire.topology import Ring
    >>> [round(pace(ScaledSign(), Ring(), 8).at(ratio), 2) for ratio in (0.1, 0.05, 0.01)]
    [0.74, 0.37, 0.22]
    """
    stable = stable_eta(compressor, topology, n)
    some, eye = _some(topology, n), torch.eye(n, dtype=torch.float64)
    spread = sum(float((eye - w).square().sum()) / n for w in some) / len(some)
    if scatter(compressor) <= EXACT:
        return Pace(stable, 0.0, 0.0, math.sqrt(spread), 1.0)
    tolerance = max(1.0, edge(compressor) * (1 + scatter(compressor)) / 2)
    return Pace(stable, scatter(compressor), held(compressor), math.sqrt(spread), tolerance)


def _away(compressor: Compressor, topology: Topology, n: int) -> float:
    """What a rank gives away at most; as good as nothing where nothing is lost."""
    away = max(1 - float(w.diagonal().min()) for w in _some(topology, n))
    return away if away and scatter(compressor) > EXACT else EXACT


def left_out(compressor: Compressor) -> float:
    """1 - delta: what is lost of a Gaussian, or the declared bound where that is smaller."""
    declared = compressor.delta(math.prod(MATRIX))
    return min(lost(compressor, MATRIX), math.inf if declared is None else 1 - declared)


def _some(topology: Topology, n: int) -> list[torch.Tensor]:
    """The matrices of a period; the first 16 where W never repeats."""
    return list(islice(matrices(topology, n), topology.period(n) or 16))
