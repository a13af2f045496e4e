"""A mean that is encoded again in one pass has the bits of the two passes in C++."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from battery import INSTANCES, vector
from interpreted import cases
from torch import Tensor

from thinwire import Channel, Key, Layout, compressors, kernels
from thinwire.comm import Comm, run
from thinwire.compressors.block import KernelCompressor
from thinwire.core.clock import Clock
from thinwire.core.types import Context, State
from thinwire.exchange import ScatterGather
from thinwire.kernels.mean_encode import Again, Arrived, mean_encode, one_pass
from thinwire.lab import bench_gpu
from thinwire.memory import ErrorFeedback

KEY, FIRST = Key(seed=5, step=2, hop=1, offset=1024), 9
TILES, RAGGED = Layout.flat(2 * 512), Layout.flat(9 * 512 + 77)
SOME = [
    ("qsgd:bits=4", "qsgd:bits=4", 3, RAGGED, torch.bfloat16, True),
    ("qsgd:bits=1,norm=l2,block=64", "int:bits=8,block=32", 8, TILES, torch.float32, False),
    ("qsgd:bits=8,symmetric=false", "qsgd:bits=2", 1, RAGGED, torch.float16, True),
    ("natural", "natural", 3, TILES, torch.float32, False),
    ("qsgd:bits=3,block=128", "scaled-sign:block=64", 9, TILES, torch.float32, True),
]
"""Up, down, how many, and whether with a residual: the interpreter takes a second for each."""
KERNELS = [c for c in INSTANCES if isinstance(c, KernelCompressor)]
EACH = [(c.id, c.id, n, RAGGED, torch.float32, n != 3) for c in KERNELS for n in (1, 3, 8, 12)]
CASES = SOME + (EACH if torch.cuda.is_available() else [])


def made(c: KernelCompressor, x: Tensor, layout: Layout, seed: int) -> tuple[Tensor, Tensor]:
    """Scales and codes of a payload."""
    quant, blocks = c.quant, c.blocks(layout)
    scales = torch.zeros(blocks.count * quant.scales)
    codes = torch.zeros(quant.code_bytes(blocks.n), dtype=torch.uint8)
    kernels.get("cpu").encode(x, quant, blocks, Key(seed=seed), scales, codes)
    return scales, codes


def again(
    c: KernelCompressor, layout: Layout, tier: str, arrived: Arrived, device: torch.device, *, feedback: bool
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Scales, codes, residual and sum of the mean, encoded again by a tier."""
    quant, blocks = c.quant, c.blocks(layout)
    scales = torch.full((blocks.count * quant.scales,), 7.0, device=device)
    codes = torch.zeros(quant.code_bytes(blocks.n), dtype=torch.uint8, device=device)
    e = (vector(layout.numel, seed=3) * 0.1).to(device) if feedback else None
    there = arrived._replace(
        scales=[t.to(device) for t in arrived.scales], codes=[t.to(device) for t in arrived.codes]
    )
    with kernels.force(tier):
        total = mean_encode(there, Again(quant, blocks, KEY, scales, codes, e, 0.5, 0.75, FIRST))
        if total is None:
            total = kernels.get(tier).total(codes, FIRST)
    return scales, codes, torch.empty(0) if e is None else e, int(total if isinstance(total, int) else total.sum())


@pytest.mark.parametrize(("up", "down", "n", "layout", "dtype", "feedback"), CASES)
def test_one_pass_has_the_bits_of_two(
    up: str, down: str, n: int, layout: Layout, dtype: torch.dtype, feedback: bool, device: torch.device
) -> None:
    first, second = compressors.get(up), compressors.get(down)
    assert isinstance(first, KernelCompressor)
    assert isinstance(second, KernelCompressor)
    payloads = []
    for rank in range(n):
        x = vector(layout.numel, seed=rank).to(dtype)
        if rank == 0:
            x[600] = torch.nan
        payloads.append(made(first, x, layout, rank))
    sides, codes = zip(*payloads, strict=True)
    arrived = Arrived(sides, codes, first.quant, first.blocks(layout), 1 / n)
    with kernels.force("gpu"):
        fits = one_pass(codes[0], 1, first.quant, first.blocks(layout), second.quant, second.blocks(layout))
    assert fits or (up, down, n, layout, dtype, feedback) not in SOME
    here = again(second, layout, "cpu", arrived, torch.device("cpu"), feedback=feedback)
    there = again(second, layout, "gpu", arrived, device, feedback=feedback)
    for a, b in zip(here[:3], there[:3], strict=True):
        assert torch.equal(*(t.cpu().nan_to_num(nan=7e33) if t.is_floating_point() else t.cpu() for t in (a, b)))
    assert here[3] % 2**64 == there[3] % 2**64


def test_where_it_saves_a_pass(device: torch.device) -> None:
    def fits(tier: str, c: str, layout: Layout, count: int = 2) -> bool:
        made_by = compressors.get(c)
        assert isinstance(made_by, KernelCompressor)
        quant, blocks = made_by.quant, made_by.blocks(layout)
        with kernels.force(tier):
            like = torch.empty(0, device=device if tier == "gpu" else "cpu")
            return one_pass(like, count, quant, blocks, quant, blocks)

    assert fits("gpu", "qsgd:bits=4", TILES)
    assert fits("gpu", "natural", TILES)
    assert fits("gpu", "qsgd:bits=1", TILES, count=4)
    assert not fits("gpu", "qsgd:bits=1", TILES, count=5)
    assert not fits("gpu", "qsgd:bits=4", TILES, count=3)
    assert not fits("cpu", "qsgd:bits=4", TILES)
    for c in ("qsgd:bits=4,block=1024", "qsgd:bits=4,block=100", "scaled-sign", "one-bit"):
        assert not fits("gpu", c, TILES), c
    assert not fits("gpu", "qsgd:bits=4", Layout.flat(511))


def exchanged(
    exchange: ScatterGather, tier: str, xs: list[Tensor], device: torch.device
) -> list[tuple[Tensor, State, list[str]]]:
    """What each rank gets, keeps and does in a step that begins with a residual."""
    layout = Layout.flat(xs[0].numel())

    async def program(comm: Comm) -> tuple[Tensor, State, list[str]]:
        x, clock = xs[comm.rank].to(device, copy=True), Clock()
        state = {name: vector(t.numel()).to(device) for name, t in exchange.init(layout, comm).items()}
        got = await exchange(x, state, Context(comm, layout, Key(seed=1, step=1, rank=comm.rank), clock))
        return got, state, [span.what for span in clock.spans]

    with kernels.force(tier):
        return run(program, len(xs)).results


@pytest.mark.parametrize("dtype", cases([torch.float32, torch.bfloat16], (torch.bfloat16,)))
def test_owners_in_scatter_gather_take_it(dtype: torch.dtype, device: torch.device) -> None:
    """Two shards, of which the last is ragged; the residual of the mean is its owner's."""
    up, down = (compressors.get(c) for c in ("qsgd:bits=4", "int:bits=8"))
    exchange = ScatterGather(Channel(up), Channel(down, ErrorFeedback()))
    xs = [vector(1024 + 600, seed=rank).to(dtype) for rank in range(2)]
    here = exchanged(exchange, "cpu", xs, torch.device("cpu"))
    for (a, kept, two), (b, there, one) in zip(here, exchanged(exchange, "gpu", xs, device), strict=True):
        assert torch.equal(a, b.cpu())
        assert torch.equal(kept["down.send.residual"], there["down.send.residual"].cpu())
        assert two == ["encode", "decode", "encode", "decode"]
        assert one == ["encode", "encode", "decode"]


@pytest.mark.parametrize("n", cases([1024], ()))
def test_it_is_timed_beside_the_two_passes(n: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two payloads in and one out, without the mean or with it."""
    monkeypatch.setattr(bench_gpu, "WARM", 1)

    def clock(run: bench_gpu.Run) -> Callable[[], float]:
        return lambda: 1e-3

    payload = compressors.get("qsgd:bits=4").nbytes(Layout.flat(n))
    rows = list(bench_gpu.bench(n, ["qsgd:bits=4", "qsgd:bits=4,block=1024"], ["gpu"], 1, device, clock))
    moved = {row["kernel"]: row["bytes"] for row in rows if row["method"] == "qsgd:bits=4"}
    assert moved["mean_encode"] == 3 * payload
    assert moved["mean_then_encode"] == 3 * payload + 8 * n
    assert "mean_encode" not in {row["kernel"] for row in rows if row["method"] != "qsgd:bits=4"}
