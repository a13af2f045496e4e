"""Configs are values: one id string, one JSON form, `eval(repr(c)) == c`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar, cast

from thinwire.core.registry import Registry, suggest, word

C = TypeVar("C", bound="Config")
TYPES: Registry[Config] = Registry("config", "thinwire.configs")
"""Every config class by its name, to which JSON refers."""
ADDED = ("thinwire.compressors", "thinwire.topologies", "thinwire.methods")
"""Entry points whose packages may define classes of their own."""


class Config:
    """Base of every frozen dataclass that describes a method or a part of one."""

    name: ClassVar[str] = ""
    """The word before the colon in ids, such as 'qsgd'."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Fields by the names that they had in JSON written by earlier versions."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            TYPES.add(cls.__name__, cls)

    @property
    def id(self) -> str:
        """The name and every field that differs from its default: `qsgd:bits=4,norm=l2`; several values: `(1;2)`."""
        fields = [(f, value) for f, value in _fields(self) if f.compare]
        return make_id(self.name, {f.name: (value, _default(f)) for f, value in fields})

    def to_config(self) -> dict[str, Any]:
        """A dict of JSON values, with the class under 'type'."""
        return {"type": type(self).__name__, **{f.name: _plain(value) for f, value in _fields(self)}}

    def to_json(self) -> str:
        """`to_config` as text."""
        return json.dumps(self.to_config())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` described: `tw.Method.from_json(text)`."""
        made = from_json(text)
        if not isinstance(made, cls):
            raise ValueError(f"that is a {type(made).__name__}; write {type(made).__name__}.from_json(text)")
        return made


def make_id(name: str, settings: Mapping[str, tuple[Any, Any]]) -> str:
    """`name:key=value,...` of those settings, each (value, default), that differ from their defaults."""
    parts = [f"{key}={_word(value)}" for key, (value, default) in settings.items() if value != default]
    return name + (":" + ",".join(parts) if parts else "")


def from_config(config: dict[str, Any]) -> Any:
    """The object that `to_config` described."""
    fields = dict(config)
    if "type" not in fields:
        raise ValueError(f"a config names its class under 'type'; got {sorted(fields)}")
    cls = _class(fields.pop("type"))
    renamed = cls.renamed  # type: ignore[attr-defined]
    fields = {renamed.get(key, key): value for key, value in fields.items()}
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in fields:
        if key not in known:
            raise ValueError(f"{cls.__name__} has no field '{key}'{suggest(key, known)}")
    return cls(**{key: _object(value) for key, value in fields.items()})


def from_json(text: str) -> Any:
    """The object that `to_json` described."""
    return from_config(json.loads(text))


def replaced(config: C, old: Config, new: Config) -> C:
    """The same config with `new` wherever `old` stands in it."""
    if config == old:
        return cast("C", new)
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    parts = {name: replaced(value, old, new) for name, value in fields.items() if isinstance(value, Config)}
    return dataclasses.replace(config, **parts)  # type: ignore[type-var]


def check_choice(name: str, field: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a value that is not one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}({field}={value!r}): write {field}={' or '.join(map(repr, choices))}")


def _fields(config: Config) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Its fields and what is in them; a class that JSON could not bring back is refused."""
    cls = type(config)
    made = cls.__dict__.get("__dataclass_params__")  # its own, and not those of a class that it derives from
    if made is None or not made.frozen:
        raise TypeError(f"{cls.__name__} is no frozen dataclass; write @dataclass(frozen=True) above the class")
    if "name" not in cls.__dict__:
        raise TypeError(f'{cls.__name__} has no name of its own; write name: ClassVar[str] = "..." in the class')
    fields = [(f, getattr(config, f.name)) for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for f, value in fields:
        if not _storable(value):
            raise TypeError(
                f"{cls.__name__}({f.name}=...) is a {type(value).__name__}, which JSON would not bring back; "
                "write a number, a word, a config, or a tuple of these"
            )
    return fields


def _storable(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_storable, value))
    return value is None or isinstance(value, bool | Real | str | Config)


def _class(name: str) -> Callable[..., Config]:
    """A class by its name. Where it is not known yet, packages that add names are imported, as far as they can be."""
    if name not in TYPES:
        for point in (point for group in ADDED for point in entry_points(group=group)):
            with suppress(Exception):  # that of another package is none of ours; asked for by its id, it is said
                point.load()
    if name not in TYPES:
        near = suggest(name, TYPES)
        raise ValueError(f"unknown config '{name}'{near}; if a package of your own defines it, import that first")
    return TYPES[name]


def python_number(value: Any) -> Any:
    """A number of NumPy's as Python's, which JSON can hold and an id can show; anything else as it is."""
    if isinstance(value, bool | int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_config()
    value = python_number(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 3 and 3.0 are equal, so they must look equal
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _object(value: Any) -> Any:
    if isinstance(value, dict):
        return from_config(value)
    return tuple(_object(v) for v in value) if isinstance(value, list) else value


def _word(value: Any) -> str:
    if isinstance(value, Config):
        return f"({value.id})"
    if isinstance(value, tuple):
        return f"({';'.join(map(_item, value))})"
    text = str(_plain(value))
    if isinstance(value, str) and (any(mark in text for mark in ",:") or word(text) != text):
        return f"({text})"  # which would be read as something else
    return text.lower() if isinstance(value, bool) or value is None else text


def _item(value: Any) -> str:
    """One of several values; where it is a name and a value, as `name=value`."""
    if isinstance(value, Config):
        return value.id
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return f"{value[0]}={_word(value[1])}"
    return _word(value)
