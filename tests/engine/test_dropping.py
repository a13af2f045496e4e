"""Who is left when neighbours are given up, and when that is too few."""

from __future__ import annotations

import socket
import time

import pytest
import torch.distributed as dist

from thinwire.core.errors import PeerError
from thinwire.engine import dropping
from thinwire.engine.dropping import Dropping
from thinwire.engine.liveness import Liveness, Peer, Place
from thinwire.engine.reports import Names
from thinwire.engine.settings import Settings
from thinwire.engine.watch import Watch

RING = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]


def dropped(*peers: int, quorum: int, away: tuple[int, ...] = (), ended: tuple[int, ...] = ()) -> list[str]:
    """What rank 0 of five says, as rank 10 to 14 of the world, when it has given up these neighbours."""
    store = dist.HashStore()
    watch = Watch(lambda stopped: store, 0, 5, Names(range(10, 15), 20), goes_on=True)
    for rank in ended:
        other = Watch(lambda stopped: store, rank, 5)
        other.leave("it detached after 3 rounds")
        other.stop()
    watch.liveness = Liveness(dict, lambda lost: None)
    place, now = Place(socket.AF_INET, "127.0.0.1", 1, ""), time.monotonic()
    peers_known = {rank: Peer(place, met=True, answered=now) for rank in range(1, 5)}
    for rank in (*peers, *away):
        peers_known[rank].unreachable = now - 15.0
    for rank in ended:
        peers_known[rank].unreachable, peers_known[rank].refused = None, now - 15.0
    watch.liveness.peers = peers_known
    left = Dropping(watch, RING, quorum, 600.0)
    for peer in peers:
        left.drop(peer, RuntimeError("Connection closed by peer"))
        left.drop(peer, RuntimeError("again"))
    watch.liveness._asking = 0
    try:
        left.check()
    except PeerError as error:
        return [str(error), str(error.ranks)]
    finally:
        watch.stop()
    return []


def test_enough_are_left_while_others_can_be_reached_over_the_graph() -> None:
    assert not dropped(1, quorum=4)
    assert not dropped(quorum=5)
    assert dropped(1, quorum=5) == [
        "rank 10 of 20 is left among ranks 10, 12, 13, 14, and has lost rank 11; at least 5 must be left to go on. "
        "Write quorum=1 where a rank may go on alone",
        "(11,)",
    ]


def test_a_rank_that_was_cut_off_does_not_go_on_alone() -> None:
    assert dropped(1, 4, quorum=2)[0].startswith("rank 10 of 20 is left alone, and has lost ranks 11, 12, 13, 14;")
    assert not dropped(1, 4, quorum=1)


def test_of_two_parts_the_smaller_one_stops() -> None:
    """Rank 0 and rank 4 are cut off from 1, 2 and 3; rank 0 has but one edge that broke."""
    assert dropped(1, quorum=3, away=(2, 3))[1] == "(11, 12, 13)"
    assert not dropped(1, quorum=2, away=(2, 3))


def test_ranks_that_ended_in_good_order_are_not_missed() -> None:
    assert not dropped(1, quorum=4, ended=(2, 3))


def test_who_is_dropped_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(dropping.log, "warning", lambda text, *words: said.append(text % words))
    dropped(1, quorum=2)
    assert said == ["rank 10 has dropped rank 11, and goes on without it: Connection closed by peer"]


def test_a_quorum_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="quorum=0: write how many ranks must be left to go on"):
        Settings(drop_dead=True, quorum=0)
    with pytest.raises(ValueError, match="write drop_dead=True, quorum=3"):
        Settings(quorum=3)
