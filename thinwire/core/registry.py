"""Registries: a dict, and entry points that load when a name is asked for that is not in it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def suggest(name: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' with the nearest names, else the list of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(repr(n) for n in near)}?"
    return f"; there are {', '.join(choices)}" if choices else ""


class Registry(Generic[T]):
    """Names to classes or factories. Other packages add to it through the entry-point group `group`."""

    def __init__(self, what: str, group: str) -> None:
        self.what = what
        self.group = group
        self._made: dict[str, Callable[..., T]] = {}

    def add(self, name: str, make: Callable[..., T]) -> None:
        """Register; a name is taken once."""
        if self._made.get(name, make) is not make and not _same(self._made[name], make):
            raise ValueError(f"{self.what} '{name}' is registered twice: {self._made[name]} and {make}")
        self._made[name] = make

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name not in self._made:
            for point in entry_points(group=self.group):
                if point.name == name:
                    self.add(name, point.load())
        if name not in self._made:
            raise ValueError(f"unknown {self.what} '{name}'{suggest(name, self)}")
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._made, *(p.name for p in entry_points(group=self.group))}))

    def parse(self, text: str) -> T:
        """The object of an id such as `qsgd:bits=4,norm=max`."""
        name, _, arguments = text.strip().partition(":")
        make = self[name]
        known = inspect.signature(make).parameters
        kwargs: dict[str, Any] = {}
        for part in filter(None, arguments.split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                raise ValueError(
                    f"'{part}' in '{text}' is not key=value; write {name}:{next(iter(known), 'key')}=..."
                )
            if key.strip() not in known:
                raise ValueError(f"{self.what} '{name}' has no setting '{key.strip()}'{suggest(key.strip(), known)}")
            kwargs[key.strip()] = _value(value.strip())
        return make(**kwargs)


def _same(a: Callable[..., Any], b: Callable[..., Any]) -> bool:
    """dataclass(slots=...) and reloads make a class anew under the same qualified name."""
    return (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__)


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
