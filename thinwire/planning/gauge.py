"""Gauge: real steps of a method or two, which show what no part of a forecast does: ranks that wait for each other.

Computing, codecs and messages are measured apart. In a step the ranks start together, but none of them finishes a
part when the others do, and each waits for the slowest of them at every message; threads wake up, and buckets are
filled while others are under way. So where there are hosts to do so, some steps of methods that send little are
taken: a thirtieth of a plain sum, with a codec like others'. With what the engine takes, their own forecast is as
long as they are. It takes as much of every method, and of two findings the smaller counts, since whatever disturbs
a machine only adds to steps.

On a GPU a forecast may be longer than the steps even if the engine takes nothing. While its codecs were timed, each
piece waited for the other ranks' turns on the GPU; in a step several lanes wait for them at the same time. Then the
steps say how much of the GPU a piece keeps busy.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.core.method import Method
    from thinwire.planning.stage import Stage

TURNS = 3  # in which it is attached anew: what one finds of threads and memory, another may not
WARM, STEPS = 5, 20  # of each
LONGEST = 2.0  # seconds that the steps of a turn may take, those that are timed, and those before them
HALVINGS = 30  # of the range in which a figure is looked for


def seconds(stage: Stage, method: Method) -> list[float]:
    """Of steps between the hosts, from when all of them start until the slowest has ended; all ranks call this."""
    taken = list[float]()
    for _ in range(TURNS):
        taken += _turn(stage, method)
        if taken[-1] > LONGEST:  # on all ranks; what disturbs a machine hardly lengthens such steps
            break
    return taken


def fitted(forecast: Callable[[float], float], taken: float, low: float, high: float) -> float:
    """The figure from `low` to `high` with which a forecast, longer for larger ones, is as long as steps were.

    >>> round(fitted(lambda figure: 3 + 2 * figure, 4.0, 0.0, 4.0), 6)
    0.5
    """
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if forecast(middle) > taken else (middle, high)
    return (low + high) / 2


def _turn(stage: Stage, method: Method) -> list[float]:
    gc.collect()  # wires are parts of cycles, and as large as the model
    with stage.attached(method) as step:
        step()
        first = stage.company.slowest([stage.seconds(step)])
        many = int(LONGEST / first[0])
        for _ in range(min(WARM, many)):
            step()
        return stage.company.slowest([stage.seconds(step) for _ in range(min(STEPS, many))]) or first
