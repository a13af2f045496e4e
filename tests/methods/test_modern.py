"""MARINA, DeMo and SparseLoCo as methods. Section 15; squared distances, in float32."""

from __future__ import annotations

import pytest
import torch
from battery import vector
from lockstep import Quadratics

from thinwire import Channel, Key, Layout, methods
from thinwire.compressors import DctTopK, Natural, RandomK, ScaledSign
from thinwire.core.method import METHODS
from thinwire.exchange import AllGather, AllReduce, Marina, MeanOfSenders, Mix
from thinwire.exchange.marina import heads
from thinwire.kernels.dct import dct, idct
from thinwire.lab.world import World
from thinwire.memory import Difference, ErrorFeedback

D = 64


def test_marina_converges(long: bool) -> None:
    """Random 4 of 64 places on 4 ranks; the sheet's 2e-15 is in float64, and after 1200 steps we are as near."""
    steps, limit = (1200, 1e-12) if long else (400, 1e-6)
    task = Quadratics(n=4, d=D)
    assert RandomK(ratio=0.0625).count(D) == 4
    assert task.descend(World(methods.marina().exchange, Layout.flat(D), 4), lr=0.02, steps=steps) < limit


def test_marina_sends_whole_vectors_as_often_as_the_coin_says() -> None:
    world = World(methods.marina(p=0.25).exchange, Layout.flat(4096))
    sizes = []
    for step in range(60):
        before = world.traffic[0].bytes
        world.step([vector(4096, seed=4 * step + r) for r in range(4)])
        sizes.append(world.traffic[0].bytes - before)
    whole = 2 * 3 * 4 * 4096 // 4
    assert set(sizes) == {whole, whole // 16}
    assert sizes[0] == whole
    assert 6 <= sizes.count(whole) <= 26


def test_the_coin_is_the_same_on_all_ranks_and_fair() -> None:
    tosses = [heads(Key(seed=5, step=step), 0.3) for step in range(2000)]
    assert sum(tosses) == pytest.approx(600, abs=90)
    for step in range(50):
        assert heads(Key(seed=5, step=step, rank=3, bucket=7, offset=512), 0.3) == tosses[step]


def test_marina_after_whole_vectors_is_exact() -> None:
    xs = [vector(700, seed=r) for r in range(4)]
    world = World(methods.marina(p=1.0).exchange, Layout.flat(700))
    assert torch.allclose(world.step(xs), torch.stack(xs).mean(0), atol=1e-6)
    assert torch.equal(world.states[1]["send.last"], xs[1])


def test_marina_refuses_what_it_cannot_add_up() -> None:
    with pytest.raises(ValueError, match=r"unbiased compressors without a memory.*write Marina\(AllReduce\(Channel"):
        Marina(AllGather(Channel(ScaledSign())))
    with pytest.raises(ValueError, match="without a memory"):
        Marina(AllGather(Channel(Natural(), Difference(0.5))))
    for changes in (Mix(), Marina(AllReduce()), AllGather(Channel(Natural()), reduce="majority")):
        with pytest.raises(ValueError, match=r"gives no mean or keeps a state; write Marina\(AllReduce\(Channel"):
            Marina(changes)
    with pytest.raises(ValueError, match="write p = 1"):
        Marina(AllReduce(), p=0.0)
    with pytest.raises(TypeError, match="Marina takes an Exchange"):
        Marina(Channel(Natural()))  # type: ignore[arg-type]


def test_each_coefficient_is_averaged_over_its_senders() -> None:
    """Ranks 0 and 1 send the same coefficient, rank 2 another: not divided by the number of ranks."""
    layout = Layout(("w",), ((8, 8),))
    ys = torch.zeros(3, 8, 8)
    ys[0, 0, 1], ys[1, 0, 1], ys[2, 3, 3] = 4.0, 2.0, 8.0
    xs = [idct(y[None].clone()).reshape(-1) for y in ys]
    out = World(MeanOfSenders(Channel(DctTopK(chunk=8, k=1))), layout, 3).step(xs)
    expected = torch.zeros(8, 8)
    expected[0, 1], expected[3, 3] = 3.0, 8.0
    assert torch.allclose(dct(out.view(1, 8, 8))[0], expected, atol=1e-5)


def test_demo_keeps_what_it_does_not_send() -> None:
    """Momentum: m = beta m + g - sent: the memory is error feedback with alpha = beta."""
    layout = Layout(("w",), ((64, 128),))
    world = World(methods.demo(beta=0.9, sign=False).exchange, layout, 2)
    first, second = ([vector(8192, seed=10 * step + r) for r in range(2)] for step in range(2))
    world.step(first)
    m = world.states[0]["send.residual"].clone()
    assert (dct(m.view(64, 2, 64).transpose(0, 1).contiguous()).abs() < 1e-2).sum() >= 64  # 32 per chunk are gone
    world.step(second)
    momentum = second[0] + m * 0.9
    sent = momentum - world.states[0]["send.residual"]
    again = DctTopK().decode(DctTopK().encode(momentum, layout), layout)
    assert torch.allclose(sent, again, atol=1e-5)


def test_demo_hands_out_signs_for_all_tensors() -> None:
    world = World(methods.demo().exchange, Layout.flat(700))
    out = world.step([vector(700, seed=r) for r in range(4)])
    assert set(out.unique().tolist()) <= {-1.0, 0.0, 1.0}


def test_demo_descends() -> None:
    task = Quadratics(n=4, d=D)
    world = World(methods.demo(beta=0.5, k=8).exchange, Layout.flat(D))
    assert task.descend(world, lr=0.01, steps=100) < 0.35  # signs of a constant size: it ends near, not at it


def test_bits_on_the_wire_are_the_papers() -> None:
    n = 1 << 18
    for name in ("demo", "sparse-loco-step", "sparse-loco"):
        world = World(METHODS.parse(name).exchange, Layout(("w",), ((512, 512),)))
        world.step([vector(n, seed=r) for r in range(4)])
        assert 8 * world.traffic[0].bytes / 3 / n == pytest.approx(0.219, rel=0.01)


def test_mean_of_senders_refuses_what_has_no_coefficients() -> None:
    with pytest.raises(ValueError, match=r"write MeanOfSenders\(Channel\(DctTopK"):
        MeanOfSenders(Channel(ScaledSign(), ErrorFeedback()))
    with pytest.raises(ValueError, match=r"write Channel\(..., ErrorFeedback"):
        MeanOfSenders(Channel(DctTopK(), Difference()))
