"""Every public name: where it is documented, and what it is called elsewhere.

A name may be reached in several ways (`thinwire.Sync`, `thinwire.sync.Sync`). It is documented once, where the path
is shortest; types in signatures are written by that path, so that they become links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType

import thinwire


@dataclass(frozen=True)
class Name:
    """A public name with what it stands for."""

    path: str
    value: object

    @property
    def short(self) -> str:
        return self.path.rpartition(".")[2]


def namespaces() -> Iterator[tuple[str, ModuleType]]:
    """thinwire itself, then every module among its public names."""
    yield "thinwire", thinwire
    for name in sorted(thinwire.__all__):
        value = getattr(thinwire, name)
        if isinstance(value, ModuleType):
            yield f"thinwire.{name}", value


def public(path: str, module: ModuleType) -> list[Name]:
    """The names of a namespace, without the namespaces in it."""
    found = [Name(f"{path}.{name}", getattr(module, name)) for name in sorted(module.__all__)]
    return [name for name in found if not isinstance(name.value, ModuleType)]


@dataclass(frozen=True)
class Names:
    """All of them; `home` has the path under which a value is documented."""

    spaces: dict[str, list[Name]] = field(default_factory=lambda: {path: public(path, m) for path, m in namespaces()})

    @cached_property
    def home(self) -> dict[int, str]:
        """Paths by the identity of the value; spaces are sorted, and thinwire itself is first."""
        found: dict[int, str] = {}
        for names in self.spaces.values():
            for name in names:
                found.setdefault(id(name.value), name.path)
        return found

    @cached_property
    def paths(self) -> dict[str, str]:
        """Every public path, with the one under which it is documented."""
        return {name.path: self.home[id(name.value)] for names in self.spaces.values() for name in names}

    @cached_property
    def by_origin(self) -> dict[str, str]:
        """Paths by the place where a class or function is defined, which is what annotations say."""
        out: dict[str, str] = {}
        for names in self.spaces.values():
            for name in names:
                origin = f"{getattr(name.value, '__module__', '')}.{getattr(name.value, '__qualname__', '')}"
                out.setdefault(origin, self.home[id(name.value)])
        return out

    @cached_property
    def by_short(self) -> dict[str, str]:
        """Paths by the last part of the name, where only one thing has it."""
        found: dict[str, set[str]] = {}
        for names in self.spaces.values():
            for name in names:
                found.setdefault(name.short, set()).add(self.home[id(name.value)])
        return {short: min(paths) for short, paths in found.items() if len(paths) == 1}

    def typed(self, annotation: str) -> str:
        """An annotation with the public paths of our classes, and without the modules of all others.

        >>> Names().typed("thinwire.core.channel.Channel | None")
        'thinwire.Channel | None'
        >>> Names().typed("Sequence[Channel]"), Names().typed("torch.nn.modules.module.Module")
        ('Sequence[thinwire.Channel]', 'Module')
        """

        def publish(found: re.Match[str]) -> str:
            text = found[0]
            if text in self.by_origin:
                return self.by_origin[text]
            last = text.rpartition(".")[2]
            return self.by_short.get(last, last) if last[:1].isupper() else last

        return re.sub(r"(?<!['\"\w-])[A-Za-z_][\w.]*(?!['\"\w-])", publish, annotation)

    def link(self, code: str) -> str | None:
        """Where code in a docstring leads, if it is a class of ours or a whole path.

        >>> Names().link("ErrorFeedback()"), Names().link("tw.methods.qsgd(bits=4)"), Names().link("bits")
        ('thinwire.memory.ErrorFeedback', 'thinwire.methods.qsgd', None)
        """
        name = code.partition("(")[0]
        if name.startswith(("tw.", "thinwire.")):
            path = f"thinwire.{name.partition('.')[2]}"
            return self.paths.get(path)
        return self.by_short.get(name) if name[:1].isupper() else None
