"""Ranks that ask each other what they do, without an exchange: strangers, and processes that hang or have ended."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import cast

import pytest

from thinwire.comm.address import break_off
from thinwire.engine import liveness, waiting
from thinwire.engine.liveness import Liveness, Peer, Place
from thinwire.engine.waiting import Waiting, Whereabouts, place_of


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "AGAIN", 0.05)
    monkeypatch.setattr(liveness, "SILENT", 0.1)


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """What the kernel does for a process that is stopped: it accepts connections, and nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def quiet(lost: dict[int, float]) -> None:
    raise AssertionError(lost)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_rank_that_answers_hangs_or_has_ended_is_told_apart(deaf: socket.socket) -> None:
    one = Liveness(lambda: {"work": 1}, quiet)
    two = Liveness(lambda: {"work": 2}, quiet)
    stopped = json.dumps(Place(socket.AF_INET, "127.0.0.1", deaf.getsockname()[1], "00"))
    one.introduce({1: two.place(), 2: stopped, 3: json.dumps(None)})
    assert sorted(one.peers) == [1, 2]
    until(lambda: one.peers[1].met)  # each is asked once
    one.ask(on=True)
    until(lambda: one.peers[2].silent)
    assert one.peers[1].status == {"work": 2}
    assert not one.peers[2].met
    two.close()
    until(lambda: one.peers[1].refused)
    assert one.away() == {}
    one.close()


def test_whoever_does_not_know_the_token_learns_nothing() -> None:
    one = Liveness(lambda: {"work": 1}, quiet)
    place = Place(*json.loads(one.place()))
    for word in (b"0" * len(place.token), b"", place.token.encode()[:5], b"\xff" * 10_000):
        with socket.create_connection((place.host, place.port)) as line:
            line.settimeout(20)
            try:
                line.sendall(word)
                line.shutdown(socket.SHUT_WR)
                assert line.recv(100) == b""
            except OSError:
                continue  # it has closed the connection, and had not read everything
    with socket.create_connection((place.host, place.port)) as line:
        line.sendall(place.token.encode())
        assert json.loads(line.recv(100)) == {"work": 1}
    one.close()


def test_all_that_fell_away_together_are_lost_once_one_is() -> None:
    told: list[list[int]] = []
    one = Liveness(dict, lambda lost: told.append(sorted(lost)))
    now, place = time.monotonic(), Place(socket.AF_INET, "127.0.0.1", 1, "")
    ages = {1: 21.0, 2: 19.0, 3: 2.0, 4: 30.0}
    one.peers = {rank: Peer(place, met=rank != 4, unreachable=now - age) for rank, age in ages.items()}
    one._look_for_lost()
    one._look_for_lost()
    assert told == [[1, 2], [1, 2]] or told == [[1, 2]]
    one.close()


def test_connections_to_an_address_are_ended(deaf: socket.socket) -> None:
    with socket.create_connection(deaf.getsockname(), source_address=("127.0.0.9", 0)) as line:
        theirs, _ = deaf.accept()
        with theirs:
            assert break_off({"127.0.0.9"}) == 1
            assert line.recv(1) == b""


class Others:
    """What `Waiting` sees of the others."""

    def __init__(self, **statuses: tuple[int, bool]) -> None:
        place = Place(socket.AF_INET, "", 0, "")
        self.peers = {
            int(rank[1:]): Peer(place, True, {"work": work, "waits": waits, "rounds": 3, "at": "at a.py:1"}, 100.0)
            for rank, (work, waits) in statuses.items()
        }

    def ask(self, *, on: bool) -> None:
        """Nobody is asked."""


def waits(rank: int, others: Others) -> Waiting:
    return Waiting(rank, Whereabouts(int), cast(Liveness, others), lambda rank: 10 + rank, lambda: 101.0)


def test_those_are_late_who_have_launched_less_and_wait_for_nobody() -> None:
    near = Others(r1=(4, True), r2=(3, False), r3=(6, True))
    assert waits(0, near).late(5) == [2]  # and not rank 1, who waits for rank 2
    assert waits(0, Others(r1=(4, True), r2=(3, True))).late(5) == [2]
    assert waits(0, Others(r1=(6, True), r2=(7, False))).late(5) == []
    near.peers[3].silent = 99.0
    text = waits(0, near).describe([2, 3])
    assert text.startswith("rank 12 was last seen at a.py:1, after 3 rounds; rank 13 does not answer, though")


def test_the_first_of_those_who_wait_says_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting.log, "warning", lambda text, *words: said.append(text % words))
    now = [0.0]
    others = Others(r1=(2, False), r2=(5, True))
    for peer in others.peers.values():
        peer.answered = 1e9
    for rank in (0, 3):
        waits = Waiting(rank, Whereabouts(int), cast(Liveness, others), lambda rank: rank, lambda: now[0])
        now[0] = 0.0
        with waits.piece(4) as look:
            for second in range(200):
                now[0] = float(second)
                look()
    assert [text.split(": ")[0] for text in said[:4]] == [
        f"still waiting for rank 1, {seconds} s" for seconds in (5, 10, 20, 40)
    ]
    assert len(said) == 6  # then once a minute, and rank 3 says nothing
    assert said[0].endswith("s: it was last seen at a.py:1, after 3 rounds")


def test_where_a_program_is() -> None:
    frames: list[FrameType] = []

    class Watched(dict[str, int]):
        def __missing__(self, key: str) -> int:
            frames.append(sys._getframe())
            return 0

    Watched()["x"]
    assert place_of(frames[0]).startswith("at test_liveness.py:")
    assert place_of(frames[0]).endswith(", in __missing__")
    json.dumps({"x": 1}, default=frames.append, cls=Looking)
    assert place_of(Looking.seen).startswith("in dumps, called at test_liveness.py:")


class Looking(json.JSONEncoder):
    """Notes the frame of the library that calls it."""

    seen: FrameType

    def encode(self, o: object) -> str:
        """As JSON."""
        caller = sys._getframe().f_back
        assert caller is not None
        Looking.seen = caller
        return ""
