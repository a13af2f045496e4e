"""`Comm`, by the name that it had here: it is in core, since every exchange is written with it."""

from thinwire.core.comm import Comm, Traffic, to_bytes, to_tensor

__all__ = ["Comm", "Traffic", "to_bytes", "to_tensor"]
