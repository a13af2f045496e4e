"""Intervals: what a number of test images says of an accuracy, and of the difference of two.

95% of such intervals hold the accuracy on images without end, as far as the images are drawn at random.

Reference: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927, for one
accuracy; Agresti, Caffo, "Simple and effective confidence intervals for proportions and differences of proportions",
The American Statistician 54, 2000, for two: one right and one wrong image are added to each.
"""

from __future__ import annotations

import math

Z = 1.959964  # of the normal distribution's middle 95%


def interval(accuracy: float, tested: int) -> tuple[float, float]:
    """The lowest and the highest accuracy that go with this share of so many images.

    >>> low, high = interval(354 / 360, 360)
    >>> f"{low:.3f} to {high:.3f}"
    '0.964 to 0.992'
    """
    square = Z * Z / tested
    middle = (accuracy + square / 2) / (1 + square)
    half = Z * math.sqrt(accuracy * (1 - accuracy) / tested + square / (4 * tested)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def unsure(first: float, second: float, tested: int) -> float:
    """Half the interval of the difference of two accuracies on as many images each.

    >>> f"{unsure(354 / 360, 355 / 360, 360):.3f}"
    '0.019'
    """
    shares = [(share * tested + 1) / (tested + 2) for share in (first, second)]
    return Z * math.sqrt(sum(share * (1 - share) for share in shares) / (tested + 2))


def differ(first: float, second: float, tested: int) -> bool:
    """Whether so many images tell two accuracies apart.

    >>> differ(354 / 360, 355 / 360, 360), differ(0.90, 0.98, 360)
    (False, True)
    """
    low, high = sorted((first, second))
    shares = [(share * tested + 1) / (tested + 2) for share in (low, high)]
    return shares[1] - shares[0] > unsure(low, high, tested)


def no_loss(mine: float, other: float, tested: int) -> tuple[str, bool]:
    """The difference in points with half its interval, and whether so many images show no loss.

    >>> no_loss(354 / 360, 356 / 360, 360)
    ('-0.56 ± 1.86 points', True)
    """
    words = f"{100 * (mine - other):+.2f} ± {100 * unsure(mine, other, tested):.2f} points"
    return words, mine >= other or not differ(mine, other, tested)
