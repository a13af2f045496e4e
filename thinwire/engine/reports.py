"""Reports: what ranks have seen when an exchange has failed, and the error that each of them raises because of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, final

from thinwire.core.errors import PeerError
from thinwire.engine.waiting import named

LONGER = "write a longer timeout where ranks may take that long"


@final
class Names:
    """The numbers by which users know ranks: those of the whole world, also where some of them exchange alone."""

    def __init__(self, ranks: Sequence[int], world: int) -> None:
        self.ranks, self.world = tuple(ranks), world

    def __call__(self, rank: int) -> int:
        return self.ranks[rank]

    def of(self, ranks: Iterable[int]) -> str:
        """Ranks in a sentence."""
        return f"{named([self(rank) for rank in ranks])} of {self.world}"

    def error(self, ranks: Sequence[int], text: str) -> PeerError:
        """A sentence that begins with these ranks."""
        return PeerError(f"{self.of(ranks)} {text}", tuple(self(rank) for rank in ranks))


class Report(NamedTuple):
    """What a rank saw when it raised the alarm."""

    rank: int
    text: str
    broke: bool = False  # whether a connection did, which says nothing about why
    timed_out: bool = False
    late: tuple[int, ...] = ()  # those that were alive, and had not come
    doing: str = ""  # what they did
    seconds: float = 0.0  # the time-out


def first_cause(reports: Sequence[Report]) -> Report | None:
    """The report that tells why the others are there; None if every rank was broken off by another.

    A rank that gives up closes its connections, whatever it waited for.
    """
    late = next((report for report in reports if report.late), None)
    own = next((report for report in reports if not report.broke), None)
    return late or own


def error_of(report: Report | None, rank: int, names: Names) -> PeerError:
    """What a rank raises where all ranks answer."""
    if report is None:
        return PeerError("the exchange failed on another rank")
    if rank in report.late:
        text = f"the other ranks have waited for this one, {names.of([rank])}, for {report.seconds:g} s"
        return PeerError(f"{text}, and have given up: {LONGER}", (names(rank),))
    if report.late:
        text = f"did not come to an exchange within {report.seconds:g} s: {report.doing}. {LONGER.capitalize()}"
        return names.error(report.late, text)
    if report.timed_out:
        text = f"an exchange timed out on {names.of([report.rank])}: it was not complete after "
        text += f"{report.seconds:g} s, though all ranks answer and none is late. The network is slower than that"
        return PeerError(f"{text}, or lost between some of them; {LONGER} ({report.text})")
    return PeerError(f"the exchange failed on rank {names(report.rank)}: {report.text}")


def unreachable(names: Names, lost: Mapping[int, float]) -> PeerError:
    """What a rank raises where the machines of others have not been reached for so many seconds."""
    machines = "its machine has" if len(lost) == 1 else "their machines have"
    text = f"cannot be reached: {machines} not answered for {max(lost.values()):.0f} s"
    return names.error(sorted(lost), f"{text}; this exchange cannot be finished")
