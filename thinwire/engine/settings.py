"""Settings: the arguments of `attach` and `ddp_hook` that are not part of the method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from thinwire.engine.skipping import OnNonfinite


@final
@dataclass(frozen=True)
class Settings:
    """See `thinwire.attach`."""

    min_size: int | None = None
    exclude: tuple[str, ...] = ()
    seed: int = 0
    timeout: float = 600.0
    drop_dead: bool = False
    on_nonfinite: OnNonfinite = "skip"
