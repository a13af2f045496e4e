"""NCCL's rules on gloo: a backend that does what gloo does, and refuses what NCCL would refuse or hang on.

One GPU cannot host two ranks of NCCL, and most machines have none. What breaks under NCCL mostly breaks a rule:

    a receive names its sender
    what is received has the size and the type of what was sent
    the ranks of a group make the same collective calls in the same order, and no message overtakes one
    two threads do not call on a group at once
    tensors lie where NCCL can read them: here, only what the driver made or brought for the backend does
    types and reductions are those that NCCL has

Every message is preceded by a note of what it is, on a tag of its own, and every sum by an exchange of such notes.

    pretend()      from here on this process takes gloo groups for groups of NCCL
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm import backend
from thinwire.comm.backend import Nccl, Posts

NOTE = 1  # the tag of notes
TYPES = (
    *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
SUMS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.AVG]


class RefusedError(AssertionError):
    """NCCL would fail or hang here."""


class Book:
    """What this process has done on one group."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.sums = 0
        self.sent: defaultdict[int, int] = defaultdict(int)  # messages to each rank
        self.received: defaultdict[int, int] = defaultdict(int)


class Rules(Nccl):
    """Takes the calls that `Nccl` makes; with gloo underneath."""

    name: ClassVar[str] = "gloo"
    books: ClassVar[defaultdict[str, Book]] = defaultdict(Book)  # by group
    made: ClassVar[dict[int, Tensor]] = {}  # by address; kept, so that no other tensor gets one of these
    calls: ClassVar[list[str]] = []

    def device(self, like: Tensor) -> torch.device:
        return torch.device("cpu")

    def holds(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self.made or not x.numel()

    def bring(self, x: Tensor) -> Tensor:
        return self._note_down(x.clone())

    def room(self, n: int, dtype: torch.dtype, like: Tensor) -> Tensor:
        return self._note_down(torch.empty(n, dtype=dtype))

    def all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup) -> None:
        self._check(x)
        if op not in SUMS:
            raise RefusedError(f"NCCL has no {op}")
        with self._on(group, "all_reduce") as book:
            mine = torch.tensor([book.sums, x.numel(), TYPES.index(x.dtype), SUMS.index(op)])
            said = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(said, mine, group)
            if any(not torch.equal(one, mine) for one in said):
                raise RefusedError(
                    f"ranks disagree about a sum (number, elements, type, op): {[s.tolist() for s in said]}"
                )
            book.sums += 1
            dist.all_reduce(x, op, group)

    def at_once(self, incoming: Posts, outgoing: Posts, group: dist.ProcessGroup) -> None:
        for _, x in (*incoming, *outgoing):
            self._check(x)
        with self._on(group, "batch") as book:
            notes = [(peer, x, torch.empty(4, dtype=torch.int64)) for peer, x in incoming]
            works = [dist.irecv(note, peer, group, NOTE) for peer, _, note in notes]
            works += [dist.isend(_note(book, peer, x), peer, group, NOTE) for peer, x in outgoing]
            for work in works:
                assert work is not None
                work.wait()
            for peer, x, note in notes:
                _compare(book, peer, x, note)
            super().at_once(incoming, outgoing, group)

    def send(self, x: Tensor, to: int, group: dist.ProcessGroup) -> None:
        self._check(x)
        with self._on(group, "send") as book:
            dist.send(_note(book, to, x), to, group, NOTE)
            dist.send(x, to, group)

    def post(self, x: Tensor, to: int, group: dist.ProcessGroup) -> dist.Work | None:
        raise RefusedError("a message that nobody waits for keeps NCCL's stream waiting")

    def recv(self, x: Tensor, source: int | None, group: dist.ProcessGroup) -> int:
        self._check(x)
        if source is None:
            raise RefusedError("NCCL cannot receive from anybody")
        with self._on(group, "recv") as book:
            note = torch.empty(4, dtype=torch.int64)
            dist.recv(note, source, group, NOTE)
            _compare(book, source, x, note)
            return dist.recv(x, source, group)

    def _note_down(self, x: Tensor) -> Tensor:
        self.made[x.untyped_storage().data_ptr()] = x
        return x

    def _check(self, x: Tensor) -> None:
        if not self.holds(x):
            raise RefusedError(f"a tensor of shape {tuple(x.shape)} lies where NCCL cannot read it")
        if x.dtype not in TYPES:
            raise RefusedError(f"NCCL has no {x.dtype}")
        if not x.is_contiguous():
            raise RefusedError("NCCL takes contiguous tensors")

    @contextmanager
    def _on(self, group: dist.ProcessGroup, what: str) -> Iterator[Book]:
        book = self.books[group.group_name]
        if not book.busy.acquire(blocking=False):
            raise RefusedError(f"two threads call on the group {group.group_name} at once")
        try:
            self.calls.append(what)
            yield book
        except RuntimeError as error:
            raise RefusedError(f"{what} got no answer: ranks make other calls, or none ({error})") from error
        finally:
            book.busy.release()


def _note(book: Book, peer: int, x: Tensor) -> Tensor:
    book.sent[peer] += 1
    return torch.tensor([book.sums, book.sent[peer], x.numel(), TYPES.index(x.dtype)])


def _compare(book: Book, peer: int, x: Tensor, note: Tensor) -> None:
    book.received[peer] += 1
    expected = [book.sums, book.received[peer], x.numel(), TYPES.index(x.dtype)]
    if note.tolist() != expected:
        raise RefusedError(
            f"rank {peer} sends (sums before it, number, elements, type) {note.tolist()}, not {expected}"
        )


def pretend() -> type[Rules]:
    """Take every group of this process for one of NCCL."""
    backend.BACKENDS["nccl"] = Rules
    backend.name_of = lambda group: "nccl"
    return Rules
