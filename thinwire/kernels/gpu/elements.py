"""One element at a time, as the tensors of a Triton program: noise, rounding, values. The reference tier in Triton.

Every operation is one float32 rounding, in the order of `kernels/reference.py`. The kinds and norms are the numbers of
`kernels/spec.py`. `rows` are the eight rows of some tiles, each (tiles, 64).
"""

from __future__ import annotations

import triton
import triton.language as tl

from thinwire.kernels.gpu.tiles import INTERPRETED
from thinwire.kernels.spec import Kind, Norm

SIGNED, UNSIGNED, SIGN, DITHER, NATURAL, PAIR = (tl.constexpr(int(kind)) for kind in Kind)
MAX, L2, MEAN, RANGE, UNIT, NONE, SIDES, CLIPPED = (tl.constexpr(int(norm)) for norm in Norm)
WHOLE = tl.constexpr(8388608.0)  # 2^23: from here on every float is a whole number
ONE_STEP = tl.constexpr(1073741824.0)  # 2^30


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """Four 32-bit words per counter, in seven rounds (kernels/philox.py)."""
    for _ in tl.static_range(7):
        p0 = c0.to(tl.uint64) * 0xD2511F53  # one instruction has both halves of the product
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def beside(number, element):
    """`number`, held by the thread that holds `element`: the compiler keeps the operands of assembly together.

    Without it noise is drawn in another layout than the elements' and changes threads through shared memory.
    """
    if INTERPRETED:
        return number
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r,f", [number, element], dtype=tl.uint32, is_pure=True, pack=1
        )


@triton.jit
def noise(lane, key, element):
    """The noise of eight rows at these lanes; `key` is two key words and four counter words, uint32."""
    c0 = beside(lane.to(tl.uint32) + key[2], element)
    zero = c0 * 0
    words = philox(c0, zero + key[3], zero + key[4], zero + key[5], key[0], key[1])
    rows = ()
    for w in tl.static_range(4):
        rows = rows + ((words[w] << 16) | (words[w] >> 16), words[w])
    return rows


@triton.jit
def words(k0, k1, c0, c1, c2, c3):
    """The key of a launch: its words are passed as int32."""
    return (
        k0.to(tl.uint32, bitcast=True),
        k1.to(tl.uint32, bitcast=True),
        c0.to(tl.uint32, bitcast=True),
        c1.to(tl.uint32, bitcast=True),
        c2.to(tl.uint32, bitcast=True),
        c3.to(tl.uint32, bitcast=True),
    )


@triton.jit
def lift(scale):
    """2^100 where the reciprocal of a tiny scale would overflow, else 1."""
    return tl.where((scale > 0) & (scale < 1.262177448353619e-29), 1.2676506002282294e30, 1.0)


@triton.jit
def over(x, LEVELS: tl.constexpr):
    """x / LEVELS."""
    if LEVELS & (LEVELS - 1) == 0:
        return x * (1.0 / LEVELS)  # exact, or rounded once like the division
    elif (LEVELS < 4096) & (LEVELS % 2 == 1):
        # A quotient by a small odd number is never so near the middle of two floats that float64's error counts.
        return (x.to(tl.float64) * (1.0 / LEVELS)).to(tl.float32)
    else:
        return tl.div_rn(x, tl.zeros_like(x) + LEVELS)


@triton.jit
def factors(a, b, KIND: tl.constexpr, NORM: tl.constexpr, LEVELS: tl.constexpr, UNIT_: tl.constexpr, lo_end, hi_end):
    """(k, lo, pre, step) of blocks with the scales `a` and `b` (the same where a block has one)."""
    if (NORM == RANGE) | (NORM == SIDES):
        lo = a
        hi = b
    elif (KIND == UNSIGNED) & (NORM == UNIT):
        lo = lo_end * a
        hi = hi_end * a
    else:
        lo = -a
        hi = a
    zero = tl.zeros_like(hi)
    if KIND == PAIR:
        return zero, lo, zero + 1.0, hi
    elif KIND == UNSIGNED:
        step = over(hi, LEVELS) - over(lo, LEVELS)
        pre = lift(step)
        return tl.where(step == 0, 0.0, tl.div_rn(zero + UNIT_, step * pre)), lo, pre, step
    elif KIND == DITHER:
        pre = lift(hi)
        return tl.where(hi == 0, 0.0, tl.div_rn(zero + 2.0 ** (LEVELS - 1), hi * pre)), zero, pre, hi
    elif KIND == SIGNED:
        pre = lift(hi)
        return tl.where(hi == 0, 0.0, tl.div_rn(zero + LEVELS * UNIT_, hi * pre)), zero, pre, over(hi, LEVELS)
    else:
        return zero, lo, zero + 1.0, hi


@triton.jit
def nearest(t):
    """The nearest whole number as int32, halves to even, of |t| < 2^31."""
    if INTERPRETED:
        a = tl.abs(t)
        n = tl.where(a < WHOLE, (a + WHOLE) - WHOLE, a).to(tl.int32)
        return tl.where(t < 0, -n, n)
    else:
        return tl.inline_asm_elementwise("cvt.rni.s32.f32 $0, $1;", "=r,f", [t], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def nearest_above(t):
    """The same of t < 2^31, and 0 of what is below: the processor's conversion ends there."""
    if INTERPRETED:
        return nearest(tl.maximum(t, 0.0))
    else:
        return tl.inline_asm_elementwise("cvt.rni.u32.f32 $0, $1;", "=r,f", [t], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def fixed(t, u, FRACTION: tl.constexpr):
    """floor(t + u) in fixed point, with `FRACTION` bits behind the point; u is 32 bits of noise."""
    return (nearest(t) + (u >> (32 - FRACTION)).to(tl.int32)) >> FRACTION


@triton.jit
def noisy(p, u, k, lo, pre, KIND: tl.constexpr, LEVELS: tl.constexpr, FRACTION: tl.constexpr):
    """The scaled element plus its noise, in fixed point: above `FRACTION` bits lies the code. UNSIGNED or SIGNED."""
    top = LEVELS * 2.0**FRACTION
    if KIND == UNSIGNED:
        whole = nearest_above(tl.minimum(((p - lo) * pre) * k, top))  # NaN becomes top
    else:
        whole = nearest(tl.minimum(tl.maximum((p * pre) * k, -top), top))  # NaN becomes -top
    return whole + (u >> (32 - FRACTION)).to(tl.int32)


@triton.jit
def quantise(
    p, u, k, lo, pre, KIND: tl.constexpr, LEVELS: tl.constexpr, FRACTION: tl.constexpr, STOCHASTIC: tl.constexpr
):
    """The code of each element, int32."""
    if (KIND == SIGN) | (KIND == PAIR):
        return (p >= 0).to(tl.int32)
    elif KIND == NATURAL:
        bits = p.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        exponent = ((bits.to(tl.uint32) + (u >> 9)) >> 23).to(tl.int32)
        return tl.where(bits >= 0x7F800000, 255, tl.minimum(exponent, 254))
    elif KIND == DITHER:
        high_end = 2.0 ** (LEVELS - 1)
        t = (tl.abs(p) * pre) * k
        t = tl.minimum(t, high_end)  # NaN becomes high_end
        low = fixed(tl.minimum(t, 1.0) * ONE_STEP, u, 30)
        high = ((t.to(tl.int32, bitcast=True).to(tl.uint32) + (u >> 9)) >> 23).to(tl.int32) - 126
        q = tl.where(t < 1, low, high)
        return tl.where(p < 0, -q, q)
    else:
        if STOCHASTIC:
            return noisy(p, u, k, lo, pre, KIND, LEVELS, FRACTION) >> FRACTION
        elif KIND == UNSIGNED:
            t = tl.maximum(tl.minimum(((p - lo) * pre) * k, 1.0 * LEVELS), 0.0)  # NaN becomes LEVELS
            return (t + 0.5).to(tl.int32)
        else:
            return nearest(tl.minimum(tl.maximum((p * pre) * k, -1.0 * LEVELS), 1.0 * LEVELS))  # NaN becomes -LEVELS


@triton.jit
def number(field, WIDTH: tl.constexpr, SIGN_BIT: tl.constexpr):
    """A field as float32, two's complement with a SIGN_BIT; bits above the field are not looked at.

    The field becomes the lowest bits of 2^23 + field, which costs less than a conversion.
    """
    HALF: tl.constexpr = (1 << (WIDTH - 1)) if SIGN_BIT else 0
    bits = (field & ((1 << WIDTH) - 1)) ^ (HALF | 0x4B000000)
    return bits.to(tl.float32, bitcast=True) - (WHOLE + HALF)


@triton.jit
def value(code, sign, lo, step, KIND: tl.constexpr, LEVELS: tl.constexpr):
    """What a code decodes to, float32; `sign` is NATURAL's own plane."""
    if KIND == SIGN:
        return tl.where(code != 0, step, -step)
    elif KIND == PAIR:
        return tl.where(code != 0, step, lo)
    elif KIND == UNSIGNED:
        return lo + code.to(tl.float32) * step
    elif KIND == DITHER:
        m = tl.abs(code)
        power = ((m - LEVELS + 127) << 23).to(tl.float32, bitcast=True)
        v = tl.where(m == 0, tl.where(step != step, step, 0.0), power * step)
        return tl.where(code < 0, -v, v)
    elif KIND == NATURAL:
        v = ((code << 23) | (sign << 31)).to(tl.float32, bitcast=True)
        return tl.where(code == 255, float("nan"), v)
    else:
        return code.to(tl.float32) * step
