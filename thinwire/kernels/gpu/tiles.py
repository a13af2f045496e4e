"""Tiles of 512 elements in Triton: rows into packed planes and back, with the checksum's sum of the words on the way.

`rows` are the eight rows of some tiles, each (tiles, 64). Plane j of a tile is byte j of the number that each lane's
eight fields make (kernels/spec.py); four lanes of a plane are one word of the payload.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

from thinwire.kernels import checksum

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # which knows no assembly
STEP, START = tl.constexpr(checksum.STEP), tl.constexpr(checksum.START)
EACH_BYTE, SIGN_BIT = tl.constexpr(0x01010101), tl.constexpr(1 << 31)
ROW = tl.constexpr(8 * checksum.STEP & checksum.MASK64)  # z of the word sixteen places further, less its own


@triton.jit
def keys(z, odd):
    """The keys of words, of their z (kernels/checksum.py), as uint64."""
    low = z & 0xFFFFFFFF
    both = z ^ (low * low)
    return tl.where(odd, both >> 32, both) & 0xFFFFFFFF


@triton.jit
def origin(index):
    """z of the word with this index."""
    return (index >> 1).to(tl.uint64) * STEP + START


@triton.jit
def times(word, key):
    """w_i k_i of words (int32), as int64."""
    return (word.to(tl.uint32, bitcast=True).to(tl.uint64) * key).to(tl.int64)


@triton.jit
def keyed(word, index):
    """w_i k_i of words (int32) with these indices, as int64."""
    return times(word, keys(origin(index), (index & 1) != 0))


@triton.jit
def plane(rows, J: tl.constexpr, WIDTH: tl.constexpr):
    """Byte J of every lane's number, int32, of fields without a sign."""
    byte = tl.zeros_like(rows[0])
    for r in tl.static_range(8):
        low = r * WIDTH - 8 * J  # the field's lowest bit, counted from the byte's
        if (low > -WIDTH) & (low < 8):
            byte = byte | (rows[r] << low if low >= 0 else rows[r] >> -low)
    return byte & 255


@triton.jit
def masked(rows, WIDTH: tl.constexpr):
    """Codes as fields: the low bits of two's complement."""
    out = ()
    for r in tl.static_range(8):
        out = out + (rows[r] & ((1 << WIDTH) - 1),)
    return out


@triton.jit
def as_words(byte, NB: tl.constexpr):
    """Four lanes' bytes as one word: (tiles, 64) int32 to (tiles, 16). Bytes may be sums of signed fields."""
    return tl.sum(tl.reshape(byte, [NB, 16, 4]) << (tl.arange(0, 4) * 8)[None, None, :], axis=2)


@triton.jit
def four(w, NB: tl.constexpr):
    """Words as four lanes each, (tiles, 16) to (tiles, 64), whose low bytes count.

    A thread that holds four lanes holds their word: words are stored and loaded like this, so that none changes
    threads.
    """
    shift = (tl.arange(0, 4) * 8)[None, None, :]
    return tl.reshape(tl.broadcast_to(w[:, :, None], [NB, 16, 4]) >> shift, [NB, 64])


@triton.jit
def word(rows, J: tl.constexpr, WIDTH: tl.constexpr, SIGN_BIT: tl.constexpr, NB: tl.constexpr):
    """The words of plane J, (tiles, 16).

    Where a byte holds whole fields, signed ones are added up as they are: with half a field's range added to each,
    no field borrows from the next, and flipping the top bit of each field takes it away again.
    """
    if 8 % WIDTH == 0:
        PER_BYTE: tl.constexpr = 8 // WIDTH
        byte = rows[J * PER_BYTE]
        for i in tl.static_range(1, PER_BYTE):
            byte = byte + (rows[J * PER_BYTE + i] << (i * WIDTH))
        w = as_words(byte, NB)
        if SIGN_BIT:
            HALVES: tl.constexpr = ((1 << 32) - 1) // ((1 << WIDTH) - 1) << (WIDTH - 1)
            w = ((w.to(tl.uint32, bitcast=True) + HALVES) ^ HALVES).to(tl.int32, bitcast=True)
        return w
    else:
        return as_words(plane(masked(rows, WIDTH), J, WIDTH), NB)


@triton.jit
def pushed(acc, number, COUNT: tl.constexpr):
    """`acc` moved up by COUNT bits, and the highest COUNT bits of `number` below it: one instruction."""
    return (acc << COUNT) | (number.to(tl.uint32, bitcast=True) >> (32 - COUNT)).to(tl.int32, bitcast=True)


@triton.jit
def highest(rows, WIDTH: tl.constexpr, NB: tl.constexpr):
    """The planes, as words, of fields that are the highest WIDTH bits of each number; of one bit, the second highest.

    Then the highest is 0: even rows and odd ones are pushed by two bits, and fill each other's gaps.
    """
    planes = ()
    if WIDTH == 1:
        even, odd = pushed(rows[6] * 0, rows[6], 2), pushed(rows[7] * 0, rows[7], 2)
        for i in tl.static_range(3):
            even, odd = pushed(even, rows[4 - 2 * i], 2), pushed(odd, rows[5 - 2 * i], 2)
        planes = (as_words(even + (odd << 1), NB),)
    else:
        PER_BYTE: tl.constexpr = 8 // WIDTH
        for j in tl.static_range(WIDTH):
            byte = pushed(rows[0] * 0, rows[(j + 1) * PER_BYTE - 1], WIDTH)
            for i in tl.static_range(1, PER_BYTE):
                byte = pushed(byte, rows[(j + 1) * PER_BYTE - 1 - i], WIDTH)
            planes = planes + (as_words(byte, NB),)
    return planes


@triton.jit
def put(planes, out, first, tile, lane, lanes, live, here, NB: tl.constexpr, COUNT: tl.constexpr, FULL: tl.constexpr):
    """Write COUNT planes of each tile and return the checksum's sum, int64.

    Planes of full tiles are given as words, (tiles, 16), those of the narrow last tile as bytes, (tiles, 64).
    """
    bytes_ = tl.multiple_of(out.to(tl.pointer_type(tl.uint8)), 4)  # words, else four bytes would be stored one by one
    at = tile[:, None].to(tl.int64) * (64 * COUNT) + lane
    if FULL:
        index = tile[:, None].to(tl.int64) * (16 * COUNT) + tl.arange(0, 16)[None, :] + first
        total = tl.zeros([NB, 16], tl.int64)
        z = origin(index)
        odd = (index & 1) != 0
        for j in tl.static_range(COUNT):
            tl.store(bytes_ + at + j * 64, four(planes[j], NB).to(tl.uint8), mask=live[:, None])
            total += times(planes[j], keys(z, odd))
            z += ROW
        return tl.sum(tl.sum(tl.where(live[:, None], total, 0), axis=1), axis=0)
    else:
        total = tl.zeros([NB, 64], tl.int64)
        for j in tl.static_range(COUNT):
            there = at + j * lanes
            tl.store(bytes_ + there, planes[j].to(tl.uint8), mask=here)
            total += tl.where(here, keyed(planes[j] << ((there % 4) * 8).to(tl.int32), there // 4 + first), 0)
        return tl.sum(tl.sum(total, axis=1), axis=0)


@triton.jit
def store(
    rows, out, first, tile, lane, lanes, live, here, NB: tl.constexpr, WIDTH: tl.constexpr, SIGN_BIT: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """Pack the codes of tiles and write them; returns the checksum's sum, int64."""
    planes = ()
    if FULL:
        for j in tl.static_range(WIDTH):
            planes = planes + (word(rows, j, WIDTH, SIGN_BIT, NB),)
    else:
        fields = masked(rows, WIDTH)
        for j in tl.static_range(WIDTH):
            planes = planes + (plane(fields, j, WIDTH),)
    return put(planes, out, first, tile, lane, lanes, live, here, NB, WIDTH, FULL)


@triton.jit
def load(codes, tile, lane, lanes, live, here, NB: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """The planes of tiles, as a tuple of (tiles, 64) int32 whose low bytes count; `codes` points at bytes."""
    planes = ()
    if FULL:
        words = codes.to(tl.pointer_type(tl.int32))
        at = tile[:, None].to(tl.int64) * (16 * WIDTH) + tl.arange(0, 16)[None, :]
        for j in tl.static_range(WIDTH):
            planes = planes + (four(tl.load(words + at + j * 16, mask=live[:, None], other=0), NB),)
    else:
        for j in tl.static_range(WIDTH):
            at = tile[:, None].to(tl.int64) * (64 * WIDTH) + j * lanes + lane
            planes = planes + (tl.load(codes + at, mask=here, other=0).to(tl.int32),)
    return planes


@triton.jit
def load_words(codes, tile, live, WIDTH: tl.constexpr):
    """The planes of full tiles as a tuple of words, (tiles, 16) int32, which four lanes share."""
    words = ()
    at = tile[:, None].to(tl.int64) * (16 * WIDTH) + tl.arange(0, 16)[None, :]
    for j in tl.static_range(WIDTH):
        here = codes.to(tl.pointer_type(tl.int32)) + at + j * 16
        words = words + (tl.load(here, mask=live[:, None], other=0),)
    return words


@triton.jit
def load_bytes(codes, tile, lane, live, WIDTH: tl.constexpr):
    """The planes of full tiles as a tuple of bytes, (tiles, 64) uint8, four to a load."""
    planes = ()
    at = tl.multiple_of(codes, 4) + tile[:, None].to(tl.int64) * (64 * WIDTH) + lane
    for j in tl.static_range(WIDTH):
        planes = planes + (tl.load(at + j * 64, mask=live[:, None], other=0),)
    return planes


@triton.jit
def lanes(w, NB: tl.constexpr):
    """Words for each of their four lanes, (tiles, 16) to (tiles, 64)."""
    return tl.reshape(tl.broadcast_to(w[:, :, None], [NB, 16, 4]), [NB, 64])


@triton.jit
def turn(NB: tl.constexpr):
    """Which of its word's four lanes each is, (tiles, 64)."""
    return tl.reshape(tl.broadcast_to(tl.arange(0, 4)[None, None, :], [NB, 16, 4]), [NB, 64])


@triton.jit
def chosen(w, FILL: tl.constexpr, PLACE: tl.constexpr, NB: tl.constexpr):
    """The lane's byte of its word, as byte PLACE of a word whose other bytes are FILL's."""
    if INTERPRETED:
        byte = (lanes(w, NB) >> (8 * turn(NB))) & 255
        return (byte << (8 * PLACE)) | (FILL & ~(255 << (8 * PLACE)))
    else:
        which = (0x7654 & ~(15 << (4 * PLACE))) | (turn(NB) << (4 * PLACE))
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [lanes(w, NB), FILL + 0 * which, which], dtype=tl.int32,
            is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def placed(w, rest, NB: tl.constexpr):
    """The lane's byte of its word, (tiles, 64), as the highest of one whose other bytes are those of `rest`."""
    if INTERPRETED:
        return ((w >> (8 * turn(NB))) << 24) | (rest & 0xFFFFFF)
    else:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r",
            [w, tl.broadcast_to(rest, [NB, 64]), 0x654 | (turn(NB) << 12)], dtype=tl.int32,
            is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def fields(words, R: tl.constexpr, WIDTH: tl.constexpr):
    """Row R of fields, one in each byte of a word; `words` are those of all planes."""
    J: tl.constexpr = R * WIDTH // 8
    LOW: tl.constexpr = R * WIDTH % 8
    IN_THIS: tl.constexpr = ((1 << WIDTH) - 1) & (255 >> LOW)
    f = (words[J] >> LOW) & ((IN_THIS * EACH_BYTE ^ SIGN_BIT) - SIGN_BIT)  # the mask as a number with a sign
    if LOW + WIDTH > 8:
        IN_NEXT: tl.constexpr = ((1 << WIDTH) - 1) & ~IN_THIS
        f = f | ((words[J + 1] << (8 - LOW)) & (IN_NEXT * EACH_BYTE))
    return f


@triton.jit
def field(planes, R: tl.constexpr, WIDTH: tl.constexpr):
    """Row R of fields, from the planes that hold it; what lies above a field is not cleared."""
    J: tl.constexpr = R * WIDTH // 8
    LOW: tl.constexpr = R * WIDTH % 8
    code = planes[J] >> LOW
    if LOW + WIDTH > 8:  # the rest is in the next plane
        code = (code & ((1 << (8 - LOW)) - 1)) | (planes[J + 1] << (8 - LOW))
    return code


@triton.jit
def compensated(
    x, residual, alpha, base, width, here, n, FEEDBACK: tl.constexpr, FULL: tl.constexpr, CALM: tl.constexpr
):
    """Eight rows of x, of the residual e with FEEDBACK, and of p = x + alpha e; CALM where all may be read."""
    raw, e, p = (), (), ()
    for r in tl.static_range(8):
        there = here if FULL else here & (base + r * width < n)
        if CALM:
            v = tl.load(x + base + r * width).to(tl.float32)
        else:
            v = tl.load(x + base + r * width, mask=there, other=0.0).to(tl.float32)
        raw = raw + (v,)
        if FEEDBACK:
            old = tl.load(residual + base + r * width, mask=there, other=0.0)
            e = e + (old,)
            p = p + (v + old * alpha,)
        else:
            p = p + (v,)
    return raw, e, p


@triton.jit
def so_far(out, base, width, here, n, FRESH: tl.constexpr, FULL: tl.constexpr, NB: tl.constexpr):
    """Eight rows of what is to be added to: zeros if FRESH."""
    rows = ()
    for r in tl.static_range(8):
        if FRESH:
            rows = rows + (tl.zeros([NB, 64], tl.float32),)
        else:
            there = here if FULL else here & (base + r * width < n)
            rows = rows + (tl.load(out + base + r * width, mask=there, other=0.0),)
    return rows


@triton.jit
def write(out, rows, base, width, here, n, FULL: tl.constexpr):
    """Store eight rows of floats."""
    for r in tl.static_range(8):
        there = here if FULL else here & (base + r * width < n)
        tl.store(out + base + r * width, rows[r], mask=there)
