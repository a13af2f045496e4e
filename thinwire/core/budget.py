"""Budget: of the options of each tensor, those that are smallest together, with a total error of at most a budget.

    minimise  sum_l size_l(c_l)    subject to  sum_l error_l(c_l) <= E

by a dynamic programme over the tensors l, with the error counted in whole bins of E / `bins`, rounded up, so that the
budget is kept whatever the rounding:

    best_l(b) = min over options c of  best_l-1(b - ceil(error_l(c) bins / E)) + size_l(c)

It takes tensors x options x bins additions. With L tensors the result is at most as large as the best one for the
budget E (1 - L / bins): rounding costs no more than that.

>>> cheapest(errors=[[0.0, 4.0], [0.0, 1.0]], sizes=[[8, 4], [80, 40]], budget=4.0)
[0, 1]

Reference: Markov, Alim, Frantar, Alistarh, "L-GreCo: layerwise-adaptive gradient compression for efficient and
accurate deep learning", MLSys 2024, arXiv 2210.17357, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

BINS = 10_000
FAR = 1 << 60  # bytes that nothing has


def cheapest(
    errors: Sequence[Sequence[float]], sizes: Sequence[Sequence[int]], budget: float, bins: int = BINS
) -> list[int] | None:
    """The option of each tensor, by `errors[tensor][option]` and `sizes[tensor][option]`; None if none fits."""
    if len(errors) != len(sizes) or any(len(e) != len(s) or not e for e, s in zip(errors, sizes, strict=True)):
        raise ValueError("cheapest takes, for each tensor, as many errors as sizes, and at least one of each")
    if not (math.isfinite(budget) and budget >= 0 and bins >= 1):
        raise ValueError(f"cheapest(budget={budget}, bins={bins}): write a finite budget >= 0 and bins >= 1")
    best = torch.full((bins + 1,), FAR, dtype=torch.int64)
    best[0] = 0
    took = []  # by tensor: the option with which each number of bins is reached
    for error, size in zip(errors, sizes, strict=True):
        options = torch.full((len(error), bins + 1), FAR, dtype=torch.int64)
        for option, (lost, nbytes) in enumerate(zip(error, size, strict=True)):
            step = _bins(lost, budget, bins)
            if step is not None:
                options[option, step:] = best[: bins + 1 - step] + nbytes
        best, chosen = options.min(0)
        best.clamp_(max=FAR)
        took.append(chosen)
    at = int(best.argmin())
    if int(best[at]) >= FAR:
        return None
    choice = []
    for error, chosen in zip(reversed(errors), reversed(took), strict=True):
        option = int(chosen[at])
        choice.append(option)
        at -= _bins(error[option], budget, bins) or 0
    return choice[::-1]


def no_worse(
    errors: Sequence[Sequence[float]], sizes: Sequence[Sequence[int]], uniform: int = 0, bins: int = BINS
) -> list[int]:
    """The cheapest choice whose total error is at most that of option `uniform` for all; that one if none is smaller.

    >>> no_worse(errors=[[2.0, 4.0, 1.0], [2.0, 3.0, 0.0]], sizes=[[40, 20, 80], [4, 2, 8]])
    [1, 2]
    """
    same = [uniform] * len(errors)
    found = cheapest(errors, sizes, math.fsum(error[uniform] for error in errors), bins) if errors else None
    return found if found is not None and total(sizes, found) < total(sizes, same) else same


def total(rows: Sequence[Sequence[int]], choice: Sequence[int]) -> int:
    """The sum over tensors of what each option has.

    >>> total([[40, 20], [4, 2]], [0, 1])
    42
    """
    return sum(row[option] for row, option in zip(rows, choice, strict=True))


def _bins(error: float, budget: float, bins: int) -> int | None:
    """How many bins an error takes, rounded up; None if it is beyond the budget."""
    if not 0 <= error <= budget:
        return None  # also where it is not a number
    return min(bins, math.ceil(error * bins / budget)) if error else 0
