"""rANS on the device: the bytes of thinwire/kernels/cpu/rans_message.h, LIKE_A_GPU, with no wait for the host.

`encode` counts the symbols, fits the model, codes every chunk into a room of its own, sums the sizes and copies the
chunks side by side; a message longer than plain fields becomes plain fields on the device. How long it is stays in
device memory until the caller asks. `decode` reads tables and sizes, then every chunk; what is wrong with a message
stays in device memory, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton

from thinwire.kernels.gpu import rans_join, rans_lay, rans_model, rans_pop, rans_push, rans_read
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
from thinwire.kernels.spec import TILE, packed_bytes, together

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


def aligned(n: int, to: int) -> int:
    """`n`, rounded up.

    >>> aligned(5, 4)
    8
    """
    return -(-n // to) * to


@dataclass(frozen=True)
class _Room:
    """Scratch of the encoder, for the symbols and, behind them, for the rare ones."""

    zeroed: Tensor  # int64: 256 counts, the plans, 2 x 256 words of 32 bits, whether a symbol did not fit
    tables: Tensor  # int64: 2 x 256
    words: Tensor  # int16: a room for every chunk
    sizes: Tensor  # int32, of chunks in bytes
    rare_counts: Tensor  # int32, of chunks
    starts: Tensor  # int64: the sum of the sizes before each
    rares: Tensor  # uint8

    @classmethod
    def of(cls, n: int, device: torch.device, chunk: int) -> _Room:
        few = n // RARE.value + 1
        chunks = chunks_of(n, chunk) + chunks_of(few, chunk)

        def empty(size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        return cls(
            torch.zeros(256 + 2 * PLAN.value + rans_model.WORDS.value + 2, dtype=torch.int64, device=device),
            empty(2 * 256, torch.int64),
            empty(aligned(n, 8) + few + 2 * STATES.value * chunks, torch.int16),
            empty(chunks, torch.int32),
            empty(chunks, torch.int32),
            empty(chunks, torch.int64),
            empty(few, torch.uint8),
        )

    @property
    def plans(self) -> Tensor:
        return self.zeroed[256 : 256 + 2 * PLAN.value]

    @property
    def bits(self) -> Tensor:
        return self.zeroed[256 + 2 * PLAN.value : -2].view(torch.int32)

    @property
    def bad(self) -> Tensor:
        return self.zeroed[-2:]  # two, for an aligned address


def encode(
    symbols: Tensor, width: int, out: Tensor, chunk: int = 0, tuning: Tuning = TUNING, *, join: bool | None = None
) -> Tensor:
    """Write a frame for `symbols` (uint8) to `out`, which has room for a byte more than plain fields.

    Returns how many bytes it has, int64 (1,) on the device; negative where a symbol does not fit `width` bits.
    `chunk` is log2 of the symbols of a chunk, which then has 32 states; 0 leaves both to the rule of GPUs. Whether
    narrow symbols are joined is decided by how many there are, unless `join` says so.
    """
    n, each = symbols.numel(), together(width)
    assert n
    assert symbols.is_contiguous()
    assert out.is_contiguous()
    assert not chunk or SMALLEST_CHUNK.value <= chunk <= LARGEST_CHUNK.value
    if join is None:
        join = n > each * FEW.value
    if each == 1 or not join:
        each = 1
    m, wide = -(-n // each), 8 if each > 1 else width
    most, few = chunks_of(m, chunk), chunks_of(m // RARE.value + 1, chunk)
    bins = max(32, 1 << wide)
    room = _Room.of(m, symbols.device, chunk)
    plans, bits, words, bad = room.plans, room.bits, room.words.view(torch.uint16), room.bad
    result = torch.empty(1, dtype=torch.int64, device=symbols.device)

    coded = symbols
    if each > 1:
        coded = torch.empty(m, dtype=torch.uint8, device=symbols.device)
        rans_join.join[(joiners(n, each),)](symbols, n, coded, bad, width, each, rans_join.BLOCK, **WARPS)
    if wide <= 4:
        programs = triton.cdiv(m, rans_model.FLUSHED.value)
        rans_model.count_few[(programs,)](coded, m, room.zeroed, 1 << wide, **WARPS)
    else:
        programs = min(triton.cdiv(m, COUNTED), COUNTERS)
        rans_model.count_symbols[(programs,)](
            coded, m, room.zeroed, 1 << wide, bins, COUNTED, VOTES and tuning.near, **WARPS
        )
    rans_model.model[(2,)](
        room.zeroed, m, chunk, plans, room.tables, bits, bins, **(ONE_WARP if wide <= 4 else WARPS)
    )
    first = (plans, room.tables, words, room.sizes, room.rare_counts)
    rans_push.push_chunks[(min(most, CHUNKS),)](coded, *first, VOTES, tuning.push_ahead, **ONE_WARP)
    behind = words[aligned(m, 8) + 2 * STATES.value * most :]
    if wide > 1:  # of two symbols, at most one is rare
        picked = (room.rare_counts, room.starts)
        rans_lay.start_rares[(1,)](plans, *picked, SUMMED, **WARPS)
        rans_lay.pick_rares[(min(most, COUNTERS),)](
            coded, plans, room.tables, *picked, room.rares, PICKED, **MORE_WARPS
        )
        second = (plans[PLAN.value :], room.tables[256:], behind, room.sizes[most:], room.rare_counts[most:])
        rans_push.push_chunks[(min(few, CHUNKS),)](room.rares, *second, VOTES, tuning.push_ahead, **ONE_WARP)
    form = JOINED.value if each > 1 else CODED.value
    lengths = (room.sizes, room.starts, most, packed_bytes(n, width))
    rans_lay.lay[(1,)](plans, *lengths, form, bad, out, result, SUMMED, **WARPS)
    rans_lay.place[(min(most, CHUNKS),)](words, plans, room.sizes, room.starts, bits, out, COPIED, **WARPS)
    if wide > 1:
        tail = (plans[PLAN.value :], room.sizes[most:], room.starts[most:], bits[rans_model.WORDS.value :])
        rans_lay.place[(min(few, CHUNKS),)](behind, *tail, out, COPIED, **WARPS)
    rans_lay.pack_plain[(min(triton.cdiv(n, TILE), PLAIN_PROGRAMS),)](symbols, n, plans, out, width, **ONE_WARP)
    return result


def decode(data: Tensor, width: int, out: Tensor, tuning: Tuning = TUNING) -> Tensor:
    """Fill `out` (uint8) with the symbols of the frame `data`.

    Returns a fault of `thinwire.codecs.native.FAULTS` or 0, int32 (1,) on the device; `out` then holds anything.
    """
    n, size, device = out.numel(), data.numel(), data.device
    assert n
    assert size
    assert data.is_contiguous()
    assert out.is_contiguous()
    each = together(width)
    few = n // RARE.value + 1
    most, fewer = chunks_of(n), chunks_of(few)
    zeroed = torch.zeros(2 * PLAN.value + 1, dtype=torch.int64, device=device)
    plans, faults = zeroed[: 2 * PLAN.value], zeroed[2 * PLAN.value :].view(torch.int32)[:1]
    freq = torch.empty(2 * 256, dtype=torch.int32, device=device)
    slots = torch.empty(2 * TOTAL.value, dtype=torch.int32, device=device)
    starts, places = torch.empty(2, most + fewer, dtype=torch.int64, device=device)
    sizes, counts = torch.empty(2, most + fewer, dtype=torch.int32, device=device)
    rares = torch.empty(few, dtype=torch.uint8, device=device)
    joined = torch.empty(-(-n // each), dtype=torch.uint8, device=device) if each > 1 else out

    plain = packed_bytes(n, width)
    found = (plans, freq, starts, sizes, faults)
    rans_read.read[(1,)](data, size, plain, n, 1 << width, *found, each, SUMMED, **WARPS)
    bins = max(32, 1 << width) if each == 1 else 256
    rans_read.fill_slots[(TOTAL.value // SLOTS, 2)](plans, freq, slots, SLOTS, bins, **WARPS)
    how = (VOTES, VOTES and tuning.near, tuning.window, tuning.pop_ahead)
    rans_pop.pop_chunks[(min(most, CHUNKS) // 4,)](
        data, plans, starts, sizes, slots, out, joined, counts, faults, *how, **WARPS
    )
    second = (plans[PLAN.value :], starts[most:], sizes[most:])
    rans_pop.find_rares[(1,)](data, plans, counts, places, *second[1:], faults, SUMMED, **WARPS)
    behind = (slots[TOTAL.value :], rares, rares, counts[most:], faults)
    rans_pop.pop_chunks[(min(fewer, CHUNKS) // 4,)](data, *second, *behind, *how, **WARPS)
    rans_pop.put_rares[(min(most, COUNTERS),)](plans, counts, places, rares, out, joined, PICKED, **MORE_WARPS)
    if each > 1:
        rans_join.split[(joiners(n, each),)](joined, n, plans, out, faults, width, each, rans_join.BLOCK, **WARPS)
    rans_pop.unpack_plain[(min(triton.cdiv(n, TILE), PLAIN_PROGRAMS),)](data, n, plans, out, width, **ONE_WARP)
    return faults


def encode_frame(symbols: Tensor, width: int, out: Tensor) -> Tensor:
    """`encode` as the codec asks for it."""
    return encode(symbols, width, out)


def decode_frame(data: Tensor, width: int, out: Tensor) -> Tensor:
    """`decode` as the codec asks for it."""
    return decode(data, width, out)
