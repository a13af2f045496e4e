"""Selection in C++ against its definition in torch, and both against torch.topk."""

from __future__ import annotations

import math

import pytest
import torch
from battery import NATIVE, vector
from torch import Tensor

from thinwire import Key, kernels
from thinwire.kernels import selection

SIZES = [0, 1, 2, 63, 64, 65, 1000, 4097, 300_001]
KINDS = ["gauss", "heavy", "ties", "zero", "ramp", "spike", "nan"]


def case(n: int, kind: str) -> Tensor:
    if kind in ("gauss", "heavy", "zero"):
        return vector(n, kind)
    if kind == "ties":
        return vector(n).round()
    if kind == "ramp":  # for which a strided sample is no guide
        return torch.arange(n).float()
    if kind == "spike":
        x = torch.zeros(n)
        x[1::97] = -1.0
        return x
    x = vector(n)
    x[n // 2 :: 11] = math.nan
    x[n // 3 :: 17] = -math.inf
    return x


Pair = tuple[Tensor, Tensor]


def same(a: Pair, b: Pair) -> bool:
    return torch.equal(a[0], b[0]) and torch.equal(a[1].view(torch.int32), b[1].view(torch.int32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_every_tier_equals_torch(n: int, kind: str) -> None:
    x = case(n, kind)

    def selected() -> dict[str, Pair]:
        out = {f"top {k}": selection.top(x, k) for k in {0, 1, min(3, n), n // 100, n // 2, n}}
        out |= {f"sum {a}": selection.top_sum(x, x.flip(0) + 1, a, 1 + n // 50) for a in (1.0, 0.3)}
        out |= {f"over {tau}": selection.over(x, tau) for tau in (0.0, 1.0, 2.5, math.inf)}
        for block, k in ((64, 3), (4096, 64), (100, 100), (10, 20)):
            if n < 5000:
                got = out[f"{k} of {block}"] = selection.top_blocks(x, block, k)
                assert got[0].numel() == selection.block_entries(n, block, k)
        return out

    with kernels.force("reference"):
        expected = selected()
    for tier in NATIVE:
        with kernels.force(tier):
            got = selected()
        for what, pair in expected.items():
            assert same(got[what], pair), (what, tier)


def test_the_largest_are_those_of_torch_topk() -> None:
    x = vector(20_000, "heavy")
    places, values = selection.top(x, 200)
    largest = torch.topk(x.abs(), 200).values
    assert torch.equal(values.abs().sort(descending=True).values, largest)
    assert torch.equal(x[places], values)
    assert (places.diff() > 0).all()


def test_of_equal_magnitudes_the_first_are_taken() -> None:
    x = torch.tensor([1.0, -2.0, 2.0, -2.0, 2.0])
    assert selection.top(x, 2)[0].tolist() == [1, 2]
    assert selection.top(torch.ones(500_000), 3)[0].tolist() == [0, 1, 2]


def test_nan_is_above_infinity_above_numbers() -> None:
    x = torch.tensor([3e38, math.nan, -math.inf, 1.0])
    assert selection.top(x, 1)[0].tolist() == [1]
    assert selection.top(x, 2)[0].tolist() == [1, 2]


@pytest.mark.parametrize(("n", "k"), [(1, 0), (1, 1), (10, 10), (1000, 10), (1000, 999), (5000, 1234)])
def test_subsets_are_the_same_on_all_tiers(n: int, k: int) -> None:
    got = selection.subset(Key(seed=5, step=2), n, k)
    with kernels.force("reference"):
        assert torch.equal(selection.subset(Key(seed=5, step=2), n, k), got)
    assert got.unique().numel() == k
    assert not k or (int(got.min()) >= 0 and int(got.max()) < n)


def test_subsets_are_uniform() -> None:
    n, k, draws = 40, 10, 4000
    hits = torch.zeros(n)
    for step in range(draws):
        hits[selection.subset(Key(seed=1, step=step), n, k)] += 1
    z = (hits / draws - k / n) / math.sqrt(k / n * (1 - k / n) / draws)
    assert z.abs().max() < 4


def test_merge_adds() -> None:
    a, b = vector(1000), vector(1000, seed=1)
    sparse_a, sparse_b = selection.top(a, 300), selection.top(b, 500)
    dense = torch.zeros(1000).index_add_(0, *sparse_a).index_add_(0, *sparse_b)
    places, values = selection.merge(sparse_a, sparse_b)
    assert torch.equal(torch.zeros(1000).index_add_(0, places, values), dense)
    assert same(selection.merge(sparse_b, sparse_a), (places, values))  # partners agree on the bits
    with kernels.force("reference"):
        assert same(selection.merge(sparse_a, sparse_b), (places, values))
    nothing = torch.empty(0, dtype=torch.int64), torch.empty(0)
    assert same(selection.merge(sparse_a, nothing), sparse_a)


def test_other_input_is_refused() -> None:
    for x in (torch.zeros(4, dtype=torch.float64), torch.zeros(2, 2), torch.zeros(8)[::2]):
        with pytest.raises(ValueError, match=r"write x\.float\(\)"):
            selection.top(x, 1)


@pytest.mark.parametrize("n", [1, 65, 5000, 300_001])
@pytest.mark.parametrize("beta", [1.0, 0.9])
def test_what_is_added_and_what_is_left_are_the_same_on_all_tiers(n: int, beta: float) -> None:
    x, e, at = vector(n), vector(n).flip(0) * 3, torch.arange(0, n, 7)
    values = {"finite": x[at] * 1.1, "nan": torch.where(at == at[-1], math.nan, x[at])}

    def made() -> list[Tensor]:
        out = []
        for sent in values.values():
            out += [x.clone(), e.clone()]
            selection.add_at(out[-2], at, sent, 0.3)
            selection.keep_at(out[-1], x, at, sent, beta)
        return out

    with kernels.force("reference"):
        expected = made()
    assert expected[2].isnan().all()
    assert torch.equal(expected[3], e)
    for tier in NATIVE:
        with kernels.force(tier):
            got = made()
        for one, two in zip(got, expected, strict=True):
            assert torch.equal(one.view(torch.int32), two.view(torch.int32)), tier


@pytest.mark.parametrize("at", [[0, 5], [-1, 2], [2, 1], [1, 1]])
def test_places_that_cannot_be_change_nothing(at: list[int]) -> None:
    x, e, places, sent = torch.ones(5), torch.ones(5), torch.tensor(at), torch.ones(2)
    with pytest.raises(IndexError, match="ascending numbers below 5"):
        selection.keep_at(e, x, places, sent, 1.0)
    if min(at) < 0 or max(at) >= 5:
        with pytest.raises(IndexError):
            selection.add_at(x, places, sent, 1.0)
    assert torch.equal(torch.cat((x, e)), torch.ones(10))
