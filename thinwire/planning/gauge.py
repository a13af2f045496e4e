"""Gauge: real steps of one method, which show what the parts of a forecast do not: ranks that wait for each other.

Computing, codecs and messages are measured apart. In a step the ranks start together, but none of them finishes a
part when the others do, and each waits for the slowest of them at every message; threads wake up, and buckets are
filled while others are under way. So where there are hosts to do so, some steps of a method that sends little are
taken. What they take longer than their own forecast without the engine is what the engine takes, of every method.
"""

from __future__ import annotations

import copy
import time
from statistics import median
from typing import TYPE_CHECKING

from thinwire.core.by_id import method as by_id
from thinwire.engine.attach import attach

if TYPE_CHECKING:
    from torch import nn

    from thinwire.core.method import Method
    from thinwire.planning.company import Company
    from thinwire.planning.computing import Makes, Step

METHOD = "qsgd:bits=1"  # a thirtieth of what a plain sum sends, and a codec like others'
WARM, STEPS = 5, 25
LONGEST = 5.0  # seconds that its steps may take, those that are timed, and those before them


def method() -> Method:
    """The method whose steps are taken."""
    return by_id(METHOD)


def seconds(model: nn.Module, makes: Makes, company: Company) -> float:
    """Of its step between the hosts, from when all of them start until the slowest has ended; all ranks call this."""
    net = copy.deepcopy(model)
    step, optimizer = makes(net)
    with attach(net, optimizer, method()):
        step()
        first = company.slowest([_timed(step, company)])
        many = int(LONGEST / first[0])
        for _ in range(min(WARM, many)):
            step()
        times = company.slowest([_timed(step, company) for _ in range(min(STEPS, many))])
    return median(times or first)


def _timed(step: Step, company: Company) -> float:
    company.together()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
