"""Arguments that `foresee` and `simulate` do not take: each is refused with the line to write.

Without this the error would come from inside a simulated worker, and be about something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from thinwire.comm.network import Network
from thinwire.comm.stragglers import Stragglers
from thinwire.sim.costs import Costs

TYPES: dict[str, tuple[type, str]] = {
    "network": (Network, 'tw.Network("1gbit", "1ms")'),
    "costs": (Costs, "Costs(Pass(encode=1e-9, decode=1e-9))"),
    "stragglers": (Stragglers, "tw.sim.Constant({3: 2.0})"),
    "failures": (Mapping, "{3: 2.0} for rank 3 to die after two seconds"),
}


def check_arguments(call: str, workers: Any, steps: Any, **others: Any) -> None:
    """`others` are those of `TYPES`, and may be None."""
    for name, value, usual in (("workers", workers, 8), ("steps", steps, 10)):
        if not isinstance(value, Integral):  # NumPy has whole numbers of its own
            raise TypeError(f"{call}({name}={value!r}) is no whole number; write {name}={usual}")
    if workers < 1:
        raise ValueError(f"{call}(workers={workers}): write 1 or more")
    for name, value in others.items():
        kind, write = TYPES[name]
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{call}({name}={value!r}): write {name}={write}")
    for rank, time in (others.get("failures") or {}).items():
        if not isinstance(rank, int) or not isinstance(time, int | float):
            raise TypeError(f"{call}(failures={{{rank!r}: {time!r}}}): write failures={TYPES['failures'][1]}")
