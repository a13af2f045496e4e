"""States that are one number per element, per tensor or per rank: made, cut, stored, and taken up by another plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from thinwire import Channel, Comm, Context, Layout, Overlap
from thinwire.compressors import Identity
from thinwire.core.exchange import Exchange
from thinwire.core.memory import Memory
from thinwire.core.slots import Resize, Slot, Slots, cut, make
from thinwire.core.types import State
from thinwire.engine.bucket import Bucket
from thinwire.engine.checkpoint import _resized
from thinwire.engine.damage import check_tensors
from thinwire.engine.pieces import Held, Piece, assembled, covered, held, pieces, stored
from thinwire.engine.plan import Item, Parcel
from thinwire.exchange import AllGather, AllReduce, Hierarchical, ScatterGather

NAMES = ("w", "b", "v", "none")
SHAPES = ((40, 20), (20,), (700,), (0,))
LAYOUT = Layout(NAMES, SHAPES)


@dataclass(frozen=True)
class Counted(Exchange):
    """Keeps one number of each kind, and does nothing."""

    name: ClassVar[str] = "counted"
    whole: bool = True
    on_resize: Resize = "mean"
    channel: Channel = field(default_factory=lambda: Channel(Identity()))

    @property
    def hops(self) -> dict[str, Channel]:
        return {"": self.channel}

    @property
    def plain(self) -> Exchange:
        return AllReduce()

    @property
    def whole_tensors(self) -> bool:
        return self.whole

    def slots(self, layout: Layout, comm: Comm) -> dict[str, Slot]:
        return {
            "each": Slot(on_resize=self.on_resize),
            "scale": Slot("tensor", on_resize=self.on_resize, fill=2.0),
            "weight": Slot("rank", on_resize=self.on_resize, dtype=torch.float64, fill=1.0),
        }

    async def __call__(self, x: Tensor, state: State, ctx: Context) -> Tensor:
        return x


def buckets(exchange: Exchange, groups: list[str], rank: int = 0, ranks: int = 1) -> list[Bucket]:
    """One bucket for each word, whose letters are the first ones of its parameters."""
    items = {name[0]: Item(name, shape, torch.device("cpu")) for name, shape in zip(NAMES, SHAPES, strict=True)}
    parcels = [Parcel(tuple(items[letter] for letter in group), compressed=True) for group in groups]
    return [Bucket(i, parcel, exchange, Comm(rank, ranks), 2048 / 2**20) for i, parcel in enumerate(parcels)]


def numbered(found: list[Bucket]) -> dict[str, Tensor]:
    """Other numbers in every entry, and what is stored of them."""
    number = 0.0
    for bucket in found:
        for chunk in bucket.chunks:
            for tensor in chunk.state.values():
                tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + number)
                number += 1000
    return stored(pieces(Comm(0, 1), found))


def take_up(found: list[Bucket], saved: Held) -> None:
    for piece in pieces(Comm(0, 1), found):
        if piece.leads:
            assert covered(saved, piece)
            piece.data.copy_(assembled([saved], piece))


def test_tensors_follow_from_the_declaration() -> None:
    state = Counted().init(LAYOUT, Comm(0, 1))
    assert {name: tuple(t.shape) for name, t in state.items()} == {"each": (1520,), "scale": (4,), "weight": ()}
    assert state["each"].eq(0).all()
    assert state["scale"].eq(2).all()
    assert state["weight"].dtype == torch.float64
    assert float(state["weight"]) == 1.0


def test_only_what_is_per_element_is_cut() -> None:
    slots = Counted().slots(LAYOUT, Comm(0, 1))
    state = make(slots, LAYOUT)
    some = cut(state, slots, 100, 300)
    assert some["each"].shape == (200,)
    assert some["each"].data_ptr() == state["each"][100:].data_ptr()
    assert some["scale"] is state["scale"]
    assert some["weight"] is state["weight"]


def test_one_entry_for_each_parameter() -> None:
    saved = numbered(buckets(Counted(), ["wb", "vn"]))
    assert {key: t.tolist() for key, t in saved.items() if not key.startswith("each")} == {
        "scale|0:800|w": [1000.0],
        "scale|0:20|b": [1001.0],
        "scale|0:700|v": [4000.0],
        "weight|0:800|w": [2000.0],
        "weight|0:20|b": [2000.0],
        "weight|0:700|v": [5000.0],
    }
    assert {key for key in saved if key.startswith("each")} == {"each|0|w", "each|0|b", "each|0|v"}
    check_tensors("it", {"tensors": saved, "parameters": dict(zip(NAMES, SHAPES, strict=True))}, ())


def test_another_plan_takes_them_up() -> None:
    """Where several vectors become one, the number of the first counts; where one becomes several, all get it."""
    saved = held(numbered(buckets(Counted(), ["wb", "vn"])))
    found = buckets(Counted(), ["v", "b", "nw"])
    take_up(found, saved)
    assert [bucket.chunks[0].state["weight"].item() for bucket in found] == [5000.0, 2000.0, 2000.0]
    assert [bucket.chunks[0].state["scale"].tolist() for bucket in found] == [[4000.0], [1001.0], [1000.0]]
    merged = buckets(Counted(), ["vwbn"])
    take_up(merged, saved)
    assert merged[0].chunks[0].state["weight"].item() == 5000.0


def test_plain_sums_are_cut_where_pieces_have_a_size() -> None:
    parcel = Parcel((Item("v", (1500,), torch.device("cpu")),), compressed=False)
    whole, cut = (Bucket(0, parcel, AllReduce(), Comm(0, 2), 16.0, mb) for mb in (math.inf, 2048 / 2**20))
    assert [(one.start, one.stop) for one in whole.sums] == [(0, 1500)]
    assert [(one.start, one.stop) for one in cut.sums] == [(0, 512), (512, 1024), (1024, 1500)]
    assert Overlap().sizes("cpu").sum_mb == math.inf
    assert Overlap(chunk_mb=4).sizes("cpu").sum_mb == 4
    assert Overlap(into_forward="ready").sizes("cpu").sum_mb == Overlap().sizes("cpu").chunk_mb


def test_a_parameter_in_several_chunks() -> None:
    """Each chunk is a vector of its own; one that begins inside a parameter takes up what stood there."""
    saved = held(numbered(buckets(Counted(), ["wbvn"])))
    found = buckets(Counted(whole=False), ["wbvn"])
    assert [(chunk.start, chunk.stop) for chunk in found[0].chunks] == [(0, 512), (512, 1024), (1024, 1520)]
    take_up(found, saved)
    assert [chunk.state["weight"].item() for chunk in found[0].chunks] == [2000.0] * 3
    back = buckets(Counted(), ["wbvn"])
    again = stored(pieces(Comm(0, 1), found))
    assert again["weight|0:512|w"].item() == again["weight|512:800|w"].item() == 2000.0
    take_up(back, held(again))
    assert torch.equal(back[0].chunks[0].state["scale"][:3], torch.tensor([1000.0, 1001.0, 1002.0]))


def test_one_number_per_element_may_be_read_as_one_for_all() -> None:
    """As push-sum's weight was stored once: a copy for every element."""
    old = {"weight|0|w": torch.full((800,), 0.3, dtype=torch.float64), "weight|0|b": torch.full((20,), 0.3).double()}
    check_tensors("it", {"tensors": old, "parameters": dict(zip(NAMES, SHAPES, strict=True))}, ())
    (bucket,) = buckets(Counted(), ["wb"])
    for piece in pieces(Comm(0, 1), [bucket]):
        if piece.leads and piece.where[0] == "weight":
            piece.data.copy_(assembled([held(old)], piece))
    assert bucket.chunks[0].state["weight"].item() == 0.3


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("mean", [2.0, 2.0, 2.0]), ("sum", [4 / 3, 4 / 3, 4 / 3]), ("reset", [None] * 3), ("keep", [1.0, 3.0, None])],
)
def test_on_another_number_of_ranks(rule: Resize, expected: list[float | None]) -> None:
    saved: dict[int, Held] = {}
    for rank, value in enumerate((1.0, 3.0)):
        found = buckets(Counted(on_resize=rule), ["wb"], rank, 2)
        for tensor in found[0].chunks[0].state.values():
            tensor.fill_(value)
        saved[rank] = held(stored(pieces(Comm(rank, 2), found)))
    for rank, due in enumerate(expected):
        for piece in pieces(Comm(rank, 3), buckets(Counted(on_resize=rule), ["wb"], rank, 3)):
            data = _resized(saved, piece, Comm(rank, 3))
            assert (data is None) == (due is None), piece.where
            if data is not None and due is not None:
                assert torch.allclose(data, torch.full_like(data, due)), piece.where


def test_what_is_replicated_is_taken_once() -> None:
    wanted = Piece(("recv.shift", "b"), 0, 2, torch.zeros(2), Slot(replicated=True, on_resize="reset"))
    saved = {rank: held({"recv.shift|0|b": torch.tensor([1.0, 2.0])}) for rank in range(3)}
    saved[0] = held({"recv.shift|1|b": torch.tensor([2.0])})
    found = _resized(saved, wanted, Comm(0, 2))
    assert found is not None
    assert found.tolist() == [1.0, 2.0]


def test_in_a_shard_numbers_belong_to_its_tensors() -> None:
    exchange = Hierarchical(Counted(), 2)
    comm = Comm(1, 4)  # the second half: the end of `w`, `b` and `v`
    assert exchange.span("scale", LAYOUT, comm) == (1024, 1520)
    state = exchange.init(LAYOUT, Comm(0, 4))
    assert {name: tuple(t.shape) for name, t in state.items()} == {"each": (1024,), "scale": (3,), "weight": ()}
    found = buckets(exchange, ["wbvn"], 0, 4)
    keys = {piece.key for piece in pieces(Comm(0, 4), found)}
    assert {"scale|0:800|w", "scale|0:20|b", "scale|0:204|v", "weight|0:204|v"} <= keys


@dataclass(frozen=True)
class Steps(Memory):
    """Counts what was sent."""

    name: ClassVar[str] = "steps"

    def slots(self) -> Slots:
        return {"count": Slot("rank")}

    def before(self, x: Tensor, state: State, ctx: Context) -> Tensor | None:
        return x

    def after(self, x: Tensor, sent: Tensor, state: State) -> None:
        state["count"] += 1

    def receive(self, got: Tensor, state: State) -> Tensor:
        return got


def test_a_memory_of_whole_vectors_needs_them_whole() -> None:
    assert AllGather(Channel(Identity(), Steps())).init(LAYOUT, Comm(0, 2))["send.count"].shape == ()
    with pytest.raises(ValueError, match=r"keeps numbers of whole vectors; write AllGather\(Channel"):
        ScatterGather(Channel(Identity(), Steps()))


@pytest.mark.parametrize(
    ("key", "data", "told"),
    [
        ("weight|0:900|w", torch.ones(1), "with elements 0 to 900, but w has 800"),
        ("weight|5:5|w", torch.ones(1), "expected one number for some elements"),
        ("weight|0:9|w", torch.ones(9), "expected one number for some elements"),
        ("weight|0:x|w", torch.ones(1), "whose name is not 'memory|start|parameter'"),
        ("weight|4:9|w", torch.ones(1), "which hold the same elements"),
        ("weight|9:12|w", torch.full((1,), torch.nan), "not finite"),
    ],
)
def test_damage_is_named(key: str, data: Tensor, told: str) -> None:
    state = {"tensors": {"weight|0:5|w": torch.ones(1), key: data}, "parameters": {"w": [40, 20]}}
    with pytest.raises(ValueError, match=r"it has") as error:
        check_tensors("it", state, ())
    assert told in str(error.value)
