"""Error feedback: the plain two halves, the fused pass, and the identities of the papers."""

from __future__ import annotations

import pytest
import torch
from battery import vector

from thinwire import Channel, Comm, Context, Key, Layout
from thinwire.compressors import OneBit, Qsgd, ScaledSign
from thinwire.core.compressor import Compressor
from thinwire.memory import ErrorFeedback

LAYOUT = Layout.flat(200)


def context(step: int = 0) -> Context:
    return Context(Comm(0, 1), LAYOUT, Key(seed=1, step=step))


@pytest.mark.filterwarnings("ignore:.*lets errors grow")  # beta = 0 lets errors grow, and warns of it
@pytest.mark.parametrize("c", [Qsgd(bits=4), ScaledSign(), OneBit()], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.2, 0.9), (1.0, 0.0)])
def test_a_channel_does_what_before_and_after_say(c: Compressor, alpha: float, beta: float) -> None:
    memory = ErrorFeedback(alpha, beta)
    channel = Channel(c, memory)
    fused, plain = channel.memory.init(torch.zeros(200)), memory.init(torch.zeros(200))
    for step in range(5):
        x, ctx = vector(200, seed=step), context(step)
        payload = channel.send(x, fused, ctx)
        p = memory.before(x, plain, ctx)
        assert payload is not None
        assert p is not None
        expected = c.encode(p, LAYOUT, ctx.key)
        assert torch.equal(payload.data, expected.data)
        memory.after(x, c.decode(expected, LAYOUT), plain)
        assert torch.equal(fused["residual"], plain["residual"])


def test_classical_feedback_conserves_what_it_was_given() -> None:
    """What was sent plus the residual is what was computed, at every step."""
    channel = Channel(ScaledSign(), ErrorFeedback())
    state = channel.memory.init(torch.zeros(200))
    given, sent = torch.zeros(200), torch.zeros(200)
    for step in range(100):
        x, ctx = vector(200, seed=step), context(step)
        payload = channel.send(x, state, ctx)
        assert payload is not None
        given += x
        ScaledSign().decode_add(payload, LAYOUT, sent)
        assert torch.allclose(sent + state["residual"], given, atol=1e-4)


def test_the_residual_is_a_decaying_sum_of_errors() -> None:
    """h^t = sum over tau < t of beta^(t-1-tau) (g^tau - q^tau)."""
    channel = Channel(Qsgd(levels=4, norm="l2"), ErrorFeedback(alpha=0.2, beta=0.9))
    state = channel.memory.init(torch.zeros(200))
    errors = []
    for step in range(30):
        x, ctx = vector(200, seed=step), context(step)
        payload = channel.send(x, state, ctx)
        assert payload is not None
        errors.append(x - channel.compressor.decode(payload, LAYOUT))
    unrolled = sum((0.9 ** (29 - t) * e for t, e in enumerate(errors)), torch.zeros(200))
    assert torch.allclose(state["residual"], unrolled, atol=1e-4)


def test_a_step_with_nan_leaves_the_memory() -> None:
    memory = ErrorFeedback()
    state = {"residual": torch.ones(3)}
    memory.after(torch.tensor([1.0, float("nan"), 2.0]), torch.tensor([0.5, float("nan"), 1.0]), state)
    assert state["residual"].tolist() == [1.5, 1.0, 2.0]
