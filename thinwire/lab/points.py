"""Points: how far a run has come, at each of its tests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Points:
    """Steps, seconds and bytes so far, and the mean loss since the last point."""

    step: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bytes_sent: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    def add(self, steps: int, seconds: float, sent: float, loss: float) -> None:
        """Add a stretch of `steps` that took `seconds`."""
        for total, part in ((self.step, steps), (self.seconds, seconds), (self.bytes_sent, sent)):
            total.append((total[-1] if total else 0.0) + part)
        self.loss.append(loss)
