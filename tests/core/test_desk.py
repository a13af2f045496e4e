"""The desk: one thread at a time, the lowest number next, and nobody sits while it waits."""

from __future__ import annotations

import threading
import time

import pytest

from thinwire.core.desk import Desk, at_desk, away, queue_as

SOON = 5.0  # seconds


def until(fact: object) -> None:
    end = time.monotonic() + SOON
    while not fact():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_lowest_number_is_next() -> None:
    desk, order = Desk(), []

    def take(number: int) -> None:
        desk.sit(number)
        order.append(number)
        desk.stand()

    desk.sit()
    threads = []
    for waiting, number in enumerate((3, 1, 2)):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        until(lambda waiting=waiting: len(desk._waiting) > waiting)
    desk.stand()
    for thread in threads:
        thread.join(SOON)
    assert order == [1, 2, 3]
    assert not desk._taken


def test_blocks_exclude_each_other_and_may_be_left() -> None:
    inside, left, seen = threading.Event(), threading.Event(), []

    def first() -> None:
        with at_desk(), at_desk():  # the inner block is part of the outer one
            inside.set()
            time.sleep(0.05)
            seen.append("first")
            with away():
                assert left.wait(SOON)
            seen.append("first again")

    def second() -> None:
        queue_as(1)
        assert inside.wait(SOON)
        with at_desk():
            seen.append("second")
            left.set()
            time.sleep(0.05)
            seen.append("second still")

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert seen == ["first", "second", "second still", "first again"]


def test_an_error_leaves_the_desk_free() -> None:
    with pytest.raises(RuntimeError, match="inside"), at_desk(), away():
        raise RuntimeError("inside")

    def sits() -> None:
        with at_desk():
            pass

    other = threading.Thread(target=sits)
    other.start()
    other.join(SOON)
    assert not other.is_alive()
