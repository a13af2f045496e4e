"""The lane: order and bounds, with drivers that do nothing."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from thinwire.comm.processes import Processes
from thinwire.engine.lane import Lane


def lane(slots: int) -> Lane:
    return Lane([cast(Processes, number) for number in range(slots)], lambda error, number: error)


def test_each_slot_works_in_launch_order_whatever_takes_longest() -> None:
    done: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def work(number: int) -> Any:
        def run(driver: Any) -> int:
            time.sleep(0.02 if number % 4 == 0 else 0.0)
            done[driver].append(number)
            return number

        return run

    three = lane(3)
    futures = [three.launch(work(number)) for number in range(12)]
    assert [future.result() for future in futures] == list(range(12))
    assert done == {0: [0, 3, 6, 9], 1: [1, 4, 7, 10], 2: [2, 5, 8, 11]}
    three.close()


def test_no_more_is_open_than_there_are_slots() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def run(driver: Any) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1

    two = lane(2)
    for future in [two.launch(run) for _ in range(10)]:
        future.result()
    assert most == 2
    two.close()


def test_an_error_is_explained_and_the_slot_goes_on() -> None:
    explained = Lane([cast(Processes, 0)], lambda error, number: RuntimeError(f"because of {error}"))

    def broken(driver: Any) -> None:
        raise ValueError("this")

    failed, fine = explained.launch(broken), explained.launch(lambda driver: 7)
    with pytest.raises(RuntimeError, match="because of this"):
        failed.result()
    assert fine.result() == 7
    explained.close()


def test_small_work_that_follows_closely_is_handed_over_together_in_its_slots_and_order() -> None:
    now: list[float] = [0.0]
    done: list[tuple[Any, int]] = []
    two = Lane([cast(Processes, number) for number in range(2)], lambda error, number: error, now=lambda: now[0])

    def small(number: int) -> Any:
        return two.launch(lambda driver: done.append((driver, number)), 1000)

    small(0).result()  # the first is not kept
    kept = [small(number) for number in range(1, 5)]
    assert two.launched() == 1  # a rank that leaves now has not sent the others
    assert not any(piece.ended(0.05) for piece in kept)
    two.hand_over()
    for piece in kept:
        piece.result()
    assert [one for one in done if one[0] == 0] == [(0, 0), (0, 2), (0, 4)]
    assert [one for one in done if one[0] == 1] == [(1, 1), (1, 3)]

    small(5).result()
    late = small(6)
    now[0] += 1.0
    small(7).result()  # a moment later small work goes at once, and takes along what was kept
    late.result()
    heavy = [two.launch(lambda driver: None, 40_000) for _ in range(2)]
    for piece in heavy:
        piece.result()  # together they weigh enough
    last = small(8)
    two.launch(lambda driver: None).result()  # work without a weight keeps nothing back
    last.result()
    two.close()
