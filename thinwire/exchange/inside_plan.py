"""InsidePlan: what the units of an FSDP2 model send inside their shard groups, and what their residuals cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from thinwire.core.types import Layout
from thinwire.memory.kept import KINDS

if TYPE_CHECKING:
    from thinwire.exchange.reduce_scatter import ReduceScatter


@final
@dataclass(frozen=True)
class UnitPlan:
    """A unit: the padded elements per owner of its parameters, and how many owners there are."""

    name: str
    sizes: tuple[int, ...]
    ranks: int

    def sends(self, how: ReduceScatter) -> int:
        """Bytes per rank and step, when all its parameters have gradients."""
        return (self.ranks - 1) * how.nbytes(Layout.flat(sum(self.sizes))) if self.ranks > 1 else 0

    def plain(self) -> int:
        """The same in float32, by an all-to-all or a ring."""
        return 4 * (self.ranks - 1) * sum(self.sizes)

    def keeps(self, residual: str) -> int:
        """Bytes per rank of the residuals of one kind."""
        kind = KINDS.get(residual)
        return 0 if kind is None else kind.cost(self.sizes, self.ranks - 1)


@final
@dataclass(frozen=True)
class InsidePlan:
    """Prints as a table. All figures are bytes per rank."""

    how: ReduceScatter
    units: tuple[UnitPlan, ...]

    def memory(self) -> Mapping[str, int]:
        """Bytes per rank that every kind of residual costs, and beside them those of the sharded gradient."""
        gradient = 4 * sum(sum(unit.sizes) for unit in self.units)
        costs = {kind: sum(unit.keeps(kind) for unit in self.units) for kind in ("none", *KINDS)}
        return {**costs, "sharded gradient": gradient}

    def __str__(self) -> str:
        names = [unit.name or "(the model)" for unit in self.units]
        width = max(len("unit"), *map(len, names))
        lines = [
            f"inside the shard groups: {self.how.id}",
            f"{'unit':<{width}}  {'ranks':>5}  {'elements':>14}  {'sends':>14}  {'in float32':>14}",
        ]
        for name, unit in zip(names, self.units, strict=True):
            elements = unit.ranks * sum(unit.sizes)
            lines.append(
                f"{name:<{width}}  {unit.ranks:>5}  {elements:>14,}  {unit.sends(self.how):>14,}  {unit.plain():>14,}"
            )
        lines.append("residuals, bytes per rank:")
        memory = self.memory()
        for kind in ("none", *KINDS):
            chosen = "  <- this one" if kind == self.how.residual else ""
            lines.append(f"  {kind:<8}  {memory[kind]:>14,}{chosen}")
        lines.append(f"  (the sharded gradient in float32 takes {memory['sharded gradient']:,})")
        return "\n".join(lines)
