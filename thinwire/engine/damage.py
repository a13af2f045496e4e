"""Damage: what is wrong with a saved state, found before anything is changed.

Every entry must be present, have the right type, and hold a possible value. A ValueError names the first that fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from thinwire.engine.pieces import read_key
from thinwire.server.steppers import Stepper, remembered

FORMAT = 1


def check_entries(who: str, state: Any) -> None:
    """Refuse the state of one rank if any entry but its tensors is wrong."""
    if not isinstance(state, Mapping):
        raise _wrong(who, "is", state, "a dict")
    if state.get("format") != FORMAT:
        raise ValueError(f"{who} is a state of format {state.get('format')!r}; this thinwire reads format {FORMAT}")
    for name, fits, what in ENTRIES:
        if name not in state:
            raise ValueError(f"{who} has no entry '{name}'; it is damaged")
        if not fits(state[name]):
            raise _wrong(who, f"has '{name}' =", state[name], what)
    for name, shape in state["parameters"].items():
        if not isinstance(name, str) or not _is_list(shape, _is_count):
            raise _wrong(who, f"has 'parameters' with {name!r} =", shape, "a shape")
    for name, lr in state["lr"].items():
        if name not in state["parameters"] or not _is_number(lr) or lr <= 0:
            raise _wrong(who, f"has 'lr' with {name!r} =", lr, "a learning rate above 0 of one of its parameters")
    if not _is_count(state.get("local", 0)):
        raise _wrong(who, "has 'local' =", state["local"], "a whole number, 0 or more")


def check_tensors(who: str, state: Mapping[str, Any], memories: Collection[str]) -> None:
    """Refuse pieces that are not what the parameters have; `memories` are the method's names for them, if known."""
    tensors, shapes = state["tensors"], state["parameters"]
    held: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for key, data in tensors.items():
        parts = read_key(str(key))
        if parts is None or parts.name not in shapes:
            raise ValueError(
                f"{who} has a tensor '{key}', whose name is not 'memory|start|parameter' for one of its parameters"
            )
        memory, start, stop, name = parts
        if memories and memory not in memories:
            raise ValueError(f"{who} has a tensor '{key}', but the method has no memory '{memory}'")
        if not isinstance(data, Tensor) or data.dim() != 1 or data.is_complex():
            raise _wrong(who, f"has '{key}' =", data, "a tensor of one dimension")
        if stop is not None and (data.numel() != 1 or stop <= start):
            raise _wrong(who, f"has '{key}' =", data, "one number for some elements")
        stop, whole = start + data.numel() if stop is None else stop, math.prod(shapes[name])
        if stop > whole:
            raise ValueError(f"{who} has '{key}' with elements {start} to {stop}, but {name} has {whole}")
        if not bool(data.isfinite().all()):
            raise ValueError(f"{who} has '{key}' with elements that are not finite")
        held.setdefault((memory, name), []).append((start, stop, str(key)))
    for pieces in held.values():
        pieces.sort()
        for (_, end, one), (begin, _, other) in pairwise(pieces):
            if begin < end:
                raise ValueError(f"{who} has '{one}' and '{other}', which hold the same elements")


def check_like(who: str, path: str, value: Any, like: Any) -> None:
    """Refuse what has not the form of `like`: its keys, lengths, types and shapes, with finite numbers."""
    where = f"has '{path}' ="
    if isinstance(like, Mapping):
        if not isinstance(value, Mapping) or set(map(str, value)) != set(map(str, like)):
            raise _wrong(who, where, value, f"a dict with {', '.join(map(str, like)) or 'nothing'}")
        for key, part in like.items():
            check_like(who, f"{path}.{key}", value[key], part)
    elif isinstance(like, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(like):
            raise _wrong(who, where, value, f"a list of {len(like)}")
        for number, (part, other) in enumerate(zip(value, like, strict=True)):
            check_like(who, f"{path}.{number}", part, other)
    elif isinstance(like, Tensor):
        _check_tensor(who, path, value, like.shape)
    elif isinstance(like, bool) or like is None or isinstance(like, str):
        if type(value) is not type(like):
            raise _wrong(who, where, value, f"{type(like).__name__}")
    elif isinstance(like, int):
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(who, where, value, "a whole number")
    elif not _is_number(value):
        raise _wrong(who, where, value, "a number")


def check_counts(who: str, path: str, values: Any, *, least: int = 0) -> None:
    """Refuse what is not whole numbers, `least` or more; or one such number."""
    for value in values if isinstance(values, Sequence) else [values]:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise _wrong(who, f"has '{path}' with", value, f"a whole number, {least} or more")


def check_moments(who: str, path: str, moments: Any, steppers: Mapping[str, tuple[Stepper, Tensor, int]]) -> None:
    """Refuse what is not an optimizer's state by parameter: each has what a step of its stepper leaves.

    `steppers` has by parameter who steps, a tensor like it, and the number of parameter groups.
    """
    if not isinstance(moments, Mapping):
        raise _wrong(who, f"has '{path}' =", moments, "a dict")
    for name, kept in moments.items():
        if name not in steppers:
            raise ValueError(f"{who} has '{path}.{name}', but there is no such parameter")
        if kept != {}:  # a parameter that has not been stepped yet
            check_like(who, f"{path}.{name}", kept, remembered(*steppers[name]))


def _check_tensor(who: str, path: str, value: Any, shape: torch.Size) -> None:
    if not isinstance(value, Tensor) or value.shape != shape:
        given = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
        raise ValueError(f"{who} has '{path}' of {given}; it is damaged: expected a tensor of shape {list(shape)}")
    if value.is_floating_point() and not bool(value.isfinite().all()):
        raise ValueError(f"{who} has '{path}' with elements that are not finite")


def _wrong(who: str, where: str, value: Any, what: str) -> ValueError:
    shown = f"{type(value).__name__} {str(value)[:60]}"
    return ValueError(f"{who} {where} {shown}; it is damaged: expected {what}")


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def _is_count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _is_list(x: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(x, list | tuple | torch.Size) and all(map(fits, x))


ENTRIES: list[tuple[str, Callable[[Any], bool], str]] = [
    ("method", lambda x: isinstance(x, str), "a method as JSON"),
    ("ranks", lambda x: _is_count(x) and x > 0, "a whole number, 1 or more"),
    ("round", _is_count, "a whole number, 0 or more"),
    ("seed", lambda x: isinstance(x, int) and not isinstance(x, bool), "a whole number"),
    ("lr", lambda x: isinstance(x, Mapping), "a dict"),
    ("motion", lambda x: _is_list(x, lambda one: _is_number(one) and one >= 0), "a list of numbers, 0 or more"),
    ("parameters", lambda x: isinstance(x, Mapping), "a dict"),
    ("tensors", lambda x: isinstance(x, Mapping), "a dict"),
]
"""Name, test and description of every entry."""
