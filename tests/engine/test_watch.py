"""The watch: whom an error names when several ranks are gone."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from thinwire.comm.processes import EdgeError
from thinwire.core.errors import PeerError
from thinwire.engine import watch
from thinwire.engine.watch import Watch


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    """The watches of three ranks in one process; the one of rank 2 is not heard of any more."""
    monkeypatch.setattr(watch, "ROLL", 0.3)
    store = dist.HashStore()
    made = [Watch(lambda ended: store, rank, 3) for rank in range(3)]
    made[2].stop()
    return made


def left(one: Watch, work: int, why: str) -> None:
    one.launched = lambda: work
    one.leave(why)
    one.stop()


def test_the_first_that_left_is_named(three: list[Watch]) -> None:
    left(three[1], 4, "it detached after 4 rounds")
    with pytest.raises(PeerError, match="rank 1 of 3 does not go on: it detached after 4 rounds"):
        three[0].look_out(5)
    three[0].look_out(3)  # which it took part in
    three[0].stop()


def test_of_several_that_left_the_others_left_because_of_the_first() -> None:
    store = dist.HashStore()
    ranks = [Watch(lambda ended: store, rank, 3) for rank in range(3)]
    left(ranks[1], 5, "it raised PeerError: rank 2 does not go on")
    left(ranks[2], 4, "it raised ZeroDivisionError")
    with pytest.raises(PeerError, match="rank 2 of 3 does not go on: it raised ZeroDivisionError"):
        ranks[0].look_out(9)
    told = ranks[0].explain(EdgeError("the edge 0-1 broke", (1,)))
    assert told.ranks == (2,)
    ranks[0].stop()


def test_who_says_nothing_is_named_and_not_who_left(three: list[Watch]) -> None:
    left(three[1], 4, "its script has ended")
    told = three[0].explain(EdgeError("the edge 0-1 broke", (1,)))
    assert str(told).startswith("rank 2 of 3 has stopped answering")
    assert told.ranks == (2,)
    three[0].stop()
