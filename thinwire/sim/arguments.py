"""Arguments that `foresee` and `simulate` do not take: each is refused with the line to write.

Without this the error would come from inside a simulated worker, and be about something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

from thinwire.comm.network import Network
from thinwire.comm.stragglers import Stragglers
from thinwire.core.given import is_number, is_whole
from thinwire.engine.plan import Plan
from thinwire.sim.costs import Costs

TYPES: dict[str, tuple[Any, str]] = {
    "network": (Network, 'tw.Network("1gbit", "1ms")'),
    "costs": (Costs, "Costs(Pass(encode=1e-9, decode=1e-9))"),
    "stragglers": (Stragglers, "tw.sim.Constant({3: 2.0})"),
    "failures": (Mapping, "{3: 2.0} for rank 3 to die after two seconds"),
    "plan": (Plan, "thinwire.engine.plan.plan_of(method, load.items, None, ()), or leave it out"),
    "watch": (Callable, "lambda moment: ..."),
    "until": (Callable, "lambda rank, step: step >= 10"),
}


def check_arguments(call: str, workers: Any, steps: Any, seed: Any = 0, min_size: Any = None, **others: Any) -> None:
    """`others` are those of `TYPES`, and may be None."""
    for name, value, usual in (("workers", workers, 8), ("steps", steps, 10)):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{call}({name}={value!r}) is no whole number; write {name}={usual}")
    if workers < 1:
        raise ValueError(f"{call}(workers={workers}): write 1 or more")
    if not is_whole(seed):
        raise ValueError(f"seed={seed!r}: write seed=0, or another number that is not negative")
    if min_size is not None and not is_whole(min_size):
        raise ValueError(f"{call}(min_size={min_size!r}): write min_size=4096, or 0 to compress every tensor")
    for name, value in others.items():
        kind, write = TYPES[name]
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{call}({name}={value!r}): write {name}={write}")
    for rank, time in (others.get("failures") or {}).items():
        if not is_whole(rank) or not is_number(time):
            raise TypeError(f"{call}(failures={{{rank!r}: {time!r}}}): write failures={TYPES['failures'][1]}")
