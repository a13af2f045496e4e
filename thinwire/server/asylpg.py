"""AsyLPG: asynchronous SVRG in low precision, for models on their way down and for gradients on their way up.

An epoch begins with the full gradient of all workers' data at a snapshot y of the model, in float32. Then the server
takes `updates` steps, one for each push, and waits for nobody:

    worker    a = grad_B(Q(x)) - grad_B(y),  sends Q(a)          B a batch, x the model some updates ago
    server    u = Q(a) + full gradient at y;    x = prox(x - lr u);    sends Q(x)
              the precision of Q(x) is the lowest with E|Q(x) - x|^2 <= mu |x - y|^2

and the last x is the next snapshot. As x and y meet, both errors vanish, so that x converges to the optimum itself.
The prox is the optimizer's (`thinwire.optim.ProximalSGD`). A push of the epoch before is dropped.

`around=True` sends y + Q(x - y), for which the same few bits are enough to the end.

`accelerated=True`, in epoch number s:

    theta = 2 / (s + 2);    x = theta z + (1 - theta) y,    z = prox(z - (lr / theta) u)
    next y = mean of all x of the epoch

A worker's steps of an epoch: `batches` of them, one gradient each, make its part of the full gradient and push once;
each further one computes two gradients of its batch.

Reference: Yu, Wu, Huang, "Double quantization for communication-efficient distributed optimization", NeurIPS 2019,
arXiv 1805.10111, algorithms 1 and 3. De Sa, Leszczynski, Zhang, et al., "High-accuracy low-precision training", 2018,
arXiv 1803.03383, for quantising around the snapshot.

Departs from the paper: `around`. With `accelerated`, a worker's first gradient of an epoch is at y, where it is, and
not at x = theta z + (1 - theta) y. Pushes on their way when an epoch ends are dropped; the paper does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.slots import SUM
from thinwire.core.types import Key
from thinwire.server.precision import FLOAT, HEAD, WIDEST, pack, unpack, width
from thinwire.server.rule import Push, Rule
from thinwire.server.worker import Work

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import State
    from thinwire.server.book import Book

EPOCH, STAY, MOVE, ROUND = range(4)
"""First number of an answer: a snapshot follows; the model stays; it follows; its way from the snapshot follows."""
HOP = 1  # of the noise of models; that of gradients is 0


@dataclass
class _Epoch:
    number: int = 0
    widest: int = 0  # bits of a model that was sent between snapshots
    updates: int | None = None  # in this epoch; None while the full gradient is made
    asked: dict[int, int] = field(default_factory=dict)  # workers whose next push is a part of it, and of which epoch
    waiting: list[int] = field(default_factory=list)  # workers that have sent theirs
    parts: dict[int, Tensor] = field(default_factory=dict)  # by worker, the last one
    tensors: dict[str, Tensor] = field(default_factory=dict)  # snapshot, full, total (of all x of the epoch)


@final
@dataclass(frozen=True)
class AsyLpg(Rule):
    """`bits` is the lowest precision of a model; None sends float32."""

    name: ClassVar[str] = "asylpg"
    whole: ClassVar[bool] = True
    words: ClassVar[bool] = True
    bits: int | None = 8
    mu: float = 0.1
    batches: int = 1
    updates: int = 100
    around: bool = False
    accelerated: bool = False

    def __post_init__(self) -> None:
        if self.bits is not None and not 2 <= self.bits <= WIDEST:
            raise ValueError(f"AsyLpg(bits={self.bits}): write 2 to {WIDEST}, or None for float32")
        if self.mu <= 0 or self.batches < 1 or self.updates < 1:
            raise ValueError(
                f"AsyLpg(mu={self.mu}, batches={self.batches}, updates={self.updates}): write mu > 0, and 1 or more"
            )

    # The server's half.

    def init(self, workers: int) -> _Epoch:
        """All workers are at the snapshot."""
        return _Epoch(asked=dict.fromkeys(range(workers), 0))

    def arrived(self, push: Push, book: Book) -> None:
        """Take a part of the full gradient, or a difference."""
        epoch: _Epoch = book.state
        part = epoch.asked.pop(push.rank, None)
        if part is not None and part == epoch.number:
            epoch.parts[push.rank] = push.gradient
            book.used += 1
            epoch.waiting.append(push.rank)
            self._full(book)
        elif part is not None or epoch.updates is None:  # of an epoch before
            book.drop(push)
            self._ask(push.rank, book)
        else:
            self._update(push, book)

    def refused(self, push: Push, book: Book) -> None:
        """Let it try again."""
        book.drop(push)
        epoch: _Epoch = book.state
        if push.rank in epoch.asked or epoch.updates is None:
            self._ask(push.rank, book)
        else:
            self._send(push.rank, book)

    def left(self, rank: int, book: Book) -> None:
        """Its last part stands for its data, so that a worker that ends earlier than others does not move them."""
        self._full(book)

    def figures(self, book: Book) -> dict[str, float]:
        """Snapshots so far, and the most bits that a model took between them."""
        return {"snapshots": book.state.number, "model_bits_max": book.state.widest}

    def result(self, book: Book) -> Tensor:
        """What was sent, without loss."""
        return self._model(book)

    def _full(self, book: Book) -> None:
        """Begin with the updates once everybody has sent a part, or take in one of a worker that was paused."""
        epoch: _Epoch = book.state
        if not epoch.waiting or (epoch.updates is None and book.alive - set(epoch.waiting)):
            return
        full = torch.zeros_like(book.x)
        for _, part in sorted(epoch.parts.items()):
            full += part
        snapshot = epoch.tensors.setdefault("snapshot", book.x.clone())
        epoch.tensors["full"] = full / len(epoch.parts)
        if epoch.updates is None:
            epoch.updates, epoch.tensors["total"] = 0, torch.zeros_like(snapshot, dtype=SUM)
        for rank in epoch.waiting:
            book.answer(rank, model=torch.tensor([float(STAY)]))
        epoch.waiting = []

    def _update(self, push: Push, book: Book) -> None:
        epoch: _Epoch = book.state
        assert epoch.updates is not None
        gradient = push.gradient + epoch.tensors["full"]
        book.apply([push], scale=1 / self._theta(epoch), gradient=gradient)
        epoch.updates += 1
        if self.accelerated:
            epoch.tensors["total"] += self._model(book)
        if epoch.updates < self.updates:
            self._send(push.rank, book)
            return
        mean = (epoch.tensors["total"] / self.updates).to(book.x.dtype)
        epoch.tensors["snapshot"] = mean if self.accelerated else book.x.clone()
        epoch.number, epoch.updates = epoch.number + 1, None
        self._ask(push.rank, book)

    def _theta(self, epoch: _Epoch) -> float:
        return 2 / (epoch.number + 2) if self.accelerated else 1.0

    def _model(self, book: Book) -> Tensor:
        """x; the book's tensors hold z."""
        epoch: _Epoch = book.state
        if not self.accelerated or "snapshot" not in epoch.tensors:
            return book.x
        return torch.lerp(epoch.tensors["snapshot"], book.x, self._theta(epoch))

    def _ask(self, rank: int, book: Book) -> None:
        """Send the snapshot in float32; the next push is a part of the full gradient."""
        epoch: _Epoch = book.state
        epoch.asked[rank] = epoch.number
        snapshot = epoch.tensors.get("snapshot", book.x)
        book.answer(rank, model=torch.cat((torch.tensor([float(EPOCH)]), pack(snapshot, FLOAT, Key()))))

    def _send(self, rank: int, book: Book) -> None:
        """Send the model in the lowest precision that is allowed."""
        x, snapshot = self._model(book), book.state.tensors["snapshot"]
        moved = x - snapshot
        sent = moved if self.around else x
        bound = self.mu * float(moved.double().square().sum())
        bits = FLOAT if self.bits is None else width(sent, self.bits, bound)
        book.state.widest = max(book.state.widest, bits)
        word = pack(sent, bits, Key(0, book.version, rank, 0, HOP))
        book.answer(rank, model=torch.cat((torch.tensor([float(ROUND if self.around else MOVE)]), word)))

    # The worker's half.

    def worker(self, x: Tensor, workers: int) -> State:
        """The snapshot, the sum of gradients there, how many these are, and whether there will be more."""
        nothing = torch.zeros_like(x, dtype=SUM)
        return {"snapshot": x.clone(), "sum": nothing, "count": torch.zeros(()), "full": torch.ones(())}

    def elsewhere(self, state: State) -> Tensor | None:
        """The snapshot, after the full gradient is known."""
        return None if state["full"] else state["snapshot"]

    def push(self, work: Work, state: State) -> Tensor | None:
        """The mean gradient at the snapshot once it is complete, or a difference."""
        if not state["full"]:
            return work.gradient - work.more["again"]
        state["sum"] += work.gradient
        state["count"] += 1
        return None if state["count"] < self.batches else (state["sum"] / self.batches).to(work.x.dtype)

    def precise(self, state: State) -> bool:
        """Parts of the full gradient."""
        return bool(state["full"])

    def pull(self, x: Tensor, answer: Tensor, state: State) -> Tensor:
        """What the first number says."""
        kind, word = int(answer[0]), answer[1:]
        if kind == EPOCH:
            state["snapshot"].copy_(unpack(word, x.numel()))
            state["sum"].zero_()
            state["count"].zero_()
            state["full"].fill_(1)
            return state["snapshot"].clone()
        state["full"].zero_()
        if kind == STAY:
            return x
        model = unpack(word, x.numel()).to(x.device)
        return state["snapshot"] + model if kind == ROUND else model


def nbytes(n: int, bits: int) -> int:
    """Bytes of an answer with a model of `n` elements, without the header that every answer has.

    >>> nbytes(1000, 8), nbytes(1000, 32)
    (1012, 4012)
    """
    return 4 + 4 * pack(torch.zeros(n), bits, Key()).numel() if n else 4 * (1 + HEAD)
