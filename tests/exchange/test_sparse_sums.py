"""gTop-k, Ok-Topk and sketched sums: what they select, what they keep, what they send."""

from __future__ import annotations

import math
from functools import reduce

import pytest
import torch
from battery import vector
from torch import Tensor

from thinwire import Layout
from thinwire.compressors import DgcTopK, TopK
from thinwire.core.exchange import Exchange
from thinwire.exchange import GTopK, OkTopk, Sketched
from thinwire.kernels import selection
from thinwire.lab.world import World

N = 6000
EXCHANGES: list[Exchange] = [GTopK(TopK(0.01)), GTopK(TopK(0.01, indices="packed")), OkTopk(), Sketched(0.01)]
each_exchange = pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda e: e.id)
each_size = pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])


def inputs(ranks: int, step: int = 0, n: int = N, common: float = 1.0) -> list[Tensor]:
    """Gradients with a part in common, as on ranks of one training run."""
    shared = common * vector(n, "heavy", seed=1000)
    return [shared + vector(n, seed=50 * step + r) for r in range(ranks)]


def dense(sparse: tuple[Tensor, Tensor], n: int = N) -> Tensor:
    return torch.zeros(n).index_add_(0, *sparse)


@each_exchange
@each_size
def test_mass_is_conserved(exchange: Exchange, ranks: int) -> None:
    """n out + sum of new residuals = sum of inputs + sum of old residuals, element for element."""
    world = World(exchange, Layout.flat(N), ranks)
    held = torch.zeros(N)
    for step in range(5):
        xs = inputs(ranks, step, common=0.01)
        out = world.step(xs)
        kept = world.mean("send.residual")
        assert torch.allclose(out + kept, torch.stack(xs).mean(0) + held, atol=1e-3, rtol=1e-5)
        held = kept


@each_exchange
@each_size
def test_a_new_learning_rate_rescales_the_residual(exchange: Exchange, ranks: int) -> None:
    world = World(exchange, Layout.flat(N), ranks)
    world.step(inputs(ranks))
    before = world.mean("send.residual")
    world.rescale(0.5)
    assert torch.equal(world.mean("send.residual"), before / 2)


@each_exchange
def test_states_have_one_entry_an_element(exchange: Exchange) -> None:
    world = World(exchange, Layout.flat(N))
    world.step(inputs(4))
    assert all(t.shape == (N,) for state in world.states for t in state.values())


def test_two_ranks_of_gtopk_keep_the_largest_of_the_merged_sum() -> None:
    xs, k = inputs(2), 60
    merged = sum((dense(selection.top(x, k)) for x in xs), torch.zeros(N))
    expected = dense(selection.top(merged, k)) / 2
    assert torch.equal(World(GTopK(TopK(k=k)), Layout.flat(N), 2).step(xs), expected)


def test_four_ranks_of_gtopk_merge_in_pairs() -> None:
    xs, k = inputs(4), 60
    s = [dense(selection.top(x, k)) for x in xs]
    pairs = [dense(selection.top(a + b, k)) for a, b in ((s[0], s[1]), (s[2], s[3]))]
    expected = dense(selection.top(pairs[0] + pairs[1], k)) / 4
    assert torch.equal(World(GTopK(TopK(k=k)), Layout.flat(N), 4).step(xs), expected)


def test_gtopk_keeps_what_one_side_of_the_tree_dropped() -> None:
    """Place 0 loses on the left and comes in from the right: the left's share stays in its residual."""
    xs = [torch.zeros(8) for _ in range(4)]
    xs[0][0], xs[1][1] = 1.0, 2.0
    xs[2][0], xs[3][0] = 5.0, 5.0
    world = World(GTopK(TopK(k=1)), Layout.flat(8), 4)
    assert world.step(xs).tolist() == [2.5, 0, 0, 0, 0, 0, 0, 0]
    assert world.states[0]["send.residual"][0] == 1.0
    assert world.states[2]["send.residual"][0] == 0.0


def test_gtopk_bytes_grow_with_log_n() -> None:
    def sent(ranks: int) -> int:
        world = World(GTopK(TopK(k=500, indices="packed")), Layout.flat(N), ranks)
        world.step(inputs(ranks))
        return world.traffic[0].bytes

    payload = sent(2)
    assert [sent(ranks) / payload for ranks in (4, 8, 16)] == [2, 3, 4]


@pytest.mark.parametrize("ranks", [2, 4, pytest.param(6, marks=pytest.mark.long)])
def test_oktopk_counts_and_volume(ranks: int) -> None:
    """After the first steps about k elements come out, and ranks send at most 6k (n-1)/n values and places."""
    n, k, steps = 10_000, 200, 40
    exchange = OkTopk(TopK(k=k, indices="packed"), exact_every=32)
    world = World(exchange, Layout.flat(n), ranks)
    counts = []
    for step in range(steps):
        counts.append(int((world.step(inputs(ranks, step, n, common=0.05)) != 0).sum()))
    late = counts[8:]
    within = sum(4 * k / 5 <= c <= 5 * k / 4 for c in late) / len(late)
    assert within >= 0.9
    assert max(counts) <= 2 * k
    number = (32 + 14) / 8 / 2  # bytes of a value or a place, on average; places of 10000 elements have 14 bits
    payloads = 2 * (ranks - 1) * (32 + 4 + 64)  # headers, counts, and the padding of fields
    assert world.traffic[0].bytes / steps <= 6 * k * (ranks - 1) / ranks * number + payloads


def test_oktopk_on_independent_noise_keeps_at_most_2k() -> None:
    """Nothing in common: the predicted threshold lags behind the residuals, and the cap holds."""
    world = World(OkTopk(TopK(k=100)), Layout.flat(5000))
    counts = [int((world.step(inputs(4, step, 5000, common=0.0)) != 0).sum()) for step in range(40)]
    assert max(counts) <= 200
    assert min(counts) >= 30


def test_oktopk_with_an_exact_threshold_keeps_the_largest_sums() -> None:
    xs, k = inputs(4), 60
    merged = reduce(torch.add, [dense(selection.top(x, k)) for x in xs])
    out = World(OkTopk(TopK(k=k)), Layout.flat(N), 4).step(xs) * 4
    largest = dense(selection.top(merged, k))
    missed = int(((largest != 0) & (out == 0)).sum())
    assert missed <= k // 4  # owners with more than 2k/n of them drop the smallest
    assert torch.allclose(out[out != 0], merged[out != 0])


def test_regions_follow_the_elements() -> None:
    """All large elements in one tenth of the vector: after a step, every owner has a share of them."""
    world = World(OkTopk(TopK(k=100)), Layout.flat(N), 4)
    for step in range(3):
        xs = [vector(N, seed=step) * 1e-3 for _ in range(4)]
        for x in xs:
            x[600:1200] += 5 * vector(600, seed=7)
        out = world.step(xs)
    assert 80 <= int((out != 0).sum()) <= 125  # 2k/n of one region alone would be 50


def test_sketched_sums_are_exact_where_they_are_not_zero() -> None:
    xs = inputs(4)
    mean = torch.stack(xs).sum(0) / 4
    out = World(Sketched(0.01), Layout.flat(N)).step(xs)
    assert (out != 0).sum() == 60
    assert torch.allclose(out[out != 0], mean[out != 0], atol=1e-5)
    heaviest = set(mean.abs().topk(30).indices.tolist())
    assert len(heaviest & set(out.nonzero()[:, 0].tolist())) >= 24


@each_exchange
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_bad_element_is_nan_everywhere_and_in_no_state(exchange: Exchange, ranks: int) -> None:
    world = World(exchange, Layout.flat(N), ranks)
    world.step(inputs(ranks))
    before = [{name: t.clone() for name, t in state.items()} for state in world.states]
    bad = inputs(ranks, 1)
    bad[ranks - 1][:2000] = math.nan
    assert world.step(bad).isnan().all()
    for old, state in zip(before, world.states, strict=True):
        assert all(torch.equal(t, old[name]) for name, t in state.items())


def test_other_compressors_are_refused() -> None:
    for make in (GTopK, OkTopk):
        for c in (TopK(values="fp16"), DgcTopK()):
            with pytest.raises(ValueError, match=r"write .*TopK\(ratio=0\.001\)"):
                make(c)  # type: ignore[arg-type]
