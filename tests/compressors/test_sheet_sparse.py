"""Facts of the specification, section 13: sparsifiers."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import torch
from battery import INSTANCES, vector
from sheet import decoded, gauss, nmse

from thinwire import Key, Layout, PayloadError
from thinwire.codecs.gaps import bound_gaps
from thinwire.codecs.wide import pack_wide, unpack_wide, wide_bytes
from thinwire.compressors import (
    BlockTopK,
    CountSketch,
    DgcTopK,
    Qsgd,
    QuantisedTopK,
    RandomK,
    SampledTopK,
    Sbc,
    Strom,
    TopK,
    Wangni,
)
from thinwire.compressors.sparse import most_gaps
from thinwire.compressors.wangni import inverse_lambda
from thinwire.core.compressor import Compressor, encode_with_feedback

SPARSE = (BlockTopK, CountSketch, DgcTopK, QuantisedTopK, RandomK, SampledTopK, Sbc, Strom, TopK, Wangni)


@pytest.mark.parametrize(("ratio", "energy"), [(0.001, 0.9877), (0.01, 0.918), (0.1, 0.558)])
def test_residual_energy_of_a_gaussian(ratio: float, energy: float) -> None:
    assert nmse(TopK(ratio), 10_000, 20) == pytest.approx(energy, rel=0.02)
    assert nmse(RandomK(ratio, scaled=False), 10_000, 20) == pytest.approx(1 - ratio, rel=0.02)


def test_random_k_error_is_d_over_k_less_one() -> None:
    assert nmse(RandomK(0.05), 2000, 200) == pytest.approx(19, rel=0.1)


def test_random_k_is_drawn_alike_on_all_ranks_and_anew_each_step() -> None:
    c, x, layout = RandomK(0.1), gauss(1000), Layout.flat(1000)
    first = c.encode(x, key=Key(seed=1, step=3, rank=0))
    other = c.encode(x, key=Key(seed=1, step=3, rank=5))
    assert torch.equal(first.body, other.body)
    assert not torch.equal(first.body, c.encode(x, key=Key(seed=1, step=4)).body)
    both = Key(seed=1, step=3)
    total = c.decode(first, layout, key=both) + c.decode(other, layout, key=both)
    assert torch.equal(total != 0, c.decode(first, layout, key=both) != 0)


@pytest.mark.parametrize("indices", ["gaps", "packed"])
def test_bits_of_top_k(indices: str) -> None:
    c = TopK(0.01, indices=indices)  # type: ignore[arg-type]
    bits = 8 * c.encode(gauss(1 << 16)).body.numel() / c.most(1 << 16)
    assert bits == pytest.approx(32 + (8.11 if indices == "gaps" else 16), rel=0.02)


def test_quantised_top_k_is_a_quantiser_at_the_places_of_top_k() -> None:
    x, inner = gauss(1 << 16), Qsgd(bits=4, block=64)
    c = QuantisedTopK(0.01, compressor=inner)
    assert 8 * c.encode(x).body.numel() / c.most(1 << 16) == pytest.approx(4.5 + 8.11, rel=0.02)
    kept = decoded(TopK(0.01), x)
    at = kept.nonzero()[:, 0]
    assert torch.equal(decoded(c, x)[at], decoded(inner, kept[at]))
    assert (decoded(c, x) != 0).sum() <= at.numel()
    assert c.delta(1000) == pytest.approx(0.01 * (inner.delta(10) or 0))
    with pytest.raises(ValueError, match="does not write k values into a known number of bytes"):
        QuantisedTopK(compressor=TopK())


def test_bits_of_block_top_k() -> None:
    assert 8 * BlockTopK(values="bf16").encode(gauss(1 << 16)).body.numel() / (1 << 16) == 64 * (16 + 12) / 4096


def test_block_top_k_keeps_k_of_every_block() -> None:
    out = decoded(BlockTopK(), gauss(5 * 4096)).view(5, 4096)
    assert (out != 0).sum(1).tolist() == [64] * 5
    assert (decoded(BlockTopK(block=10, k=4), gauss(33)) != 0).sum() == 15


def test_wide_fields_come_back() -> None:
    for width in (1, 7, 8, 9, 12, 20, 31):
        fields = torch.randint(1 << width, (1001,), generator=torch.Generator().manual_seed(width))
        data = pack_wide(fields, width)
        assert data.numel() == wide_bytes(1001, width)
        assert torch.equal(unpack_wide(data, 1001, width), fields)
    every = torch.arange(4096)
    assert torch.equal(unpack_wide(pack_wide(every, 12), 4096, 12), every)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 1000, 65_536])
def test_the_bound_of_gaps_grows_with_the_count(n: int) -> None:
    largest = 0
    for k in range(0, n + 1, max(1, n // 500)):
        largest = max(largest, bound_gaps(k, n))
        assert most_gaps(k, n) >= largest


@pytest.mark.parametrize("kind", ["gauss", "heavy", "constant", "zero", "one-hot"])
def test_sampled_top_k_sends_about_k(kind: str) -> None:
    c, n = SampledTopK(0.01), 50_000
    for step in range(5):
        places, _ = c.pick(vector(n, kind), Key(seed=1, step=step))
        assert 0.8 * 500 <= places.numel() <= 1.3 * 500


def test_wangni_probabilities_sum_to_s() -> None:
    x, s = gauss(4000), 400.0
    p = (x.abs().double() / inverse_lambda(x, s)).clamp(max=1.0)
    assert float(p.sum()) == pytest.approx(s, rel=1e-4)
    x[:5] *= 1e4  # certain to go
    p = (x.abs().double() / inverse_lambda(x, s)).clamp(max=1.0)
    assert float(p.sum()) == pytest.approx(s, rel=1e-4)
    assert (p[:5] == 1).all()


def test_wangni_second_moment_is_one_plus_eps() -> None:
    """E|C(x)|^2 = (1 + eps)|x|^2 with 1 + eps = sum x^2/p / |x|^2, and s elements survive on average."""
    c, x = Wangni(0.1), gauss(2000)
    p = (x.abs().double() / inverse_lambda(x, 200.0)).clamp(max=1.0)
    predicted = float((x.double().square() / p).sum() / x.double().square().sum())
    drawn = [decoded(c, x, step) for step in range(300)]
    measured = float(torch.stack([q.double().square().sum() for q in drawn]).mean() / x.double().square().sum())
    assert measured == pytest.approx(predicted, rel=0.02)
    assert predicted == pytest.approx(2 / math.pi / 0.1, rel=0.05)  # |x|_1^2 / (s |x|_2^2) of a Gaussian
    survivors = torch.stack([(q != 0).sum() for q in drawn]).double().mean()
    assert float(survivors) == pytest.approx(200, rel=0.02)


def test_strom_moves_at_most_tau() -> None:
    c, e = Strom(0.5), torch.zeros(3)
    x = torch.tensor([0.3, -2.0, 0.0])
    sent = torch.zeros(3)
    for step in range(4):
        sent += c.decode(encode_with_feedback(c, x, e, key=Key(step=step)), Layout.flat(3))
        assert torch.allclose(sent + e, (step + 1) * x, atol=1e-6)
    assert sent.tolist() == [1.0, -2.0, 0.0]  # the second lags: 8 were due


def test_sbc_sends_one_sign_and_its_mean() -> None:
    x = gauss(10_000)
    x[:50] = -5.0
    out = decoded(Sbc(0.01), x)
    assert (out < 0).sum() == 100
    assert out.unique().numel() == 2
    assert float(out.min()) == pytest.approx(-float((-x).topk(100).values.mean()), rel=1e-6)


def test_sbc_bits() -> None:
    body = Sbc(0.01).encode(gauss(100_000)).body.numel()
    assert 8 * (body - 8) / 1000 == pytest.approx(8.1, rel=0.02)


def test_sketches_add() -> None:
    c, layout, key = CountSketch(5, 1000), Layout.flat(20_000), Key(seed=2)
    a, b = gauss(20_000), gauss(20_000, seed=1)
    bodies = [c.encode(x, layout, key).body.view(torch.float32) for x in (a, b, a + b)]
    assert torch.allclose(bodies[0] + bodies[1], bodies[2], atol=1e-4)
    ranks = [c.encode(a, layout, key.fold(rank=r)).body for r in (0, 3)]
    assert torch.equal(*ranks)


def test_sketch_recall() -> None:
    """50 spikes, 100:1, in 5 x 1000 counters of 20000 elements: the sheet found 0.96 of them, with one seed."""
    recall = []
    for seed in range(10):
        x = gauss(20_000, seed=seed)
        spikes = torch.randperm(20_000, generator=torch.Generator().manual_seed(seed))[:50]
        x[spikes] = 100 * x[spikes].sign()
        found = decoded(CountSketch(5, 1000), x, seed).abs().topk(50).indices
        recall.append(len(set(found.tolist()) & set(spikes.tolist())) / 50)
    assert sum(recall) / 10 == pytest.approx(0.96, abs=0.05)


def test_dgc_warm_up() -> None:
    c, x = DgcTopK(0.001, warmup=40), gauss(10_000)
    counts = [c.pick(x, Key(step=s))[0].numel() for s in (0, 9, 10, 20, 30, 39, 40, 1000)]
    assert counts == [2500, 2500, 625, 156, 39, 39, 10, 10]


MINE = [c for c in INSTANCES if isinstance(c, SPARSE)]


@pytest.mark.parametrize("c", MINE, ids=lambda c: c.id)
def test_damaged_bodies_are_refused_or_decode_to_something(c: Compressor) -> None:
    """`add` meets any bytes: it raises PayloadError or adds, and never writes outside."""
    layout = Layout.flat(300)
    whole = c.encode(vector(300), layout).body
    g = torch.Generator().manual_seed(0)
    for trial in range(200):
        body = whole.clone()
        if trial % 2:
            at = torch.randint(body.numel(), (3,), generator=g)
            body[at] = torch.randint(256, (3,), generator=g, dtype=torch.uint8)
        elif not c.fixed_size:
            body = body[: int(torch.randint(body.numel(), (1,), generator=g))]
        else:
            body = torch.randint(256, (body.numel(),), generator=g, dtype=torch.uint8)
        with suppress(PayloadError):
            c.add(body.clone(), layout, Key(), torch.zeros(300), 1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(0.0),
        lambda: TopK(k=0),
        lambda: TopK(values="int8"),  # type: ignore[arg-type]
        lambda: BlockTopK(64, 65),
        lambda: RandomK(1.5),
        lambda: Strom(-1.0),
        lambda: Strom(math.inf),
        lambda: CountSketch(4, 10),
        lambda: DgcTopK(warmup=-1),
        lambda: SampledTopK(sample=0.0),
    ],
)
def test_settings_out_of_range_are_refused(make: type) -> None:
    with pytest.raises(ValueError, match="write"):
        make()


def test_the_size_of_packed_places_says_how_many_there_are() -> None:
    for values in ("fp32", "bf16"):
        c = TopK(k=40, values=values, indices="packed")
        sizes = [c._bytes(count, 2000) for count in range(2001)]
        assert [c._count(size, 2000) for size in sizes] == list(range(2001))
        for size in (0, sizes[40] + 1, sizes[2000] + 1):
            with pytest.raises(PayloadError, match=f"cannot have {size} bytes"):
                c._count(size, 2000)
    assert c.fixed_size
    assert not TopK(k=40).fixed_size
