"""Mean and second encode in Triton: payloads in, one payload out, and the mean between them only in registers.

It serves blocks that lie inside tiles, on both sides: their scales are found in the pass that encodes (`gpu/encode.py`).
Full tiles take the pass; the narrow last tile, whose blocks do not lie in rows, takes the two passes it would take alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.kernels import mean_encode as definition
from thinwire.kernels.dispatch import get
from thinwire.kernels.gpu import launch, plan
from thinwire.kernels.gpu.blocks import FUSED
from thinwire.kernels.gpu.butterfly import signed
from thinwire.kernels.gpu.decode import MOST, add_one
from thinwire.kernels.gpu.elements import NONE, words
from thinwire.kernels.gpu.encode import rounded, scaled_here
from thinwire.kernels.gpu.ready import Ready
from thinwire.kernels.gpu.tiles import so_far
from thinwire.kernels.mean_encode import Again, Arrived
from thinwire.kernels.spec import TILE, Blocks, Quant


@Ready
@triton.jit(do_not_specialize=["k0", "k1", "c0", "c1", "c2", "c3", "first"])
def mean_encoded(
    s0, s1, s2, s3, s4, s5, s6, s7,
    b0, b1, b2, b3, b4, b5, b6, b7,
    mean, residual, scales, codes, partial, n, tiles, first, k0, k1, c0, c1, c2, c3,
    weight, lo_in, hi_in, alpha, beta, lo_end, hi_end, clip,
    KIND_IN: tl.constexpr, NORM_IN: tl.constexpr, LEVELS_IN: tl.constexpr, WIDTH_IN: tl.constexpr,
    SIZE_IN: tl.constexpr, COUNT: tl.constexpr, FRESH: tl.constexpr,
    KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
    FRACTION: tl.constexpr, STOCHASTIC: tl.constexpr, FEEDBACK: tl.constexpr, SUM: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """`NB` full tiles per program: add COUNT payloads, unless FRESH to what is in `mean`, and encode the sum."""
    tile = tl.program_id(0) * NB + tl.arange(0, NB)
    lane = tl.arange(0, 64)[None, :]
    live = tile < tiles
    base = tile[:, None].to(tl.int64) * 512 + lane
    here = live[:, None] & (lane < 64)
    key = words(k0, k1, c0, c1, c2, c3)
    sides = (s0, s1, s2, s3, s4, s5, s6, s7)
    bodies = (b0, b1, b2, b3, b4, b5, b6, b7)

    m = so_far(mean, base, 64, here, n, FRESH, True, NB)
    for i in tl.static_range(COUNT):
        m = add_one(
            m, sides[i], bodies[i], scales, scales, 0, 0, tile, lane, 64, live, here, base, SIZE_IN, weight, lo_in,
            hi_in, KIND_IN, NORM_IN, LEVELS_IN, WIDTH_IN, FUSED, SIZE_IN, True, NB, False,
        )  # fmt: skip

    e, p = m, m
    if FEEDBACK:
        e, p = (), ()
        for r in tl.static_range(8):
            old = tl.load(residual + base + r * 64, mask=here, other=0.0)
            e = e + (old,)
            p = p + (m[r] + old * alpha,)
    rows_a, rows_b = p, p
    if NORM != NONE:
        rows_a, rows_b = scaled_here(p, scales, tile, lane, live, clip, NORM, SIZE, NB)
    total = rounded(
        m, e, p, rows_a, rows_b, residual, scales, codes, scales, 0, 0, n, tile, lane, 64, live, here, base, SIZE,
        first, key, beta, lo_end, hi_end, KIND, NORM, LEVELS, WIDTH, FRACTION, STOCHASTIC, FUSED, SIZE, FEEDBACK,
        True, NB,
    )  # fmt: skip
    if SUM:
        tl.store(partial + tl.program_id(0), total)


MANY, WARPS = 4, 2  # tiles per program, and its warps
MOST_NARROW, MOST_WIDE = (
    4,
    2,
)  # payloads of at most two bits per element, and of more, for which it was measured to pay


def one_pass(x: Tensor, count: int, quant: Quant, blocks: Blocks, then: Quant, after: Blocks) -> bool:
    """Where it can be done, for few payloads: with more, decoding takes longer than the memory that is saved.

    On one H200, 2^26 elements of QSGD, one pass against two: 0.097 and 0.157 ms for two payloads of one bit, 0.126 and
    0.160 for four, 0.189 and 0.181 for eight; 0.129 and 0.168 for two of four bits, 0.184 and 0.182 for four.
    """
    return count <= (MOST_NARROW if quant.width <= 2 else MOST_WIDE) and _fits(quant, blocks, then, after)


def _fits(quant: Quant, blocks: Blocks, then: Quant, after: Blocks) -> bool:
    """Where all scales are found, or looked up, inside tiles, and there are full tiles."""
    sides = ((quant, blocks), (then, after))
    return blocks.n >= TILE and all(plan.mode(q, b, given=False) == plan.FUSED for q, b in sides)


def mean_encode(arrived: Arrived, again: Again) -> int | Tensor | None:
    """The pass for full tiles, and what is left in two."""
    source, quant = arrived.quant, again.quant
    if not _fits(source, arrived.blocks, quant, again.blocks):
        return definition.two_passes(arrived, again)
    done = again.blocks.n // TILE * TILE
    before, last = _in_memory(arrived)
    partial = _launch(last, again, before, done)
    sums = [partial] if again.first is not None else []
    if done < again.blocks.n:
        rest = definition.two_passes(_rest(arrived, done), _rest_again(again, done))
        sums += [rest] if isinstance(rest, Tensor) else []
    return None if again.first is None else torch.cat(sums) if len(sums) > 1 else partial


def _in_memory(arrived: Arrived) -> tuple[Tensor | None, Arrived]:
    """The sum of all but the last payloads, where there are more than one pass takes, and those last ones."""
    before = (len(arrived.codes) - 1) // MOST * MOST
    if not before:
        return None, arrived
    mean = torch.empty(arrived.blocks.n, device=arrived.codes[0].device)
    first = arrived._replace(scales=arrived.scales[:before], codes=arrived.codes[:before])
    get("gpu").decode_mean(first.scales, first.codes, first.quant, first.blocks, mean, first.weight)
    return mean, arrived._replace(scales=arrived.scales[before:], codes=arrived.codes[before:])


def _launch(arrived: Arrived, again: Again, before: Tensor | None, done: int) -> Tensor:
    """The first `done` elements; returns the sums of programs."""
    source, quant = arrived.quant, again.quant
    tiles = done // TILE
    partial = again.codes.new_empty(-(-tiles // MANY), dtype=torch.int64)
    count, none = len(arrived.codes), MOST - len(arrived.codes)
    scales = [side if side.numel() else arrived.codes[0] for side in arrived.scales]
    with launch.on(again.codes):
        mean_encoded[(partial.numel(),)](
            *scales,
            *[scales[0]] * none,
            *arrived.codes,
            *[arrived.codes[0]] * none,
            partial if before is None else before,
            partial if again.residual is None else again.residual,
            again.scales if again.scales.numel() else again.codes,
            launch.as_words(again.codes),
            partial,
            again.blocks.n,
            tiles,
            again.first or 0,
            *signed(again.key.words()),
            arrived.weight,
            source.lo,
            source.hi,
            again.alpha,
            again.beta,
            quant.lo,
            quant.hi,
            quant.clip,
            KIND_IN=int(source.kind),
            NORM_IN=int(source.norm),
            LEVELS_IN=source.levels,
            WIDTH_IN=source.width,
            SIZE_IN=plan.constant(arrived.blocks),
            COUNT=count,
            FRESH=before is None,
            KIND=int(quant.kind),
            NORM=int(quant.norm),
            LEVELS=quant.levels,
            WIDTH=quant.width,
            SIZE=plan.constant(again.blocks),
            FRACTION=quant.fraction,
            STOCHASTIC=plan.noisy(quant),
            FEEDBACK=again.residual is not None,
            SUM=again.first is not None,
            NB=MANY,
            num_warps=WARPS,
            **launch.PRECISE,
        )
    return partial


def _rest(arrived: Arrived, done: int) -> Arrived:
    """The same payloads from element `done` on."""
    quant, blocks = arrived.quant, arrived.blocks
    sides = [side[_scales(quant, blocks, done) :] for side in arrived.scales]
    codes = [code[quant.code_bytes(done) :] for code in arrived.codes]
    return arrived._replace(scales=sides, codes=codes, blocks=_blocks(blocks, done))


def _rest_again(again: Again, done: int) -> Again:
    """Where the codes of these elements go."""
    skipped = again.quant.code_bytes(done)
    return again._replace(
        blocks=_blocks(again.blocks, done),
        key=again.key.fold(offset=again.key.offset + done),
        scales=again.scales[_scales(again.quant, again.blocks, done) :],
        codes=again.codes[skipped:],
        residual=None if again.residual is None else again.residual[done:],
        first=None if again.first is None else again.first + skipped // 4,
    )


def _blocks(blocks: Blocks, done: int) -> Blocks:
    rest = blocks.n - done
    return Blocks(rest, size=blocks.size or rest)


def _scales(quant: Quant, blocks: Blocks, done: int) -> int:
    return quant.scales * (done // blocks.size) if quant.scales else 0
