"""The signals, by the name that they had here: they are in core, since a method is made of one."""

from thinwire.core.signals import Delta, Grad, Momentum, Param, Signal, Update

__all__ = ["Delta", "Grad", "Momentum", "Param", "Signal", "Update"]
