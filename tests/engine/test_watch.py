"""The watch: whom an error names when several ranks are gone."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from thinwire.comm.processes import EdgeError
from thinwire.core.errors import PeerError
from thinwire.engine import watch
from thinwire.engine.reports import Names
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


def test_of_several_that_left_the_others_left_because_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ROLL", 0.3)
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


def test_of_several_reports_the_one_that_tells_why_is_chosen(three: list[Watch]) -> None:
    """Rank 0 lost its connection because rank 1 gave up, and reported that sooner."""
    error = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    reports = [threading.Thread(target=three[0].explain, args=(error,))]
    reports[0].start()
    told = three[1].explain(ZeroDivisionError("division by zero"))
    reports[0].join()
    for one in three[:2]:
        assert str(one.verdict()).startswith("rank 2 of 3 has stopped answering")
        one.stop()
    assert told.ranks == (2,)
    store = dist.HashStore()
    both = [Watch(lambda ended: store, rank, 2, Names((4, 6), 8)) for rank in range(2)]
    first = threading.Thread(target=both[0].explain, args=(error,))
    first.start()
    both[1].explain(RuntimeError("Timed out waiting 600000ms for recv operation to complete"))
    first.join()
    for one in both:
        assert str(one.verdict()).startswith("an exchange timed out on rank 6 of 8: it was not complete")
        one.stop()


def test_ranks_are_named_as_in_the_whole_world() -> None:
    names = Names((1, 3, 5), 6)
    error = names.error([0, 2], "have stopped answering")
    assert (str(error), error.ranks) == ("ranks 1, 5 of 6 have stopped answering", (1, 5))


def test_a_rank_that_left_because_it_missed_another_is_not_named(three: list[Watch]) -> None:
    """As in attach, where the first that gives up leaves at once."""
    three[1].explain(PeerError("rank 2 of 3 has stopped answering while ranks meet", (2,)))
    left(three[1], 0, "it failed in attach")
    three[0].look_out(9)
    assert three[0].alarmed.wait(5)
    assert three[0].verdict().ranks == (2,)
    three[0].stop()
