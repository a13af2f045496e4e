"""Consensus ADMM: workers minimise alone, and are pulled to a model that the server makes of what they report.

With f_i the loss on the data of worker i, u_i its dual, z_i the last model that it was sent, and n workers, it
minimises (1/n) sum_i f_i(x) + l1 |x|_1, which is sum_i f_i(x) + n l1 |x|_1:

    worker    x_i = argmin f_i(x) + u_i'x + rho/2 |x - z_i|^2                   by local steps on f_i
              sends w_i = x_i + u_i / rho
    server    z = argmin n l1 |z|_1 + sum_i rho/2 |w_i - z|^2 + gamma/2 |z - z_old|^2
                = soft((rho sum_i w_i + gamma z_old) / weight, n l1 / weight),    weight = n rho + gamma

with the latest w_i of everybody. The server goes on when `least` workers have reported and nobody else's report is
older than tau - 1 rounds (`Sync(staleness=tau - 1)`); it answers those who have reported, and the others work on. The
dual moves when the answer comes, or before the report is sent:

    dual="answer"    u_i = u_i + rho (x_i - z), with the new z      Zhang and Kwok; with tau = 1, consensus ADMM
    dual="report"    u_i = u_i + rho (x_i - z_i), with the old      Chang et al., who add gamma

The first is u_i = rho (w_i - z), with w_i as the server has it: so with tau = 1 and without l1 and gamma the u_i sum
to zero after every round, whatever the wire loses. Where `differences` are sent, w_i less what the server has of it
goes through the compressor, and tends to zero; otherwise w_i itself.

References: Boyd, Parikh, Chu, Peleato, Eckstein, "Distributed optimization and statistical learning via the
alternating direction method of multipliers", 2011, section 7. Zhang, Kwok, "Asynchronous distributed ADMM for
consensus optimization", ICML 2014. Chang, Hong, Liao, Wang, "Asynchronous distributed ADMM for large-scale
optimization - part I: algorithm and convergence analysis", IEEE Transactions on Signal Processing 2016, arXiv
1509.02597.

Departs from the papers: w_i is sent in place of x_i and u_i, since the server needs no more. Their l1 weighs against
the sum of the f_i; ours weighs against the mean, as it does in `spy` and `dbpg`, and so is theirs divided by n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from thinwire.core.config import check_choice
from thinwire.server.prox import check_l1, soft
from thinwire.server.reports import Reports
from thinwire.server.rule import Push, Rule
from thinwire.server.worker import Work

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import State
    from thinwire.server.book import Book

Dual = Literal["answer", "report"]


@final
@dataclass(frozen=True)
class ConsensusAdmm(Rule):
    """How old a report may be is the staleness of the method's `Sync`."""

    name: ClassVar[str] = "consensus-admm"
    bounded: ClassVar[bool] = True
    steps: ClassVar[bool] = False
    local_steps: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    echoes: ClassVar[bool] = True
    rho: float = 0.5
    least: int = 1
    dual: Dual = "answer"
    gamma: float = 0.0
    l1: float = 0.0
    differences: bool = False

    def __post_init__(self) -> None:
        check_choice("ConsensusAdmm", "dual", self.dual, ("answer", "report"))
        check_l1("ConsensusAdmm", self.l1)
        if not 0 < self.rho < float("inf"):
            raise ValueError(f"ConsensusAdmm(rho={self.rho}) does not pull; write rho=0.5, or another number above 0")
        if not 0 <= self.gamma < float("inf"):
            raise ValueError(f"ConsensusAdmm(gamma={self.gamma}): write gamma=0, or more where reports are old")
        if self.least < 1:
            raise ValueError(f"ConsensusAdmm(least={self.least}): write how many workers to wait for, 1 or more")

    def check(self, workers: int) -> None:
        """There are as many as are waited for."""
        if self.least > workers:
            raise ValueError(
                f"ConsensusAdmm(least={self.least}) with {workers} workers waits for ever; write at most {workers}"
            )

    def init(self, workers: int) -> Reports:
        """The latest w_i."""
        return Reports()

    def arrived(self, push: Push, book: Book) -> None:
        """Keep it; go on when there are enough."""
        book.state.hear(push, book, difference=self.differences)
        self._next(book)

    def refused(self, push: Push, book: Book) -> None:
        """What it reported last stands."""
        book.drop(push)
        book.state.pass_over(push, book)
        self._next(book)

    def left(self, rank: int, book: Book) -> None:
        """It is not waited for."""
        self._next(book)

    def _next(self, book: Book) -> None:
        reports: Reports = book.state
        if reports.enough(book, self.least):
            weight = book.workers * self.rho + self.gamma
            z = (self.rho * reports.total() + self.gamma * book.x) / weight
            reports.close(soft(z, book.workers * self.l1 / weight) if self.l1 else z, book)

    def worker(self, x: Tensor, workers: int) -> State:
        """The dual, z as it came last, and w_i as the server has it."""
        return {"u": x.new_zeros(x.shape), "z": x.clone(), "told": x.clone()}

    def lean(self, x: Tensor, gradient: Tensor, state: State) -> Tensor:
        """The gradient of f_i + u_i'x + rho/2 |x - z_i|^2."""
        return gradient + state["u"] + self.rho * (x - state["z"])

    def push(self, work: Work, state: State) -> Tensor:
        """w_i, or how far it is from what the server has."""
        if self.dual == "report":
            state["u"] += self.rho * (work.x - state["z"])
        w = work.x + state["u"] / self.rho
        return w - state["told"] if self.differences else w

    def sent(self, decoded: Tensor, state: State) -> None:
        """Follow the server's w_i."""
        state["told"].copy_(state["told"] + decoded if self.differences else decoded)

    def pull(self, x: Tensor, answer: Tensor, state: State) -> Tensor:
        """Keep z for the next round; x_i stays."""
        state["z"].copy_(answer)
        if self.dual == "answer":
            state["u"].copy_(self.rho * (state["told"] - answer))
        return x
