"""TernGrad through shared scalers against the paper's equations in NumPy: ranks, shards and chunks that cut tensors.

per rank and layer:  sigma = std(g),  g clipped to [-c sigma, c sigma],  s_i = max|g|;     s = max_i s_i
b ~ Bernoulli(|g| / s),    out = (s / n) sum_i sgn(g_i) b_i:  whole multiples of s/n, and the mean of clipped g_i
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from battery import vector
from numpy.typing import NDArray
from torch import Tensor

from thinwire import Layout
from thinwire.comm import Comm
from thinwire.compressors import Qsgd, TernGrad
from thinwire.core.method import METHODS
from thinwire.engine.bucket import Bucket
from thinwire.engine.plan import Item, Parcel
from thinwire.exchange import SharedScale
from thinwire.lab.world import World

LAYOUT = Layout(("w", "b", "v"), ((60, 50), (133,), (900,)))  # shards of 4 ranks are 1024, 1024, 1024 and 961
C = 2.5
DRAWS = 120


def paper(grads: list[NDArray[np.float64]], layout: Layout, c: float | None) -> tuple[NDArray[np.float64], ...]:
    """The scaler of every element, and the mean over ranks of the clipped gradients."""
    scaler, mean = np.zeros(layout.numel), np.zeros(layout.numel)
    for a, b in zip(layout.offsets, layout.offsets[1:], strict=False):
        clipped = [g[a:b] if c is None else np.clip(g[a:b], -c * g[a:b].std(), c * g[a:b].std()) for g in grads]
        scaler[a:b] = max(np.abs(g).max() for g in clipped)
        mean[a:b] = np.mean(clipped, axis=0)
    return scaler, mean


def heavy(n: int, ranks: int) -> list[Tensor]:
    """Cubes of Gaussians, larger from rank to rank and from element to element: of every part another sigma."""
    slope = torch.linspace(0.5, 2, n)
    return [vector(n, seed=r) ** 3 * slope * (1 + r) for r in range(ranks)]


@pytest.mark.parametrize(("clip", "ranks"), [(C, 4), (None, 2)])
def test_the_papers_equations(clip: float | None, ranks: int) -> None:
    xs = heavy(LAYOUT.numel, ranks)
    scaler, mean = paper([x.double().numpy() for x in xs], LAYOUT, clip)
    world, total = World(SharedScale(TernGrad(clip)), LAYOUT, ranks), np.zeros(LAYOUT.numel)
    for _ in range(DRAWS):
        out = world.step(xs).double().numpy()
        counts = out * ranks / scaler
        assert np.abs(counts - counts.round()).max() < 1e-5
        assert np.abs(counts).max() < ranks + 0.1
        total += out
    off = np.abs(total / DRAWS - mean) / (scaler / 2 / np.sqrt(ranks * DRAWS))  # in standard deviations, at most
    assert off.max() < 5.5


def test_ranks_clip_before_they_share() -> None:
    """What is above 2.5 sigma of a rank with small gradients is clipped, though another's scaler is larger."""
    small = vector(LAYOUT.numel, seed=0)
    small[17:21] = 50.0
    large = 100 * vector(LAYOUT.numel, seed=1)
    large[17:21] = 0.0
    _, mean = paper([small.double().numpy(), large.double().numpy()], LAYOUT, C)
    world = World(SharedScale(TernGrad()), LAYOUT, 2)
    drawn = np.mean([world.step([small, large])[17:21].numpy() for _ in range(100)])
    assert mean[17] < 3
    assert drawn == pytest.approx(mean[17], abs=9)  # 25 without the clipping


@pytest.mark.parametrize("method", ["terngrad", "terngrad:share=false"])
def test_chunks_leave_tensors_whole(method: str) -> None:
    """A tensor of several chunks has one scaler: its bucket is one chunk."""
    exchange = METHODS.parse(method).exchange
    item = Item("w", (3000,), torch.device("cpu"))
    tiny = 2048 / 2**20
    bucket = Bucket(0, Parcel((item,), compressed=True), exchange, Comm(0, 2), tiny)
    assert [(chunk.start, chunk.stop) for chunk in bucket.chunks] == [(0, 3000)]
    cut = Bucket(0, Parcel((item,), compressed=True), SharedScale(Qsgd(bits=4)), Comm(0, 2), tiny)
    assert len(cut.chunks) > 1


def test_a_tensor_costs_one_scaler_in_the_first_round() -> None:
    """However many shards cut it."""
    world = World(SharedScale(TernGrad()), Layout.flat(4096), 4)
    world.step(heavy(4096, 4))
    one = world.traffic[0].bytes
    split = World(SharedScale(TernGrad()), Layout(("a", "b", "c", "d"), ((1024,),) * 4), 4)
    split.step(heavy(4096, 4))
    assert one < split.traffic[0].bytes
