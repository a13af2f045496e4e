"""Sparse methods on quadratics that differ between ranks: the sheet's section 13."""

from __future__ import annotations

import pytest
from lockstep import Quadratics, quick

from thinwire import Channel, Layout
from thinwire.compressors import TopK
from thinwire.core.memory import Memory
from thinwire.core.method import METHODS
from thinwire.exchange import AllGather
from thinwire.memory import Difference, ErrorFeedback, NoMemory

TASK = Quadratics(n=4, d=32, seed=1)


def distance(memory: Memory, lr: float, steps: int) -> float:
    world = quick(AllGather(Channel(TopK(k=2), memory)), Layout.flat(32))
    return TASK.descend(world, lr, steps)


def test_top_k_stalls_without_feedback_floors_with_it_and_ef21_converges() -> None:
    """2 of 32. The sheet, with 4 of 64, has .88, .063 and 3e-5 on quadratics of its own.

    Without feedback the small gradients are never sent; with it, single ranks' do not vanish at the optimum.
    """
    stalls, converges = distance(NoMemory(), 0.1, 75), distance(Difference(), 0.1, 100)
    floors = distance(ErrorFeedback(), 0.05, 150)  # at a height that follows the step
    assert stalls > 0.1
    assert 1e-3 < floors < 0.15 * stalls
    assert converges < 1e-7  # and on, down to 1e-13


@pytest.mark.parametrize(
    ("name", "lr", "steps", "limit"),
    [
        ("topk:ratio=0.0625", 0.05, 40, 0.04),
        ("topk:ratio=0.125,block=16", 0.05, 50, 0.02),
        ("randomk:ratio=0.25", 0.05, 60, 0.002),
        ("dgc:ratio=0.125,momentum=0.5", 0.05, 40, 0.04),
        ("gtopk:ratio=0.125", 0.05, 90, 0.04),
        ("oktopk:ratio=0.125", 0.025, 80, 0.03),
        ("sbc:ratio=0.125", 0.05, 50, 0.02),
        ("strom:tau=2", 0.07, 43, 0.03),
        ("wangni:ratio=0.25", 0.05, 50, 0.035),
        ("rdme:ratio=0.25", 0.05, 50, 0.035),
        ("rdme:ratio=0.5,p=uniform", 0.05, 50, 0.035),
        ("sketched-sgd:ratio=0.125", 0.07, 43, 0.001),
    ],
)
def test_all_of_them_descend(name: str, lr: float, steps: int, limit: float) -> None:
    assert TASK.descend(quick(METHODS.parse(name).exchange, Layout.flat(32)), lr, steps) < limit


def test_a_threshold_below_the_gradients_lags_behind_them() -> None:
    """Strom's pitfall: the ranks' gradients stay near 1 at the optimum, and an element sends at most tau per step."""
    far, near = (
        TASK.descend(quick(METHODS.parse(f"strom:tau={tau}").exchange, Layout.flat(32)), 0.04, 60) for tau in (0.1, 2)
    )
    assert far > 20 * near
