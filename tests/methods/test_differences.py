"""DIANA and EF21 on quadratics that differ between ranks. Sections 8, 13 and 15; squared distances, in float32."""

from __future__ import annotations

import pytest
from lockstep import Quadratics, quick

from thinwire import Channel, Layout, methods
from thinwire.compressors import Qsgd
from thinwire.exchange import AllGather
from thinwire.memory import Difference

D = 32


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_diana_converges_where_quantised_descent_stalls(norm: str) -> None:
    """The gradients of single ranks do not vanish at the optimum; their differences from the shifts do."""
    task = Quadratics(d=D)
    quantiser = Qsgd(levels=1, norm="l2" if norm == "l2" else "max", block=D)
    stalls = task.descend(quick(AllGather(Channel(quantiser)), Layout.flat(D)), lr=0.1, steps=100)
    diana = methods.diana(norm=quantiser.norm, block=D)
    assert diana.exchange.channels[0].compressor == quantiser
    assert task.descend(quick(diana.exchange, Layout.flat(D)), lr=0.1, steps=150) < 1e-10
    assert stalls > 5e-3


def test_ef21_converges_where_error_feedback_floors() -> None:
    """With scaled signs and a constant step."""
    task = Quadratics(d=D)
    floors = task.descend(quick(methods.ef_signsgd(exchange="all-gather").exchange, Layout.flat(D)), 0.1, 120)
    assert task.descend(quick(methods.ef21().exchange, Layout.flat(D)), lr=0.1, steps=200) < 1e-7  # 1e-10 after 250
    assert floors > 1e-3


def test_alpha_comes_from_the_bound_of_a_block() -> None:
    memory = methods.diana(levels=1, norm="l2", block=64).exchange.channels[0].memory
    assert memory == Difference(alpha=1 / (1 + 8))  # omega = sqrt(64)
    assert methods.diana(alpha=0.125).exchange.channels[0].memory == Difference(alpha=0.125)
