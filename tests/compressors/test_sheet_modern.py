"""The specification's facts on DeMo's, SparseLoCo's and hivemind's codes. Section 15."""

from __future__ import annotations

import pytest
import torch
from battery import LAYOUT, vector
from sheet import decoded, gauss, nmse

from thinwire import Key, Layout, Payload, PayloadError, kernels
from thinwire.codecs.wide import pack_wide, unpack_wide
from thinwire.compressors import Blockwise8, DctTopK, IntBlock, MiniFloat, Quantile8, SparseLoco, Uniform8
from thinwire.compressors.dct_topk import grids
from thinwire.core.compressor import encode_with_feedback, scheme
from thinwire.kernels.dct import basis, dct, idct

SQUARE = Layout(("w",), ((256, 512),))


def test_uniform8_on_gaussian_data() -> None:
    assert nmse(Uniform8(), 1 << 16, 4) == pytest.approx(2.6e-4, rel=0.1)


def test_blockwise8_and_quantile8_on_gaussian_data() -> None:
    """Measured here, not in the sheet. The blockwise grid is made for many scales, not for one Gaussian."""
    assert nmse(Blockwise8(), 1 << 16, 4) == pytest.approx(1.7e-4, rel=0.1)
    assert nmse(Quantile8(), 1 << 16, 4) == pytest.approx(7.6e-4, rel=0.1)


def test_blockwise8_keeps_small_elements_that_a_uniform_grid_loses() -> None:
    x = gauss(4096) * 1e-4
    x[0] = 1.0
    rest = x[1:]
    assert (decoded(Blockwise8(), x)[1:] - rest).norm() < 0.2 * rest.norm()
    assert (decoded(IntBlock(bits=8, block=4096), x)[1:]).norm() == 0


def test_bins_decode_to_the_means_of_their_elements() -> None:
    """The mean of the vector survives as well."""
    x = gauss(10_000) + 3
    for c in (Uniform8(), Quantile8()):
        assert decoded(c, x).double().mean().item() == pytest.approx(x.double().mean().item(), rel=1e-6)
        assert decoded(c, x).unique().numel() <= 256


def test_quantile8_is_exact_up_to_256_elements() -> None:
    x = vector(256, "heavy")
    assert torch.equal(decoded(Quantile8(), x), x)


def test_quantile8_keeps_outliers_apart_from_ties() -> None:
    """Borders by value would put everything into one bin of mean 0."""
    x = torch.full((512,), -1.0)
    x[77] = 511.0
    assert (decoded(Quantile8(), x) - x).norm() < 0.8 * x.norm()


@pytest.mark.parametrize("n", [4096, 1 << 20])
def test_sparse_loco_bits(n: int) -> None:
    bits = 8 * (SparseLoco().nbytes(Layout.flat(n)) - 16) / n
    assert bits == 14 * 64 / 4096  # 0.219
    assert 32 / bits == pytest.approx(146, rel=0.01)


def test_sparse_loco_keeps_exactly_k_a_block() -> None:
    out = decoded(SparseLoco(), gauss(5 * 4096 + 100)).nonzero()[:, 0]
    assert (out // 4096).bincount().tolist() == [64] * 6


def test_sparse_loco_values_are_four_means() -> None:
    x = gauss(1 << 16)
    out = decoded(SparseLoco(), x)
    kept = out != 0
    assert out[kept].unique().numel() <= 4
    assert (out[kept].sign() == x[kept].sign()).all()
    assert (out[kept] - x[kept]).square().mean() < 0.1 * x[kept].square().mean()


def test_what_is_sent_and_what_is_kept_is_what_there_was() -> None:
    """e_after + decoded = e_before, with e_before = 0.95 e + x and the values as quantised."""
    layout, e, x = Layout.flat(8192), gauss(8192, seed=1), gauss(8192, seed=2)
    before = x + e * 0.95
    payload = encode_with_feedback(SparseLoco(), x, e, layout, alpha=0.95, beta=0.95)
    q = SparseLoco().decode(payload, layout)
    assert torch.allclose(e + q, before, rtol=0, atol=5e-7)
    assert (q != 0).sum() == 128


def test_places_of_12_bits_are_a_bijection() -> None:
    every = torch.arange(4096)
    packed = pack_wide(every, 12)
    assert packed.numel() == 4096 * 3 // 2
    assert torch.equal(unpack_wide(packed, 4096, 12), every)
    for count in (2, 64, 126):
        some = every.flip(0)[:count]
        assert torch.equal(unpack_wide(pack_wide(some, 12), count, 12), some)


@pytest.mark.parametrize(("m", "n"), [(64, 64), (1, 64), (48, 3), (1, 1), (13, 50)])
def test_the_dct_is_orthonormal_and_the_same_on_every_tier(m: int, n: int) -> None:
    x = gauss(7, m, n)
    y = dct(x.clone())
    assert (idct(y.clone()) - x).abs().max() < 1e-5
    assert y.norm().item() == pytest.approx(x.norm().item(), rel=1e-6)
    exact = basis(m).double() @ x.double() @ basis(n).double().T
    assert (y - exact).abs().max() < 1e-5
    with kernels.force("reference"):
        assert torch.equal(dct(x.clone()), y)
        assert torch.equal(idct(y.clone()), idct(y.clone()))


def test_dct_of_a_constant_is_one_coefficient() -> None:
    y = dct(torch.ones(1, 64, 64))
    assert y[0, 0, 0].item() == pytest.approx(64, rel=1e-6)
    y[0, 0, 0] = 0
    assert y.abs().max() < 1e-4


def test_dct_topk_keeps_exactly_k_a_chunk() -> None:
    c = DctTopK()
    payload = c.encode(gauss(SQUARE.numel), SQUARE)
    places, values, _ = c.read(payload.body, SQUARE)
    assert (places // 4096).bincount().tolist() == [32] * (4 * 8)
    assert places.unique().numel() == places.numel()
    assert (values != 0).all()


def test_dct_topk_bits() -> None:
    assert 8 * (DctTopK().nbytes(SQUARE) - 4) / SQUARE.numel == 28 * 32 / 4096  # 0.219


def test_dct_topk_of_a_smooth_matrix_loses_little() -> None:
    i, j = torch.meshgrid(torch.linspace(0, 3, 256), torch.linspace(0, 5, 512), indexing="ij")
    x = (i.sin() + (j * 2).cos() * i).reshape(-1)
    assert (decoded(DctTopK(), x, layout=SQUARE) - x).norm() < 0.01 * x.norm()


def test_chunks_are_the_largest_divisors_of_each_axis() -> None:
    assert [(g.m, g.n, g.cells) for g in grids(LAYOUT, 64)] == [(8, 27, 1), (1, 8, 1), (10, 11, 7)]
    cut = Layout(("w", "b", "one"), ((96, 130), (200,), ()))
    assert [(g.m, g.n, g.cells) for g in grids(cut, 64)] == [(48, 26, 10), (1, 50, 4), (1, 1, 1)]


def test_chunks_go_there_and_back() -> None:
    layout = Layout(("w",), ((96, 130),))
    (grid,) = grids(layout, 64)
    x = gauss(layout.numel)
    assert torch.equal(grid.join(grid.chunks(x)), x)
    assert torch.equal(grid.chunks(x)[1], x.view(96, 130)[:48, 26:52])


@pytest.mark.parametrize("c", [DctTopK(chunk=8), SparseLoco(block=100, k=7)], ids=str)
def test_a_place_outside_its_chunk_is_refused(c: DctTopK | SparseLoco) -> None:
    layout = Layout.flat(700)
    payload = c.encode(gauss(700), layout)
    payload.body[-20:] = 255  # the places are at the end
    bad = Payload(payload.data).seal(scheme(c, layout), Key())
    with pytest.raises(PayloadError, match="a place lies outside"):
        c.decode(bad, layout)


def test_settings_outside_their_range_are_refused() -> None:
    with pytest.raises(ValueError, match="write 1 <= k <= block"):
        SparseLoco(block=10, k=11)
    with pytest.raises(ValueError, match="write 1 <= chunk <= 256 and k >= 1"):
        DctTopK(chunk=0)
    with pytest.raises(ValueError, match="write a positive block size"):
        Blockwise8(block=0)


def test_fp4_without_a_mantissa_is_zero_and_seven_powers_of_two() -> None:
    """A tie goes to the larger of two powers, as in IEEE 754 where both are odd, and to zero below the smallest."""
    x = torch.tensor([16.0, 12.0, 11.9, 6.0, -1.5, 0.375, 0.25, 0.126, 0.125, -0.1, 0.0])
    expected = torch.tensor([16.0, 16.0, 8.0, 8.0, -2.0, 0.5, 0.25, 0.25, 0.0, 0.0, 0.0])
    assert torch.equal(decoded(MiniFloat("e3m0", block=None), x), expected)
    assert MiniFloat("e3m0", block=32).nbytes(Layout.flat(1024)) == 1024 // 2 + 4 * 32
