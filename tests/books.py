"""A server's book without a network, in any precision, for tests of rules."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD

from thinwire import Comm, Layout
from thinwire.server import Book, Rule
from thinwire.server.book import Part
from thinwire.server.down import Sender
from thinwire.server.steppers import Idle, Like
from thinwire.server.words import Reply


def make_book(rule: Rule, x: Tensor, workers: int, lr: float, bound: int | None) -> Book:
    """One tensor, one parameter group, answers as they are."""
    d = x.numel()
    down = Sender(None, Layout.flat(d), x, workers, comm=Comm(0, 1), seed=0, shard=0)
    stepper = Like(SGD([nn.Parameter(x.clone())], lr)) if rule.steps else Idle()
    return Book(rule, x, [Part("x", (d,), 0)], stepper, workers, lambda: 0.0, bound, down)


def answered(reply: Reply) -> Tensor:
    """The model in a reply, as float64."""
    assert reply.data is not None
    return reply.data.view(torch.float64)
