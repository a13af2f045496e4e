"""Communication as requests, and the drivers that answer them."""

from thinwire.comm.virtual import run
from thinwire.core.comm import Comm

__all__ = ["Comm", "run"]
