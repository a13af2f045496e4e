"""Settings: the arguments of `attach` and `ddp_hook` that are not part of the method."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, final, get_args

from thinwire.engine.skipping import OnNonfinite

Reduction: TypeAlias = Literal["mean", "sum"]


@final
@dataclass(frozen=True)
class Settings:
    """See `thinwire.attach`."""

    min_size: int | None = None
    exclude: tuple[str, ...] = ()
    seed: int = 0
    timeout: float = 600.0
    drop_dead: bool = False
    on_nonfinite: OnNonfinite = "skip"
    reduce: Reduction = "mean"
    quorum: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would end in an error about something else, on this rank or on those that wait for it."""
        given: dict[str, Any] = vars(self)
        size, seed, timeout = given["min_size"], given["seed"], given["timeout"]
        if size is not None and not (isinstance(size, Integral) and int(size) >= 0):
            raise ValueError(f"min_size={size!r}: write a number of elements, such as min_size=1024")
        if not isinstance(seed, Integral):
            raise ValueError(f"seed={seed!r}: write a whole number, the same on every rank, such as seed=0")
        quorum = given["quorum"]
        if quorum is not None and not (isinstance(quorum, Integral) and int(quorum) >= 1):
            raise ValueError(f"quorum={quorum!r}: write how many ranks must be left to go on, such as quorum=3")
        if quorum is not None and not self.drop_dead:
            raise ValueError(f"without drop_dead all ranks must be left; write drop_dead=True, quorum={quorum}")
        if not (isinstance(timeout, Real) and 0 < float(timeout) < inf):
            raise ValueError(f"timeout={timeout!r}: write a number of seconds, such as timeout=600.0")
        if given["reduce"] not in get_args(Reduction):
            raise ValueError(f"reduce={given['reduce']!r}: write reduce='mean', or reduce='sum'")
