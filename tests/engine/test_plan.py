"""The plan: what shares a bucket, what travels aside, where buckets are cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from thinwire.core.method import Overlap
from thinwire.engine.plan import Item, Plan, chunks, plan_of

CPU, META = torch.device("cpu"), torch.device("meta")
MB = 1 << 18  # float32 elements in a megabyte


LORA = [
    Item(f"{layer}.{name}", shape, CPU)
    for layer in range(24)
    for name, shape in (("A", (8, 768)), ("B", (768, 8)), ("gain", (768,)))
]


def of_buckets(mb: float) -> tw.Method:
    return replace(tw.methods.qsgd(bits=4), overlap=Overlap(bucket_mb=mb))


def names(plan: Plan) -> list[list[str]]:
    return [[item.name for item in parcel.items] for parcel in plan.parcels]


def aside(method: str, items: list[Item], min_size: int | None = None, exclude: tuple[str, ...] = ()) -> set[str]:
    """What travels uncompressed, without the numbers of layers."""
    plan = plan_of(tw.method(method), items, min_size, exclude)
    return {item.name.split(".")[-1] for one in plan.parcels if not one.compressed for item in one.items}


def test_buckets_are_filled_from_the_last_layer_and_small_tensors_travel_aside() -> None:
    items = [Item("a", (MB,), CPU), Item("bias", (10,), CPU), Item("b", (MB,), CPU), Item("c", (2 * MB,), CPU)]
    plan = plan_of(of_buckets(2.0), items, None, ())
    assert names(plan) == [["c"], ["b", "a"], ["bias"]]
    assert [parcel.compressed for parcel in plan.parcels] == [True, True, False]
    assert names(plan_of(of_buckets(0.001), items, 0, ["[bc]"])) == [
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
    assert names(plan_of(of_buckets(1.0), items, 0, ())) == [
        ["d", "c"],
        ["b"],
        ["a"],
    ]
    assert names(plan_of(of_buckets(1.0), items, 99, ())) == [
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


def test_votes_carry_every_tensor() -> None:
    items = [Item("w", (8, 8), CPU), Item("b", (8,), CPU)]
    assert aside("majority-vote", items) == aside("demo", items) == set()
    assert aside("ef-signsgd", items) == aside("demo:sign=false", items) == {"w", "b"}
    assert aside("majority-vote", items, 9) == {"b"}


def test_small_matrices_are_compressed_where_they_add_up_and_gains_are_not() -> None:
    for method in (
        "int4",
        "ef-signsgd",
        "terngrad",
        "powersgd",
        "topk",
        "fp16",
        "lag",
        "atomo",
        "one-bit-sgd",
        "lags",
    ):
        assert aside(method, LORA) == {"gain"}
    assert aside("int4", LORA, exclude=("*.B",)) == {"gain", "B"}
    assert aside("int4", LORA, 10_000) == {"A", "B", "gain"}  # what a user says holds
    assert aside("int4", LORA, 6144) == {"gain"}
    few = [Item(f"{n}.w", (70, 70), CPU) for n in range(2)]  # 9,800 elements
    assert aside("int4", few) == {"w"}
    assert aside("int4", [*few, Item("2.w", (20, 10), CPU)]) == set()
    assert aside("int4", [*LORA, Item("row", (1, 1, 768), CPU)]) == {"gain", "row"}


def test_a_method_of_matrices_leaves_alone_what_it_cannot_shrink() -> None:
    tall = [Item(f"{n}.tall", (4000, 2), CPU) for n in range(4)]
    square = [Item(f"{n}.square", (90, 90), CPU) for n in range(4)]
    assert aside("powersgd:rank=4", [*tall, *square]) == {"tall"}
    assert aside("terngrad", [*tall, *square]) == set()
    scraps = [Item(f"{n}.scrap", (2, 3), CPU) for n in range(3000)]
    assert aside("one-bit-sgd", scraps) == {"scrap"}  # a scale for every other element
    assert aside("int4", scraps) == set()


def test_small_matrices_stay_as_they_are_where_they_add_little_to_the_bytes() -> None:
    """As the first layers of a ResNet, for whose gradients the last bucket would have to wait."""
    small = [Item("stem", (64, 3, 7, 7), CPU), Item("first", (64, 64, 1, 1), CPU)]
    big = Item("big", (512, 512, 3, 3), CPU)
    assert aside("int4", [*small, big]) == {"stem", "first"}  # 54 kB beside 1.2 MB
    assert aside("dgc", [*small, big]) == set()  # beside 19 kB
    assert aside("int4", [*small, big], exclude=("big",)) == {"stem", "first", "big"}
    assert aside("int4", [*LORA, *small, big]) == {"gain"}


def test_all_ranks_of_a_shard_group_find_the_same() -> None:
    for rows in (0, 1, 3):  # of eight
        items = [Item(f"{n}.A", (rows, 768), CPU, whole=8 * 768) for n in range(2)]
        assert aside("int4", items) == (set() if rows else {"A"})


def test_small_matrices_share_buckets_where_every_layer_has_its_own() -> None:
    big = Item("big", (200, 200), CPU)
    small = [Item(f"{n}", (60, 60), CPU) for n in range(6)]  # 3,600 elements each
    plan = plan_of(tw.methods.lags(), [*small, big], None, ())
    assert names(plan) == [["big"], ["5", "4", "3"], ["2", "1", "0"]]
    assert len(plan_of(tw.methods.lags(), [*small, big], 0, ()).parcels) == 7


def test_a_plan_says_what_share_travels_compressed() -> None:
    items = [Item("w", (300, 100), CPU), Item("b", (10_000,), CPU, 1), Item("c", (8000,), CPU)]
    plan = plan_of(tw.methods.int4(), items, None, ["b"])
    assert plan.share == 0.625
    assert str(plan).endswith("\n62.5% of the bytes travel compressed")
    plain = plan_of(tw.methods.sgd(), items, None, ())
    assert plain.share == 0
    assert "travel compressed" not in str(plain)
