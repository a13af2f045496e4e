"""Given: whether what somebody wrote is a number. NumPy has numbers of its own; True is none, and neither is "2"."""

from __future__ import annotations

import math
from numbers import Integral, Real


def is_whole(value: object, least: int = 0) -> bool:
    """Whether it is a whole number of at least so much.

    >>> is_whole(2), is_whole(2.0), is_whole(True), is_whole("2"), is_whole(0, least=1)
    (True, False, False, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def is_number(value: object, least: float = 0.0) -> bool:
    """Whether it is a finite number of at least so much.

    >>> is_number(2), is_number(0.5), is_number(math.nan), is_number(math.inf), is_number(-1), is_number("2")
    (True, True, False, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return least <= float(value) < math.inf
    except OverflowError:  # a whole number that no float is as large as
        return False
