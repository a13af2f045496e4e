"""What one rank meets when it reads files is told to all, so that none waits for a rank that has given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from thinwire.comm.control import gathered

T = TypeVar("T")


def agreed(work: Callable[[], T]) -> T:
    """The result of `work`; an error in a file or in reading it on one rank is raised on every rank."""
    result, wrong = None, ""
    try:
        result = work()
    except (ValueError, OSError, RuntimeError) as error:
        wrong = str(error) or type(error).__name__
    said = gathered(wrong)
    if any(said):
        rank = next(rank for rank, text in enumerate(said) if text)
        raise ValueError(wrong or f"rank {rank}: {said[rank]}")
    return cast("T", result)


def check_even(batches: float, framework: str, write: str) -> None:
    """Refuse epochs in which ranks have different numbers of batches, where a framework meets in every batch."""
    counts = gathered(batches)
    if len(set(counts)) > 1:
        raise ValueError(
            f"ranks have {', '.join(f'{count:g}' for count in counts)} batches in an epoch, and {framework} itself "
            f"waits for all ranks in every batch; write {write}, or a loop of your own in `with wire.join():`"
        )
