"""Life: one schedule under way. It is handed events, and what else it awaits goes to whoever handed it the event."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, final

from thinwire.engine.events import Event, Next

Run = Coroutine[Any, Any, None]


@final
class Life:
    """Runs the coroutine that `make` makes, from one `loop.next` to the following one.

    After an error, and after `again`, the schedule starts anew at the next event: what it keeps lies in the loop.
    """

    def __init__(self, make: Callable[[], Run]) -> None:
        self._make = make
        self._run: Run | None = None
        self._kinds: tuple[type[Event], ...] = ()  # the events that it waits for

    async def happen(self, event: Event) -> None:
        """Tell the schedule of an event, if it waits for one of this kind."""
        if self._run is None:
            await self._go(None)
        if type(event) in self._kinds:
            await self._go(event)

    async def start(self) -> None:
        """Run up to the first event, unless that has been done."""
        if self._run is None:
            await self._go(None)

    def again(self) -> None:
        """Start anew at the next event."""
        run, self._run, self._kinds = self._run, None, ()
        if run is not None:
            run.close()

    @coroutine
    def _go(self, answer: Any) -> Generator[Any, Any, None]:
        """Send `answer`, pass on every request that is not for an event, and note the kinds that are waited for.

        None are, when the schedule has ended.
        """
        run = self._run = self._run or self._make()
        self._kinds = ()
        try:
            request = run.send(answer)
            while type(request) is not Next:
                try:
                    answer = yield request
                except BaseException as error:
                    request = run.throw(error)
                else:
                    request = run.send(answer)
            self._kinds = request.kinds
        except StopIteration:
            return
        except BaseException:
            self.again()
            raise
