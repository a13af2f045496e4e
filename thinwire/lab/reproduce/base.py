"""Reproduction: a published comparison, run again: what the paper says, what was measured, and what holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

from thinwire.core.registry import suggest
from thinwire.lab import records
from thinwire.lab.records import Row

Say: TypeAlias = Callable[[int, int, str], None]
"""How many runs are done, how many are known of, and which was done last."""


@dataclass(frozen=True)
class Settings:
    """What a reader may change. None stands for the reproduction's own choice."""

    task: str = "digits"
    split: str = "iid"
    epochs: int | None = None
    seeds: int | None = None
    methods: tuple[str, ...] = ()  # all, if empty
    data: Path | None = None
    jobs: int = 1


@dataclass(frozen=True)
class Trend:
    """One published statement beside what was measured; `holds` is None where nothing was measured."""

    place: str  # task and split
    claim: str
    published: str
    measured: str
    holds: bool | None


class Reproduction(ABC):
    """Base of the reproductions. A row is a run, with at least `task` and `split`."""

    name: ClassVar[str]
    paper: ClassVar[str]
    claims: ClassVar[str]
    """What the paper says, in one sentence."""
    columns: ClassVar[dict[str, str]]
    """Fields of a summary and their formats, for the terminal."""
    sections: ClassVar[tuple[str, ...]]
    """The sections of `page`: a page in docs/papers marks the place of each as `<!-- table: NAME-SECTION -->`."""

    @abstractmethod
    def check(self, settings: Settings) -> Settings:
        """Refuse settings that cannot run, before any work; returns the settings with every choice made."""

    @abstractmethod
    def run(self, settings: Settings, say: Say) -> list[Row]:
        """One row per run."""

    @abstractmethod
    def summary(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of the terminal's table: means over seeds."""

    @abstractmethod
    def trends(self, rows: Sequence[Row]) -> list[Trend]:
        """Which published statements hold in these rows."""

    @abstractmethod
    def plot(self, rows: Sequence[Row], path: Path) -> None:
        """Draw the rows."""

    @abstractmethod
    def page(self, rows: Sequence[Row]) -> dict[str, str]:
        """Every section in Markdown, from recorded rows, each with its machine."""


def check_methods(wanted: Iterable[str], known: Collection[str]) -> None:
    """Refuse a method that the reproduction does not have."""
    for name in wanted:
        if name not in known:
            raise ValueError(f"unknown method '{name}'{suggest(name, known)}")


def keep(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows to a CSV file; rows of other tasks and splits in that file stay, with their own machine."""
    mine = {(row.get("task"), row.get("split")) for row in rows}
    old = records.load(path) if path.exists() else []
    others = [row for row in old if (row.get("task"), row.get("split")) not in mine]
    records.save(path, [*others, *rows])
