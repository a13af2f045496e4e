"""Delta: the way that a rank went in some local steps is exchanged as a gradient is, for an outer optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias, final, get_args

from thinwire.core.config import check_choice
from thinwire.core.signals import Signal
from thinwire.sync.merges import Take
from thinwire.sync.outer import Merge, OuterStep, Period
from thinwire.sync.outer_steps import Sgd
from thinwire.sync.periods import Fixed

Share: TypeAlias = Literal["leave", "mean"]


@final
@dataclass(frozen=True)
class Delta(Signal):
    """The pseudo-gradient anchor - x of a round of local steps.

    outer       what the mean pseudo-gradient does to the anchor
    merge       where a rank goes on then
    period      how `every` changes from round to round
    fragments   parts of the model, which take turns: each is exchanged once per period
    delay       local steps between sending the way and using what came of it; it travels meanwhile
    buffers     "mean": BatchNorm's buffers become their mean with every round; "leave": each rank keeps its own
    moments     "mean": so do the moments of the ranks' optimizers; "leave": each rank keeps its own
    on_cpu      the anchor and the moments of the outer step lie in the memory of the host
    """

    name: ClassVar[str] = "delta"
    models: ClassVar[bool] = True
    outer_loop: ClassVar[bool] = True
    outer: OuterStep = field(default_factory=Sgd)
    merge: Merge = field(default_factory=Take)
    period: Period = field(default_factory=Fixed)
    fragments: int = 1
    delay: int = 0
    buffers: Share = "leave"
    moments: Share = "leave"
    on_cpu: bool = False

    def __post_init__(self) -> None:
        if self.fragments < 1 or self.delay < 0:
            raise ValueError(
                f"Delta(fragments={self.fragments}, delay={self.delay}): write fragments >= 1 and delay >= 0"
            )
        for name in ("buffers", "moments"):
            check_choice("Delta", name, getattr(self, name), get_args(Share))
        if self.moments == "mean" and self.delay:
            raise ValueError(f'Delta(moments="mean", delay={self.delay}): moments do not travel ahead; write delay=0')
        if self.fragments > 1 and not isinstance(self.period, Fixed):
            raise ValueError(f"Delta(fragments={self.fragments}) take turns in a fixed period; write period=Fixed()")

    def too_few_rounds(self, steps: int, every: int) -> str:
        """Whether a run ends before the outer momentum has settled; until then it overshoots."""
        wanted = self.outer.momentum_rounds
        if not isinstance(self.period, Fixed) or steps // every >= wanted:
            return ""
        shorter = f", rounds of {steps // wanted}" if steps >= wanted else ""
        return (
            f"{steps} steps are {steps // every} rounds of {every}, and the outer momentum needs about {wanted} "
            f"before it helps; take {wanted * every} steps{shorter}, or a plain mean: local-sgd:every={every}"
        )

    @property
    def parts(self) -> int:
        """The fragments."""
        return self.fragments
