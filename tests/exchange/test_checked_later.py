"""Every method with checks that are looked at after the exchange, as on a GPU: bits stay, and nothing is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from battery import LAYOUT
from nets import exchange_twice
from torch import Tensor

from thinwire.comm.virtual import run
from thinwire.core.method import METHODS
from thinwire.core.types import Context
from thinwire.core.verdicts import Verdicts
from thinwire.lab.member import Member

IN_STEP = [name for name in METHODS if METHODS[name]().sync.staleness is not None]


def exchanged(name: str) -> list[Tensor]:
    return run(lambda comm: exchange_twice(comm, name, LAYOUT), 2).results


@pytest.mark.parametrize("name", IN_STEP)
def test_bits_stay_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = exchanged(name)
    made: list[Verdicts] = []
    context = Member._context

    def with_verdicts(self: Member, *args: object) -> Context:
        made.append(Verdicts())
        return replace(context(self, *args), verdicts=made[-1])  # type: ignore[arg-type]

    monkeypatch.setattr(Member, "_context", with_verdicts)
    later = exchanged(name)
    assert len(made) == 4
    for verdicts in made:
        verdicts.raise_if_any()
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(at_once, later, strict=True))
