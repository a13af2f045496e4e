"""Gauge: real steps of one method, which show what the parts of a forecast do not: ranks that wait for each other.

Computing, codecs and messages are measured apart. In a step the ranks start together, but none of them finishes a
part when the others do, and each waits for the slowest of them at every message; threads wake up, and buckets are
filled while others are under way. So where there are hosts to do so, some steps of a method that sends little are
taken. What they take longer than their own forecast without the engine is what the engine takes, of every method.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from thinwire.core.by_id import method as by_id

if TYPE_CHECKING:
    from thinwire.core.method import Method
    from thinwire.planning.stage import Stage

METHOD = "qsgd:bits=1"  # a thirtieth of what a plain sum sends, and a codec like others'
TURNS = 3  # in which it is attached anew: what one finds of threads and memory, another may not
WARM, STEPS = 5, 20  # of each
LONGEST = 2.0  # seconds that the steps of a turn may take, those that are timed, and those before them


def method() -> Method:
    """The method whose steps are taken."""
    return by_id(METHOD)


def seconds(stage: Stage) -> float:
    """Of its step between the hosts, from when all of them start until the slowest has ended; all ranks call this."""
    return median(taken for _ in range(TURNS) for taken in _turn(stage))


def _turn(stage: Stage) -> list[float]:
    with stage.attached(method()) as step:
        step()
        first = stage.company.slowest([stage.seconds(step)])
        many = int(LONGEST / first[0])
        for _ in range(min(WARM, many)):
            step()
        return stage.company.slowest([stage.seconds(step) for _ in range(min(STEPS, many))]) or first
