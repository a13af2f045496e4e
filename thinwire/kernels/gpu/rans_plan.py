"""What the kernels of rANS share: the numbers of the message format, and where a plan keeps its facts.

A message has two levels: its symbols, and the rare ones among them, which follow an escape in a message of their own
(thinwire/kernels/cpu/rans_message.h). Each level has a plan of 16 numbers in device memory, since how long it is and
how it is cut is known there alone; kernels are launched for as many chunks as there could be, and those beyond the
plan's end at once.

Frames that are coded together are the third axis of each launch. A table of `ROW` numbers for each says where its
symbols and its bytes are; scratch memory is the same for all of them, `stride` units of 16 bytes apart.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

BITS = tl.constexpr(12)
TOTAL = tl.constexpr(1 << 12)
LOW = tl.constexpr(1 << 15)
STATES = tl.constexpr(32)  # of a wide chunk: one for each thread of a warp
NARROW = tl.constexpr(4)
SMALLEST_CHUNK = tl.constexpr(13)
LARGEST_CHUNK = tl.constexpr(21)
ENOUGH = tl.constexpr(5 << 10)
FEW = tl.constexpr(1 << 18)
ONE, RANS, WIDE, ESCAPE = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4), tl.constexpr(8)
PLAIN, CODED, JOINED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # the first byte of a frame
RARE = tl.constexpr(32)  # at most one symbol in so many is rare: 255 symbols with a share below 2^-13 each

# Places in a plan.
N = tl.constexpr(0)  # symbols
KIND = tl.constexpr(1)  # ONE, RANS, or 0: nothing to do
LOG = tl.constexpr(2)  # log2 of the symbols of a chunk
LANES = tl.constexpr(3)  # states of a chunk
COUNT = tl.constexpr(4)  # chunks
HEAD = tl.constexpr(5)  # encoder: bytes of the table
ESCAPED = tl.constexpr(6)  # the symbol that stands for the rare ones, or -1
SYMBOL = tl.constexpr(7)  # of ONE
AT = tl.constexpr(8)  # where the message starts
TAIL = tl.constexpr(9)  # encoder: bytes of the rare symbols' message; decoder: where the message ends
FORM = tl.constexpr(10)  # of the frame
SIZES = tl.constexpr(11)  # where the sizes of the chunks start
LAST = tl.constexpr(12)  # decoder: the largest symbol with a frequency
PLAN = tl.constexpr(16)

# Places in a frame's row of the table.
SOURCE = tl.constexpr(0)  # the address of its symbols; decoder: of its bytes
TARGET = tl.constexpr(1)  # where its bytes go; decoder: its symbols
LENGTH = tl.constexpr(2)  # symbols
FIELDS = tl.constexpr(3)  # bytes of plain fields
INNER = tl.constexpr(4)  # the address of what is coded: of joined symbols, or of the symbols themselves
INNERS = tl.constexpr(5)  # encoder: how many these are; decoder: bytes of the frame
ROW = tl.constexpr(8)

VOTES = os.environ.get("TRITON_INTERPRET", "0") != "1"
"""Whether threads can vote, which the interpreter cannot."""


@triton.jit
def noted(frames, PLACE: tl.constexpr):
    """A number of this program's frame."""
    return tl.load(frames + tl.program_id(2) * ROW + PLACE)


@triton.jit
def bytes_at(frames, PLACE: tl.constexpr):
    """Bytes of this program's frame, at any address."""
    return noted(frames, PLACE).to(tl.pointer_type(tl.uint8))


@triton.jit
def symbols_at(frames, PLACE: tl.constexpr):
    """Symbols of this program's frame, at an address from which sixteen are loaded at a time."""
    return tl.multiple_of(bytes_at(frames, PLACE), 16)


@triton.jit
def of_frame(scratch, stride, SIZE: tl.constexpr):
    """Scratch memory of this program's frame; its numbers have SIZE bytes."""
    return scratch + tl.program_id(2).to(tl.int64) * stride * (16 // SIZE)


@triton.jit
def ranks(chosen, VOTES: tl.constexpr):
    """For each of a warp's 32 threads, how many before it are chosen, and how many are in all."""
    if VOTES:  # one vote instead of five rounds of shuffles
        rank, total = tl.inline_asm_elementwise(
            """{
                .reg .pred p;
                .reg .b32 all, before;
                setp.ne.s32 p, $2, 0;
                vote.sync.ballot.b32 all, p, 0xffffffff;
                mov.u32 before, %lanemask_lt;
                and.b32 before, before, all;
                popc.b32 $0, before;
                popc.b32 $1, all;
            }""",
            "=r,=r,r",
            [chosen.to(tl.int32)],
            dtype=(tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
    else:
        ones = tl.reshape(chosen.to(tl.int32), [chosen.shape[0] // 32, 32])
        rank = tl.reshape(tl.cumsum(ones, 1) - ones, chosen.shape)
        total = tl.reshape(tl.sum(ones, 1)[:, None] + tl.zeros_like(ones), chosen.shape)
    return rank, total


@triton.jit
def pick(values, place, VOTES: tl.constexpr):
    """values[place] for each of a warp's 32 threads."""
    if VOTES:
        picked = tl.inline_asm_elementwise(
            "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;",
            "=r,r,r",
            [values, place],
            dtype=tl.uint32,
            is_pure=False,
            pack=1,
        )
    else:
        first = tl.arange(0, values.shape[0]) // 32 * 32
        picked = tl.gather(values, first + (place & 31), 0)
    return picked


@triton.jit
def ask_for(pointers, VOTES: tl.constexpr):
    """Have the lines at these addresses brought near, and do not wait."""
    if VOTES:
        tl.inline_asm_elementwise(
            "prefetch.global.L1 [$1]; mov.b32 $0, 0;",
            "=r,l",
            [pointers.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def keep_near(table, SIZE: tl.constexpr, lane, NEAR: tl.constexpr):
    """Copy SIZE numbers of 32 bits to shared memory, where threads that read different lines wait less.

    Returns where they are, for `look_up`. Triton itself keeps nothing there from one operation to the next.
    """
    if NEAR:
        near = tl.inline_asm_elementwise(
            "{ .shared .align 16 .b8 thinwire_near[16384]; mov.u32 $0, thinwire_near; }",
            "=r,r",
            [lane],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        tl.static_assert(SIZE <= 4096)
        for i in tl.static_range(0, SIZE, lane.shape[0]):
            tl.inline_asm_elementwise(
                "st.shared.b32 [$1], $2; mov.b32 $0, 0;",
                "=r,r,r",
                [near + 4 * (i + lane), tl.load(table + i + lane)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
        tl.debug_barrier()
    else:
        near = tl.zeros_like(lane)
    return near


@triton.jit
def look_up(table, near, i, NEAR: tl.constexpr):
    """table[i], of a table that `keep_near` copied."""
    if NEAR:
        value = tl.inline_asm_elementwise(
            "ld.shared.b32 $0, [$1];",
            "=r,r",
            [near + 4 * i],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        value = tl.load(table + i)
    return value
