"""A W of your own, for as many ranks as it has rows.

It is given as nested tuples, lists, an array or a tensor, and kept as a text with a semicolon between rows, so that
it goes into ids and JSON. Digits are those that read back as the same float64.

>>> Weights(((0.75, 0.25), (0.25, 0.75)))
Weights(rows='0.75 0.25; 0.25 0.75', directed=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.topology.base import TOPOLOGIES, Topology
from thinwire.topology.mixing import check

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Weights(Topology):
    """`rows[i][j]` is W[i, j], what rank i takes from rank j. With `directed`, columns sum to one, for push-sum."""

    name: ClassVar[str] = "weights"
    rows: str | Sequence[Sequence[float]] = ()  # empty is refused, with the line to write
    directed: bool = False

    def __post_init__(self) -> None:
        rows = _read(self.rows) if isinstance(self.rows, str) else [[float(v) for v in row] for row in self.rows]
        if len(rows) < 2 or len({len(row) for row in rows}) > 1:
            raise ValueError(
                f"W is a square matrix of two ranks or more; got rows of {[len(row) for row in rows]} weights: "
                "write Weights(((0.5, 0.5), (0.5, 0.5)))"
            )
        check(torch.tensor(rows, dtype=torch.float64), directed=self.directed)
        object.__setattr__(self, "rows", "; ".join(" ".join(map(repr, row)) for row in rows))

    @property
    def size(self) -> int | None:
        """As many as W has rows."""
        return len(_read(str(self.rows)))

    def matrix(self, n: int, step: int = 0) -> Tensor:
        """W as it was given."""
        w = torch.tensor(_read(str(self.rows)), dtype=torch.float64)
        if n != len(w):
            raise ValueError(f"this W is for {len(w)} ranks, not {n}; write Weights(...) of {n} rows")
        return w


def _read(text: str) -> list[list[float]]:
    try:
        return [[float(word) for word in row.split()] for row in text.split(";")]
    except ValueError:
        raise ValueError(
            f'Weights("{text}"): write numbers, and ; between rows: Weights("0.5 0.5; 0.5 0.5")'
        ) from None


TOPOLOGIES.add(Weights.name, Weights)
