"""Plain: what a rule remembers, as values that `torch.load(weights_only=True)` reads, and back.

A rule remembers None, a list, a dict or a small dataclass of those, with gradients that wait inside. What comes back
is filled into what `Rule.init` makes, so that a checkpoint never decides which class is made.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from thinwire.server.rule import Push


def copied(value: Any) -> Any:
    """A copy of plain values and tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Lists of values and tensors, copied."""
    if isinstance(value, Push):
        return ["push", *(plain(one) for one in value)]
    if isinstance(value, Tensor):
        return ["tensor", value.detach().clone()]
    if isinstance(value, list | tuple):
        return ["list", *(plain(one) for one in value)]
    if isinstance(value, set):
        return ["set", *(plain(one) for one in sorted(value))]
    if isinstance(value, dict):
        return ["dict", *([plain(key), plain(one)] for key, one in value.items())]
    if is_dataclass(value):
        return ["fields", *([one.name, plain(getattr(value, one.name))] for one in fields(value))]
    assert value is None or isinstance(value, bool | int | float | str), value
    return ["value", value]


def restored(saved: Any, like: Any) -> Any:
    """What `plain` was given; a dataclass is the one that `like` is."""
    kind, *inside = saved
    if kind == "fields":
        for name, one in inside:
            setattr(like, name, restored(one, getattr(like, name)))
        return like
    if kind == "dict":
        return {restored(key, None): restored(one, None) for key, one in inside}
    if kind == "value":
        return inside[0]
    if kind == "tensor":
        return inside[0].clone()  # rules may change it in place, and the checkpoint is not theirs
    several = [restored(one, None) for one in inside]
    if kind == "push":
        rank, tag, clock, seconds, samples, lrs, gradient, keys = several
        return Push(rank, tag, clock, seconds, samples, tuple(lrs), gradient, keys)
    return set(several) if kind == "set" else several
