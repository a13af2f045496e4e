"""rANS on the device: the bytes of thinwire/kernels/cpu/rans_message.h, LIKE_A_GPU, with no wait for the host.

`encode` counts the symbols, fits the model, codes every chunk into a room of its own, sums the sizes and copies the
chunks side by side; a message longer than plain fields becomes plain fields on the device. How long it is stays in
device memory until the caller asks. `decode` reads tables and sizes, then every chunk; what is wrong with a message
stays in device memory, too.

Both take several frames at once: to launch a kernel takes the host as long for all of them as for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton

from thinwire.kernels.gpu import rans_join, rans_lay, rans_model, rans_pop, rans_push, rans_read
from thinwire.kernels.gpu.rans_frames import aligned, in_lines, scratch, table
from thinwire.kernels.gpu.rans_plan import (
    CODED,
    FEW,
    JOINED,
    LARGEST_CHUNK,
    PLAN,
    RARE,
    SMALLEST_CHUNK,
    STATES,
    TOTAL,
    VOTES,
)
from thinwire.kernels.spec import TILE, together

if TYPE_CHECKING:
    from torch import Tensor

ONE_WARP = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}
WARPS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
MORE_WARPS = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": False}
COUNTED = 8192  # symbols that a program counts at a time
COUNTERS = 1056  # programs: eight for each multiprocessor of an H200
CHUNKS = 16 * 132  # coded at a time: as many programs as there could be chunks would keep those with one waiting
PLAIN_PROGRAMS = 32 * 132  # of one warp; more would take time to find that there is nothing to do
SUMMED = 1024  # chunks that are summed at a time
SLOTS = (
    64 if VOTES else TOTAL.value
)  # of the decoder's table that a program fills; the interpreter likes few programs
COPIED = 2048  # bytes that a program copies at a time
PICKED = 8192  # symbols among which it looks for rare ones at a time


@dataclass(frozen=True)
class Tuning:
    """What changes the speed and not the bytes."""

    push_ahead: int = 1024  # bytes of symbols asked for before they are needed
    pop_ahead: int = 256  # bytes of words, likewise
    window: bool = True  # whether the next 32 words are held in the threads
    near: bool = (
        True  # whether tables and counts that threads look up lie in shared memory, which the interpreter lacks
    )


TUNING = Tuning()


def chunks_of(n: int, chunk: int = 0) -> int:
    """The most chunks that `n` symbols can have, in fours: kernels are compiled for aligned addresses."""
    return aligned(((max(n, 1) - 1) >> (chunk or SMALLEST_CHUNK.value)) + 1, 4)


def joiners(n: int, each: int) -> int:
    """Programs that join or split `n` symbols."""
    return -(-n // ((8 if each == 8 else 4) * rans_join.BLOCK))


def joins(n: int, width: int) -> bool:
    """Whether so many symbols are coded several at a time."""
    each = together(width)
    return each > 1 and n > each * FEW.value


def encode(
    symbols: Sequence[Tensor],
    width: int,
    out: Sequence[Tensor],
    chunk: int = 0,
    tuning: Tuning = TUNING,
    *,
    join: bool | None = None,
) -> Tensor:
    """Write frames for vectors of `symbols` (uint8) to `out`, each with room for a byte more than plain fields.

    Returns how many bytes each has, int64 on the device; negative where a symbol does not fit `width` bits.
    `chunk` is log2 of the symbols of a chunk, which then has 32 states; 0 leaves both to the rule of GPUs. Whether
    narrow symbols are joined is decided by how many there are, unless `join` says so; it holds for all frames.
    """
    n, count, device = max(s.numel() for s in symbols), len(symbols), symbols[0].device
    assert all(s.numel() and s.is_contiguous() for s in symbols)
    assert all(o.is_contiguous() for o in out)
    assert not chunk or SMALLEST_CHUNK.value <= chunk <= LARGEST_CHUNK.value
    if join is None:
        join = joins(n, width)
        assert all(joins(s.numel(), width) == join for s in symbols)
    each = together(width) if join else 1
    m, wide = -(-n // each), 8 if each > 1 else width
    few = m // RARE.value + 1
    most, fewer = chunks_of(m, chunk), chunks_of(few)  # the rare ones are always cut into the smallest
    chunks, bins = most + fewer, max(32, 1 << wide)
    room = scratch(
        device,
        count,
        (torch.int64, 256 + 2 * PLAN.value + rans_model.WORDS.value + 2),
        (torch.int64, 2 * 256),
        (torch.uint16, aligned(m, 8) + few + 2 * STATES.value * chunks),  # a room for every chunk
        (torch.int32, chunks),
        (torch.int32, chunks),
        (torch.int64, chunks),
        (torch.uint8, few),
        (torch.uint8, m if each > 1 else 0),
    )
    zeroed, tables, words, sizes, rare_counts, starts, rares, joined = room.parts
    end, stride = 256 + 2 * PLAN.value, room.stride
    plans, bits, bad = zeroed[256:end], zeroed[end:-2].view(torch.int32), zeroed[-2:]  # after 256 counts
    result = torch.empty(count, dtype=torch.int64, device=device)
    symbols = [s if in_lines(s) else s.clone() for s in symbols]
    inner = room.addresses(joined, count) if each > 1 else [s.data_ptr() for s in symbols]
    inners = [(at, -(-s.numel() // each)) for at, s in zip(inner, symbols, strict=True)]
    frames = table(symbols, out, symbols, width, inners)

    if each > 1:
        rans_join.join[(joiners(n, each), 1, count)](frames, bad, stride, width, each, rans_join.BLOCK, **WARPS)
    if wide <= 4:
        programs = triton.cdiv(m, rans_model.FLUSHED.value)
        rans_model.count_few[(programs, 1, count)](frames, zeroed, 1 << wide, stride, **WARPS)
    else:
        programs = min(triton.cdiv(m, COUNTED), COUNTERS)
        near = VOTES and tuning.near
        rans_model.count_symbols[(programs, 1, count)](
            frames, zeroed, 1 << wide, stride, bins, COUNTED, near, **WARPS
        )
    few_warps = ONE_WARP if wide <= 4 else WARPS
    rans_model.model[(2, 1, count)](frames, zeroed, chunk, plans, tables, bits, stride, bins, **few_warps)
    first = (plans, tables, words, sizes, rare_counts)
    how = (VOTES, tuning.push_ahead)
    rans_push.push_chunks[(min(most, CHUNKS), 1, count)](frames, rares, *first, stride, 0, *how, **ONE_WARP)
    behind = words[aligned(m, 8) + 2 * STATES.value * most :]
    if wide > 1:  # of two symbols, at most one is rare
        rans_lay.start_rares[(1, 1, count)](plans, rare_counts, starts, stride, SUMMED, **WARPS)
        rans_lay.pick_rares[(min(most, COUNTERS), 1, count)](
            frames, plans, tables, rare_counts, starts, rares, stride, PICKED, **MORE_WARPS
        )
        second = (plans[PLAN.value :], tables[256:], behind, sizes[most:], rare_counts[most:])
        rans_push.push_chunks[(min(fewer, CHUNKS), 1, count)](frames, rares, *second, stride, 1, *how, **ONE_WARP)
    form = JOINED.value if each > 1 else CODED.value
    rans_lay.lay[(1, 1, count)](frames, plans, sizes, starts, most, form, bad, result, stride, SUMMED, **WARPS)
    rans_lay.place[(min(most, CHUNKS), 1, count)](frames, words, plans, sizes, starts, bits, stride, COPIED, **WARPS)
    if wide > 1:
        tail = (plans[PLAN.value :], sizes[most:], starts[most:], bits[rans_model.WORDS.value :])
        rans_lay.place[(min(fewer, CHUNKS), 1, count)](frames, behind, *tail, stride, COPIED, **WARPS)
    programs = min(triton.cdiv(n, TILE), PLAIN_PROGRAMS)
    rans_lay.pack_plain[(programs, 1, count)](frames, plans, stride, width, **ONE_WARP)
    return result


def decode(data: Sequence[Tensor], width: int, out: Sequence[Tensor], tuning: Tuning = TUNING) -> Tensor:
    """Fill vectors of `out` (uint8) with the symbols of frames.

    Returns for each a fault of `thinwire.codecs.native.FAULTS` or 0, int32 on the device; `out` then holds anything.
    """
    n, count, device = max(o.numel() for o in out), len(out), data[0].device
    assert all(o.numel() and o.is_contiguous() for o in out)
    assert all(d.numel() and d.is_contiguous() for d in data)
    each = together(width)
    few = n // RARE.value + 1
    most, fewer = chunks_of(n), chunks_of(few)
    chunks = most + fewer
    room = scratch(
        device,
        count,
        (torch.int64, 2 * PLAN.value),
        (torch.int32, 2 * 256),
        (torch.int32, 2 * TOTAL.value),
        (torch.int64, chunks),
        (torch.int64, chunks),
        (torch.int32, chunks),
        (torch.int32, chunks),
        (torch.uint8, few),
        (torch.uint8, -(-n // each) if each > 1 else 0),
    )
    plans, freq, slots, starts, places, sizes, counts, rares, joined = room.parts
    stride = room.stride
    faults = torch.zeros(count, dtype=torch.int32, device=device)
    to = [o if in_lines(o) else torch.empty_like(o) for o in out]
    inner = room.addresses(joined, count) if each > 1 else [t.data_ptr() for t in to]
    frames = table(data, to, to, width, [(at, d.numel()) for at, d in zip(inner, data, strict=True)])

    found = (plans, freq, starts, sizes, faults)
    rans_read.read[(1, 1, count)](frames, 1 << width, *found, stride, each, SUMMED, **WARPS)
    bins = max(32, 1 << width) if each == 1 else 256
    rans_read.fill_slots[(TOTAL.value // SLOTS, 2, count)](plans, freq, slots, stride, SLOTS, bins, **WARPS)
    how = (VOTES, VOTES and tuning.near, tuning.window, tuning.pop_ahead)
    rans_pop.pop_chunks[(min(most, CHUNKS) // 4, 1, count)](
        frames, plans, starts, sizes, slots, rares, counts, faults, stride, 0, *how, **WARPS
    )
    second = (plans[PLAN.value :], starts[most:], sizes[most:])
    rans_pop.find_rares[(1, 1, count)](frames, plans, counts, places, *second[1:], faults, stride, SUMMED, **WARPS)
    behind = (slots[TOTAL.value :], rares, counts[most:], faults, stride)
    rans_pop.pop_chunks[(min(fewer, CHUNKS) // 4, 1, count)](frames, *second, *behind, 1, *how, **WARPS)
    rans_pop.put_rares[(min(most, COUNTERS), 1, count)](
        frames, plans, counts, places, rares, stride, PICKED, **MORE_WARPS
    )
    if each > 1:
        split = (plans, faults, stride, width, each, rans_join.BLOCK)
        rans_join.split[(joiners(n, each), 1, count)](frames, *split, **WARPS)
    programs = min(triton.cdiv(n, TILE), PLAIN_PROGRAMS)
    rans_pop.unpack_plain[(programs, 1, count)](frames, plans, stride, width, **ONE_WARP)
    for wanted, made in zip(out, to, strict=True):
        if made is not wanted:
            wanted.copy_(made)
    return faults


def encode_frames(symbols: Sequence[Tensor], width: int, out: Sequence[Tensor]) -> list[Tensor]:
    """`encode` as the codec asks for it; frames of which only some would be joined are coded one by one."""
    if len({joins(s.numel(), width) for s in symbols}) == 1:
        return list(encode(symbols, width, out).split(1))
    return [encode([s], width, [to]) for s, to in zip(symbols, out, strict=True)]


def decode_frames(data: Sequence[Tensor], width: int, out: Sequence[Tensor]) -> list[Tensor]:
    """`decode` as the codec asks for it."""
    return list(decode(data, width, out).split(1))
