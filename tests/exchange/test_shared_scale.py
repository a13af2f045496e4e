"""Shared scale: integers are added exactly, and their sum comes back exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from battery import INSTANCES, LAYOUT, vector
from torch import Tensor

from thinwire import Channel, Comm, Context, Key, Layout, PayloadError, run
from thinwire.compressors import IntBlock, LowPrecision, NaturalDithering, Qsgd, ScaledSign, TernGrad
from thinwire.compressors.block import BlockQuantiser
from thinwire.core.comm import AllGatherRequest, AllToAllRequest
from thinwire.core.compressor import Compressor
from thinwire.core.payload import HEADER, Payload
from thinwire.exchange import AllGather, SharedScale
from thinwire.exchange.shards import shards
from thinwire.kernels.spec import Kind
from thinwire.lab.world import World

ADD: list[BlockQuantiser] = [
    TernGrad(),
    TernGrad(clip=None),
    Qsgd(bits=4),
    Qsgd(bits=8, block=100),
    Qsgd(levels=4, norm="l2"),
    LowPrecision(),
    IntBlock(bits=4, block=128),
]
BIG = Layout(("w", "b", "v"), ((60, 50), (133,), (900,)))


def sums(c: BlockQuantiser, xs: list[Tensor], layout: Layout) -> tuple[Tensor, Tensor]:
    """The integer sums and the shared scale of every element, from the definition.

    Blocks are a shard's; tensors, where they have the scale, are whole, and each rank clips them to its own.
    """
    total, scale = torch.zeros(layout.numel, dtype=torch.int64), torch.zeros(layout.numel)
    if isinstance(c, TernGrad):
        own = [c.scales(x, layout)[c.blocks(layout).index] for x in xs]
        xs = [torch.maximum(torch.minimum(x, s), -s) for x, s in zip(xs, own, strict=True)]
        scale = torch.stack(own).amax(0)
    for cut in shards(layout, len(xs)):
        if not cut.layout.numel:
            continue
        part = slice(cut.start, cut.stop)
        shared = torch.stack([c.scales(x[part], cut.layout) for x in xs]).amax(0)
        if isinstance(c, TernGrad):
            shared = scale[part][c.blocks(cut.layout).starts[:-1]]  # type: ignore[index]
        scale[part] = shared[c.blocks(cut.layout).index]
        for rank, x in enumerate(xs):
            key = Key(seed=1, rank=rank, offset=cut.start)
            decoded = c.decode(c.encode_scaled(x[part], shared, cut.layout, key), cut.layout)
            total[part] += (decoded.double() * c.quant.levels / scale[part].double()).round().long()
    return total, scale


@pytest.mark.parametrize("layout", [LAYOUT, BIG], ids=["994", "4033"])
@pytest.mark.parametrize("c", ADD, ids=lambda c: c.id)
def test_the_result_is_the_sum_of_the_integers(c: BlockQuantiser, layout: Layout) -> None:
    xs = [vector(layout.numel, seed=r) * (1 + r) for r in range(4)]
    out = World(SharedScale(c), layout).step(xs)
    total, scale = sums(c, xs, layout)
    top = 4 * c.quant.levels
    assert total.abs().max() <= top
    assert torch.equal((out.double() * top / scale.double()).round().long(), total)
    assert torch.equal(out, total.float() * (scale / torch.full_like(scale, top)))


def test_it_is_unbiased_and_close() -> None:
    xs = [vector(600, seed=r) for r in range(4)]
    world = World(SharedScale(Qsgd(bits=4)), Layout.flat(600))
    mean = sum((world.step(xs) for _ in range(100)), torch.zeros(600)) / 100
    assert (mean - torch.stack(xs).mean(0)).abs().max() < 0.1


@pytest.mark.parametrize(("c", "n"), [(TernGrad(), 4), (Qsgd(bits=4), 8), (Qsgd(bits=8), 4), (Qsgd(bits=8), 7)])
def test_bytes(c: BlockQuantiser, n: int) -> None:
    """It takes b bits per element up, ceil(log2(2 n s + 1)) down, and some bytes for headers and scales."""
    d = 512 * n * 4
    world = World(SharedScale(c), Layout.flat(d), n)
    world.step([vector(d, seed=r) for r in range(n)])
    down = next(b for b in range(1, 17) if 2**b >= 2 * n * c.quant.levels + 1)
    assert SharedScale(c).sum_width(n) == down
    fields = (n - 1) * d // n * (c.width + down) // 8
    scales = 3 * 4 * sum(c.blocks(s.layout).count for s in shards(Layout.flat(d), n))
    assert fields < world.traffic[0].bytes < fields + scales + 2 * 32 * n
    assert world.traffic[0].bytes < 4 * 2 * (n - 1) * d // n  # an all-reduce of float32


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_reaches_everybody(bad: float) -> None:
    xs = [vector(1300, seed=r) for r in range(4)]
    xs[2][700] = bad
    out = World(SharedScale(Qsgd(bits=4, block=100)), Layout.flat(1300)).step(xs)
    assert out[612:712].isnan().all()  # the block, counted from the shard's start
    assert out[:612].isfinite().all()
    assert out[712:].isfinite().all()


@pytest.mark.parametrize("c", [c for c in INSTANCES if c not in ADD], ids=lambda c: c.id)
def test_only_symbols_that_add_are_taken(c: Compressor) -> None:
    if isinstance(c, BlockQuantiser) and c.quant.kind is Kind.SIGNED:
        SharedScale(c)
        return
    with pytest.raises(ValueError, match=r"SharedScale adds integer symbols, .* write AllGather\(Channel\("):
        SharedScale(c)  # type: ignore[arg-type]


def test_refused_by_name() -> None:
    for c in (ScaledSign(), NaturalDithering(), Qsgd(bits=4, symmetric=False), Qsgd(bits=1)):
        AllGather(Channel(c))
        with pytest.raises(ValueError, match="do not add to multiples of one step"):
            SharedScale(c)


@pytest.mark.parametrize("hop", [0, 1])
@pytest.mark.parametrize("damage", ["checksum", "step", "size"])
def test_payloads_are_checked_on_both_hops(hop: int, damage: str) -> None:
    async def program(comm: Comm) -> Tensor:
        ctx = Context(comm, Layout.flat(1100), Key(rank=comm.rank))
        coroutine = SharedScale(TernGrad())(vector(1100, seed=comm.rank), {}, ctx)
        answer = None
        while True:
            try:
                request = coroutine.send(answer)
            except StopIteration as done:
                result: Tensor = done.value
                return result
            if comm.rank == 1 and isinstance(request, (AllToAllRequest, AllGatherRequest)[hop]):
                request = spoilt(request, damage, hop)
            answer = await request

    messages = {
        "checksum": "checksum does not match",
        "step": "of step 1.* arrived in step 0",
        "size": "promised sizes",
    }
    with pytest.raises((PayloadError, ValueError), match=messages[damage]):
        run(program, 2)


def spoilt(request: AllToAllRequest | AllGatherRequest, damage: str, hop: int) -> AllToAllRequest | AllGatherRequest:
    """The request with every payload damaged."""

    def spoil(data: Tensor) -> Tensor:
        data = data.clone()
        if damage == "size":
            return data[:-1]
        if damage == "checksum":
            data[-1] ^= 1
        if damage == "step":
            scheme = HEADER.unpack(data[: HEADER.size].numpy().tobytes())[4]
            Payload(data).seal(scheme, Key(step=1, hop=hop))
        return data

    if isinstance(request, AllToAllRequest):
        return replace(request, xs=[spoil(x) for x in request.xs])
    return replace(request, x=spoil(request.x))
