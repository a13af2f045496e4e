"""What is made of the mean over ranks: itself, or the vote that it stands for.

mean      (1/n) sum_i q_i
majority  sign(sum_i q_i), with sign(0) = +1; where q_i is -1 or +1, what most ranks say
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from thinwire.core.config import check_choice

Reduce = Literal["mean", "majority"]


def mean(x: Tensor) -> Tensor:
    """The mean as it is."""
    return x


def majority(x: Tensor) -> Tensor:
    """-1 or +1; NaN stays NaN."""
    return torch.where(x.isnan(), x, torch.where(x < 0, -1.0, 1.0))


REDUCE: dict[str, Callable[[Tensor], Tensor]] = {"mean": mean, "majority": majority}


def check_reduce(exchange: str, reduce: str) -> None:
    """Refuse a word that is not a way to reduce."""
    check_choice(exchange, "reduce", reduce, tuple(REDUCE))
