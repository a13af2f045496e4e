"""Registries: a dict, and entry points that load when a name is asked for that the dict does not have."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def suggest(name: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' with the nearest names, or else the list of all."""
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
        """Register `make`; a name can be taken only once."""
        if self._made.get(name, make) is not make and not _same(self._made[name], make):
            raise ValueError(f"{self.what} '{name}' is registered twice: {self._made[name]} and {make}")
        self._made[name] = make

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name not in self._made:
            points = [point for point in entry_points(group=self.group) if point.name == name]
            if len({point.value for point in points}) > 1:
                places = " and ".join(point.value for point in points)
                raise ValueError(f"{self.what} '{name}' is in two packages, as {places}; uninstall one of them")
            for point in points[:1]:
                self.add(name, self._load(point))
        if name not in self._made:
            raise ValueError(f"unknown {self.what} '{name}'{suggest(name, self)}")
        return self._made[name]

    def _load(self, point: EntryPoint) -> Callable[..., T]:
        try:
            made: Callable[..., T] = point.load()
        except Exception as error:
            package = point.dist.name if point.dist else "another package"
            raise ValueError(
                f"{self.what} '{point.name}' is {point.value} of {package}, which cannot be imported: "
                f"{type(error).__name__}: {error}"
            ) from error
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._made, *self._elsewhere}))

    def __contains__(self, name: str) -> bool:
        return name in self._made or name in self._elsewhere

    @cached_property
    def _elsewhere(self) -> frozenset[str]:
        """Names that other packages add. All metadata of all packages is read for it, so it is read once."""
        return frozenset(point.name for point in entry_points(group=self.group))

    def parse(self, text: str) -> T:
        """The object of an id such as `qsgd:bits=4,norm=max`. A value that is itself an id stands in parentheses."""
        name, _, arguments = text.strip().partition(":")
        make = self[name]
        known, types = _settings(make)
        kwargs: dict[str, Any] = {}
        for part in filter(None, _split(arguments)):
            key, equals, value = (word.strip() for word in part.partition("="))
            if not equals:
                raise ValueError(
                    f"'{part}' in '{text}' is not key=value; write {name}:{next(iter(known), 'key')}=..."
                )
            if key not in known:
                raise ValueError(f"{self.what} '{name}' has no setting '{key}'{suggest(key, known)}")
            if key in kwargs:
                raise ValueError(f"'{text}' sets {key} twice")
            nested = value.startswith("(") and _is_config(types.get(key))
            kwargs[key] = self.parse(value[1:-1]) if nested else word(value)
            if not nested and not _fits(kwargs[key], types.get(key, Any)):
                raise ValueError(f"'{part}' in '{text}': {key} is {_spell(types[key])}")
        return make(**kwargs)


def _same(a: Callable[..., Any], b: Callable[..., Any]) -> bool:
    """Whether both are one: dataclass(slots=...) and reloads make a class again under the same qualified name."""
    return (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__)


@cache
def _settings(make: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter], dict[str, Any]]:
    """What a factory takes, and of which types; for a dataclass, its fields."""
    return inspect.signature(make).parameters, get_type_hints(make)


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses.

    >>> _split("a=1,b=(c:d=2,e=(f:g=3)),h=4")
    ['a=1', 'b=(c:d=2,e=(f:g=3))', 'h=4']
    """
    parts, depth = [""], 0
    for mark in text:
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if mark == "," and not depth:
            parts.append("")
        else:
            parts[-1] += mark
    return parts


def _is_config(hint: Any) -> bool:
    """Whether only an object of the registry's own kind fits."""
    plain = (int, float, bool, str, NoneType)
    return all(isinstance(choice, type) and choice not in plain for choice in _choices(hint))


def word(text: str) -> Any:
    """What a setting in an id stands for: a number, true, false, none, or a word; in parentheses, always a word."""
    if text.startswith("(") and text.endswith(")"):
        return text[1:-1]
    words = {"true": True, "false": False, "none": None}
    return words[text] if text in words else number(text)


def number(text: str) -> int | float | str:
    """The number that a word stands for, or the word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a word of an id is of the annotated kind."""
    for choice in _choices(hint):
        if choice is Any or (get_origin(choice) is Literal and value in get_args(choice)):
            return True
        if choice is NoneType and value is None:
            return True
        if choice is float and type(value) in (int, float) and math.isfinite(value):
            return True
        if choice in (int, bool, str) and type(value) is choice:
            return True
    return False


def _spell(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "none", str: "a word"}
    words = [names.get(c) or " or ".join(map(str, get_args(c))) for c in _choices(hint)]
    return " or ".join(words)
