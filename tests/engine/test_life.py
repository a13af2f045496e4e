"""Life: which events a schedule hears of, what it awaits beside them, and how it starts anew."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from thinwire.engine.events import BackwardEnds, Ends, Event, Next, StepBegins, StepEnds
from thinwire.engine.life import Life


class Ask:
    """Something to await that is no event."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


def drive(coroutine: Coroutine[Any, Any, None], answers: dict[str, Any] | None = None) -> list[str]:
    """Run to the end; what was asked on the way. An exception among the answers is thrown in."""
    asked: list[str] = []
    answer: Any = None
    while True:
        try:
            failed = isinstance(answer, Exception)
            request = coroutine.throw(answer) if failed else coroutine.send(answer)
        except StopIteration:
            return asked
        asked.append(request.what)
        answer = (answers or {}).get(request.what)


def test_only_what_is_waited_for_is_heard() -> None:
    heard: list[Event] = []

    async def run() -> None:
        heard.append(await Next((StepBegins,)))
        heard.append(await Next((StepEnds, Ends)))

    life = Life(run)
    for event in (BackwardEnds(), StepEnds(), StepBegins(), StepBegins(), BackwardEnds(), Ends(), Ends()):
        drive(life.happen(event))
    assert heard == [StepBegins(), Ends()]


def test_what_else_is_awaited_goes_to_whoever_told_of_the_event() -> None:
    got: list[Any] = []

    async def run() -> None:
        got.append(await Ask("at the start"))
        await Next((StepBegins,))
        got.append(await Ask("a result"))
        await Next((StepEnds,))

    life = Life(run)
    assert drive(life.start(), {"at the start": 1}) == ["at the start"]
    assert drive(life.start()) == []  # it has been started
    assert drive(life.happen(StepBegins()), {"a result": 2}) == ["a result"]
    assert got == [1, 2]


def test_after_an_error_it_starts_anew_from_what_was_kept() -> None:
    kept = {"steps": 0}

    async def run() -> None:
        while True:
            await Next((StepBegins,))
            await Ask("the others")
            kept["steps"] += 1

    life = Life(run)
    drive(life.happen(StepBegins()))
    with pytest.raises(ConnectionError):
        drive(life.happen(StepBegins()), {"the others": ConnectionError()})
    drive(life.happen(StepBegins()))
    assert kept["steps"] == 2


def test_an_error_may_be_caught_by_the_schedule() -> None:
    told: list[str] = []

    async def run() -> None:
        while True:
            await Next((StepBegins,))
            try:
                await Ask("the others")
            except ConnectionError:
                told.append("gone")

    life = Life(run)
    drive(life.happen(StepBegins()), {"the others": ConnectionError()})
    drive(life.happen(StepBegins()))
    assert told == ["gone"]


def test_again_forgets_where_it_was() -> None:
    begun: list[int] = []

    async def run() -> None:
        begun.append(1)
        await Next((StepBegins,))
        await Next((StepEnds,))

    life = Life(run)
    drive(life.happen(StepBegins()))
    life.again()
    drive(life.happen(StepBegins()))
    assert len(begun) == 2
