"""Replicas that are killed and come back, under torchft's lighthouse. Nobody waits for ever, and bits are equal."""

from __future__ import annotations

from itertools import pairwise

import pytest
from falls import falls

import thinwire as tw
from thinwire.exchange import AllGather
from thinwire.lab.fleet import Course, Fleet, Report, unequal
from thinwire.memory import ErrorFeedback
from thinwire.sync import Delta

pytest.importorskip("torchft", reason="torchft is not installed: write pip install 'thinwire[torchft]'")
METHOD = tw.Method(AllGather(tw.Channel(tw.compressors.TopK(0.05), ErrorFeedback())), tw.Sync(of=Delta(), every=4))
PATIENCE = 60.0  # seconds for some rounds on a machine that is busy


def lives(reports: list[Report]) -> dict[tuple[int, int], list[Report]]:
    found: dict[tuple[int, int], list[Report]] = {}
    for one in reports:
        found.setdefault((one.replica, one.life), []).append(one)
    return found


@pytest.mark.timeout(300)
def test_replicas_are_killed_at_the_worst_moments_and_come_back() -> None:
    with Fleet(Course(METHOD, pause=0.005, prepare=falls), 3, grace=5.0, alive=1.5) as fleet:
        for _ in range(3):
            fleet.gone(2, PATIENCE)
            fleet.start(2)
        fleet.further(2, PATIENCE)
        with fleet.stopped(1):
            fleet.kill(1)
        fleet.further(2, PATIENCE)
        fleet.start(1)
        fleet.further(2, PATIENCE)
        with fleet.stopped(2):  # too slow for the others, who go on without it
            fleet.further(2, PATIENCE, without=[2])
        fleet.further(2, PATIENCE)
        reports = fleet.reports
    assert unequal(reports) == []
    told = lives(reports)
    assert {*told} == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 3)}  # (2, 2) fell before it had a state
    slow = told.pop((2, 3))
    assert slow[0].healed == 1
    assert slow[-1].healed > 1
    for one in told.values():
        for before, after in pairwise(one):
            # A round is missed only by a replica that the others had to do without, and it took over what came of it.
            assert after.rounds == before.rounds + 1 or after.healed > before.healed
    survivor = told[0, 0]
    assert {report.crew for report in survivor} == {2, 3}
    assert sum(one.again for one in (told[0, 0][-1], told[1, 0][-1])) >= 4
    assert told[1, 1][0].healed == 1
    assert max(after.when - before.when for before, after in pairwise(survivor)) < 30
