"""The plan: what shares a bucket, what travels aside, where buckets are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from thinwire.core.method import Overlap
from thinwire.engine.plan import MIN_SIZE, Item, chunks, make_plan, plan_of, smallest

CPU, META = torch.device("cpu"), torch.device("meta")
MB = 1 << 18  # float32 elements in a megabyte


def names(plan: object) -> list[list[str]]:
    return [[item.name for item in parcel.items] for parcel in plan.parcels]  # type: ignore[attr-defined]


def test_buckets_are_filled_from_the_last_layer_and_small_tensors_travel_aside() -> None:
    items = [Item("a", (MB,), CPU), Item("bias", (10,), CPU), Item("b", (MB,), CPU), Item("c", (2 * MB,), CPU)]
    plan = make_plan(items, "qsgd", overlap=Overlap(bucket_mb=2.0), min_size=MIN_SIZE, exclude=())
    assert names(plan) == [["c"], ["b", "a"], ["bias"]]
    assert [parcel.compressed for parcel in plan.parcels] == [True, True, False]
    assert names(make_plan(items, "", overlap=Overlap(bucket_mb=0.001), min_size=0, exclude=["[bc]"])) == [
        ["bias"],
        ["a"],
        ["c", "b"],
    ]


def test_a_tensor_that_is_chosen_for_must_be_there() -> None:
    items = [Item("head.weight", (9,), CPU), Item("head.bias", (9,), CPU)]
    assert plan_of(tw.methods.lags(ratios={"head.bias": 0.5}), items, 0, ())
    with pytest.raises(ValueError, match=r"'head\.wieght', which is no parameter; did you mean 'head\.weight'"):
        plan_of(tw.methods.lags(ratios={"head.wieght": 0.5}), items, 0, ())


def test_groups_and_devices_do_not_share_a_bucket() -> None:
    items = [Item("a", (9,), CPU, 0), Item("b", (9,), CPU, 1), Item("c", (9,), META, 1), Item("d", (9,), META, 1)]
    assert names(make_plan(items, "", overlap=Overlap(bucket_mb=1.0), min_size=0, exclude=())) == [
        ["d", "c"],
        ["b"],
        ["a"],
    ]
    assert names(make_plan(items, "", overlap=Overlap(bucket_mb=1.0), min_size=99, exclude=())) == [
        ["b", "a"],
        ["d", "c"],
    ]


@given(st.integers(0, 1 << 22), st.floats(0.001, 8.0))
def test_chunks_cover_a_bucket_at_tiles(numel: int, size: float) -> None:
    cuts = chunks(numel, size)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == numel
    assert all(a[1] == b[0] for a, b in pairwise(cuts))
    assert all(start % 512 == 0 for start, _ in cuts)
    assert all(stop - start <= max(512, size * MB + 512) for start, stop in cuts)


@pytest.mark.parametrize(("method", "size"), [("qsgd", MIN_SIZE), ("ef-signsgd", MIN_SIZE), ("majority-vote", 0)])
def test_votes_carry_every_tensor(method: str, size: int) -> None:
    assert smallest(tw.method(method)) == size
