"""Communication as requests, and the drivers that answer them."""

from thinwire.comm.base import Comm
from thinwire.comm.virtual import run

__all__ = ["Comm", "run"]
