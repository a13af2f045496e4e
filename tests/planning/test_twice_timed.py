"""What a codec takes lies between two timings: among all ranks in one thread, and by itself in the engine's lanes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thinwire as tw
from thinwire.engine.plan import Item, plan_of
from thinwire.planning import profile
from thinwire.planning.computing import Computing
from thinwire.planning.link import Sockets
from thinwire.planning.playback import Played
from thinwire.planning.profile import Profile
from thinwire.planning.record import Recorded
from thinwire.planning.script import Ask, Script, Work

ITEM = Item("weight", (128, 128), torch.device("cpu"))
METHOD = tw.method("qsgd")
RECORDED = Recorded((Script((Work(0.6), Ask("ring", 1e6), Work(0.4))),))


def measured(monkeypatch: pytest.MonkeyPatch, rounds: list[list[float]]) -> list[float]:
    """Seconds of the pieces of work that took 0.6 and 0.4 s when they were recorded, and these when played."""
    computing = Computing((ITEM,), (0.01,), 0.01, (0.02,))
    one = Profile(computing, {"weight": torch.zeros(ITEM.numel)}, {}, Sockets())
    (parcel,) = plan_of(METHOD, computing.items, None, ()).parcels

    def play(*what: Any, **how: Any) -> Played:
        return Played(rounds, [])

    monkeypatch.setattr(profile, "play", play)
    found = one._again(METHOD, parcel, torch.zeros(ITEM.numel), RECORDED, 2)
    return [part.seconds for script in found.scripts for part in script.parts if isinstance(part, Work)]


@pytest.mark.parametrize(
    ("played", "total"),
    [
        (1.2, 1.1),  # longer: the mean
        (0.8, 0.9),  # shorter: the mean, too
        (3.0, 1.25),  # far longer: something disturbed it, and it counts as 1.5 times the recording
        (0.5, 0.625),  # the recording was disturbed
    ],
)
def test_the_mean_of_both_counts(played: float, total: float, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, decode = measured(monkeypatch, [[0.5 * played, 0.5 * played]] * profile.PLAYED)
    assert encode + decode == pytest.approx(total)
    part = 0.6 if played > 1 else 0.5  # pieces share it as the shorter timing says
    assert encode == pytest.approx(part * total)


def test_a_round_that_goes_another_way_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, [[0.1, 0.1], [0.1]]) == [0.6, 0.4]
    assert measured(monkeypatch, []) == [0.6, 0.4]
