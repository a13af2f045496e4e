"""One public name as an entry of the reference: its signature and its docstring, for Sphinx's Python domain."""

from __future__ import annotations

import ast
import enum
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from thinwire.lab.site.names import Name, Names
from thinwire.lab.site.prose import markdown

FENCE = "::::"
GIVEN = ("thinwire.Wire", "thinwire.Comm", "thinwire.server.Book")
"""Classes that nobody constructs but thinwire: their signatures are not shown."""


def entry(name: Name, names: Names, *, told: set[str] | None = None) -> str:
    """The whole entry. `told` are modules whose docstrings stand above already; this one's is added to it."""
    value = name.value
    if isinstance(value, type):
        return _class(name, value, names, told if told is not None else set())
    if callable(value):
        return _directive("function", f"{name.path}{signature(value, names)}", _doc(value, names))
    return _directive("data", name.path, _documented_value(value, names))


def signature(value: Callable[..., Any], names: Names, *, bound: bool = False) -> str:
    """As it is written: types by their public names, defaults as they print.

    >>> def f(a: int, *, b: str | None = None) -> list[int]: ...
    >>> signature(f, Names())
    '(a: int, *, b: str | None = None) -> list[int]'
    """
    taken = _taken(value)
    if taken is None:
        return "(...)"
    parts, keyword_only = [], False
    for i, (name, one) in enumerate(taken.parameters.items()):
        if bound and i == 0 and name in ("self", "cls"):
            continue
        if one.kind is one.VAR_POSITIONAL:
            keyword_only = True
        elif one.kind is one.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        parts.append(_parameter(one, names))
    back = "" if taken.return_annotation is taken.empty else f" -> {_type(taken.return_annotation, names)}"
    return f"({', '.join(parts)}){back}"


def defaults(value: Callable[..., Any]) -> dict[str, str]:
    """Every parameter with its default as text, '' where it has none."""
    taken = _taken(value)
    return {name: _default(one) for name, one in taken.parameters.items()} if taken else {}


def summary(value: object) -> str:
    """The first sentence of what a name says about itself."""
    first = (inspect.getdoc(value) or "").strip().split("\n\n")[0].replace("\n", " ")
    return first.partition(". ")[0].rstrip(".") + "." if first else ""


def _taken(value: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(value, eval_str=True)
    except NameError:  # a type that is imported for type checkers alone
        return inspect.signature(value)
    except (ValueError, TypeError):
        return None


def _parameter(one: inspect.Parameter, names: Names) -> str:
    stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    typed = "" if one.annotation is one.empty else f": {_type(one.annotation, names)}"
    default = _default(one)
    return f"{stars}{one.name}{typed}{(' = ' if typed else '=') + default if default else ''}"


def _type(annotation: object, names: Names) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return names.typed(text.replace("ForwardRef", "").replace("typing.", "").replace("NoneType", "None"))


def _default(one: inspect.Parameter) -> str:
    """How the default prints, where that can be written; otherwise dots."""
    if one.default is one.empty:
        return ""
    text = str(one.default) if isinstance(one.default, enum.Enum) else repr(one.default)
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return "..."
    return text


def _doc(value: object, names: Names, extra: str = "") -> str:
    doc = "\n\n".join(filter(None, (extra, inspect.getdoc(value) or "")))
    taken = defaults(value) if callable(value) else {}
    return markdown(doc, taken, names.link)


def _documented_value(value: object, names: Names) -> str:
    return markdown(f"{type(value).__name__}. {inspect.getdoc(type(value)) or ''}", {}, names.link)


def _class(name: Name, value: type, names: Names, told: set[str]) -> str:
    kind = "exception" if issubclass(value, BaseException) else "class"
    hidden = kind == "exception" or issubclass(value, enum.Enum) or name.path in GIVEN
    taken = "" if hidden else _without_return(value, names)
    module = value.__module__
    above = inspect.cleandoc(sys.modules[module].__doc__ or "") if module not in told else ""
    own = value.__doc__ or ""
    parts = [markdown(inspect.cleandoc(own), defaults(value), names.link)]
    if above and _one_idea(value):
        parts.insert(0, markdown(above, defaults(value), names.link))
        told.add(module)
    bases = [names.home[id(base)] for base in value.__bases__ if id(base) in names.home]
    if bases:
        parts.append("Base: " + ", ".join(f"[`{base.rpartition('.')[2]}`](#{base})" for base in bases) + ".")
    parts += [_member(member, thing, names) for member, thing in _members(value)]
    return _directive(kind, f"{name.path}{taken}", "\n\n".join(parts), deeper=True)


def _without_return(value: type, names: Names) -> str:
    return signature(value, names).partition(" -> ")[0]


def _one_idea(value: type) -> bool:
    """Whether the file of a class is about it: those of the axes are, and say what is sent and by which paper."""
    return not value.__module__.startswith(("thinwire.core", "thinwire.engine", "thinwire.comm", "thinwire.sim"))


def _members(value: type) -> Iterator[tuple[str, object]]:
    """Public members that the class brings: what a base has is documented there."""
    inherited = {m for base in value.__mro__[1:] if base.__module__.startswith("thinwire") for m in vars(base)}
    if issubclass(value, enum.Enum):
        yield from ((member.name, member) for member in value)
        return
    for name, thing in vars(value).items():
        if not name.startswith("_") and name not in inherited and _is_member(thing):
            yield name, thing


def _is_member(thing: object) -> bool:
    return inspect.isfunction(thing) or isinstance(thing, property | cached_property | staticmethod | classmethod)


def _member(name: str, thing: object, names: Names) -> str:
    if isinstance(thing, enum.Enum):
        return _directive("attribute", name, f"`{thing.value!r}`")
    if isinstance(thing, property | cached_property):
        get = thing.fget if isinstance(thing, property) else thing.func
        taken = _taken(get) if get else None
        back = taken.return_annotation if taken else inspect.Signature.empty
        option = "" if back is inspect.Signature.empty else f":type: {_type(back, names)}\n\n"
        return _directive("property", name, option + markdown(inspect.getdoc(thing) or "", {}, names.link))
    call = thing.__func__ if isinstance(thing, staticmethod | classmethod) else thing
    assert callable(call)
    kind = {staticmethod: "staticmethod", classmethod: "classmethod"}.get(type(thing), "method")
    text = f"{name}{signature(call, names, bound=kind != 'staticmethod')}"
    return _directive(kind, text, _doc(call, names))


def _directive(kind: str, head: str, body: str, *, deeper: bool = False) -> str:
    fence = FENCE + ":" if deeper else FENCE
    return f"{fence}{{py:{kind}}} {head}\n{body if body.startswith(':type:') else chr(10) + body}\n{fence}"
