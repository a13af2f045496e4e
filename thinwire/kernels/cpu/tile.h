// Pass 2 on one tile of 512 elements: values to codes (one byte each, 8 rows of 64 lanes) and back.
#pragma once
#include "coef.h"
#include "philox.h"

namespace TW_NS {
namespace {

// floor(t + u) in fixed point, with `fraction` bits behind the point; u is 32 bits of noise.
inline i32v round_fixed(f32v t, u32v u, int fraction) {
    return (round_(t) + (i32v)(u >> (32 - fraction))) >> fraction;
}

// One vector of codes. k, lo, pre come from the block's scale; top is the largest level, in the unit of k.
template <int KIND, bool STOCHASTIC>
inline i32v quantise(f32v x, f32v k, f32v lo, f32v pre, float top, u32v u, int fraction) {
    if constexpr (KIND == SIGN || KIND == PAIR) return (x >= 0.0f) & 1;
    if constexpr (KIND == NATURAL) {
        i32v bits = (i32v)x & 0x7FFFFFFF;
        i32v e = (i32v)(((u32v)bits + (u >> 9)) >> 23);
        e = e < 254 ? e : (i32v{} + 254);                       // the largest finite power of two
        return bits >= 0x7F800000 ? (i32v{} + 255) : e;         // NaN and inf stay recognisable
    }
    if constexpr (KIND == UNSIGNED) {
        f32v t = fmax_(fmin_(((x - lo) * pre) * k, splat(top)), splat(0.0f));
        return STOCHASTIC ? round_fixed(t, u, fraction) : trunc_(t + 0.5f);
    }
    if constexpr (KIND == SIGNED) {  // floor(t + u) is unbiased for negative t too
        f32v t = fmin_(fmax_((x * pre) * k, splat(-top)), splat(top));
        return STOCHASTIC ? round_fixed(t, u, fraction) : round_(t);
    }
    f32v t = fmin_((fabs_(x) * pre) * k, splat(top));                     // DITHER
    i32v low = round_fixed(fmin_(t, splat(1.0f)) * 0x1p30f, u, 30);       // between 0 and the smallest level
    i32v high = (((i32v)t + (i32v)(u >> 9)) >> 23) - 126;                 // between powers of two: carry into the exponent
    i32v q = t < 1.0f ? low : high;
    return x < 0.0f ? -q : q;
}

// The value of one vector of codes.
template <int KIND>
inline f32v dequantise(const uint8_t* codes, f32v lo, f32v step, int levels) {
    if constexpr (KIND == SIGN || KIND == PAIR) {
        i32v q = widen_u8(codes);
        return q != 0 ? step : (KIND == PAIR ? lo : -step);
    } else if constexpr (KIND == UNSIGNED) {
        return lo + __builtin_convertvector(widen_u8(codes), f32v) * step;
    } else if constexpr (KIND == DITHER) {
        i32v q = widen_i8(codes), negative = q < 0;
        i32v m = (q ^ negative) - negative;
        f32v power = (f32v)((m - levels + 127) << 23);
        f32v v = m == 0 ? f32v{} : power * step;
        v = step == step ? v : step;
        return (f32v)((i32v)v ^ (negative << 31));
    } else {
        return __builtin_convertvector(widen_i8(codes), f32v) * step;
    }
}

inline f32v natural_value(const uint8_t* codes, const uint8_t* signs) {
    i32v e = widen_u8(codes);
    i32v s = widen_u8(signs);
    f32v v = (f32v)((e << 23) | (s << 31));
    return e == 255 ? splat(NAN) : v;
}

struct Tile {
    alignas(64) uint8_t codes[TILE];
    alignas(64) uint8_t signs[TILE];  // NATURAL only
};

template <int KIND, bool STOCHASTIC, bool BY_ROW>
inline void encode_tile(const float* x, const float* next, const Coefs& c, float top, int fraction,
                        const Stream& noise, uint32_t first, Tile& tile) {
    for (int g = 0; g < LANES; g += V) {
        Words w{};
        if constexpr (STOCHASTIC) w = philox(noise, first + g);
        for (int r = 0; r < ROWS; ++r) {
            int i = r * LANES + g;
            f32v v = load<f32v>(x + i), one = splat(1.0f);
            __builtin_prefetch(next + i, 0, 2);  // one line per vector: a burst of prefetches would stall
            u32v u = w.row(r);
            i32v q = BY_ROW ? quantise<KIND, STOCHASTIC>(v, splat(c.k[r]), splat(c.lo[r]), one, top, u, fraction)
                            : quantise<KIND, STOCHASTIC>(v, load<f32v>(c.k + i), load<f32v>(c.lo + i),
                                                         load<f32v>(c.pre + i), top, u, fraction);
            store_low_bytes(tile.codes + i, q);
            if constexpr (KIND == NATURAL) store_low_bytes(tile.signs + i, (i32v)((u32v)v >> 31));
        }
    }
}

template <int KIND>
inline f32v tile_value(const Tile& tile, const Coefs& c, int r, int i, int levels) {
    if constexpr (KIND == NATURAL) return natural_value(tile.codes + i, tile.signs + i);
    if (c.rows) return dequantise<KIND>(tile.codes + i, splat(c.lo[r]), splat(c.step[r]), levels);
    return dequantise<KIND>(tile.codes + i, load<f32v>(c.lo + i), load<f32v>(c.step + i), levels);
}

// out += weight * value; or out = 0 + weight * value, where even the sign of a zero is that of the sum
template <int KIND, bool FRESH>
inline void add_tile(const Tile& tile, const Coefs& c, int levels, float weight, float* out) {
    for (int r = 0; r < ROWS; ++r)
        for (int i = r * LANES; i < (r + 1) * LANES; i += V) {
            const f32v before = FRESH ? splat(0.0f) : load<f32v>(out + i);
            store(out + i, before + tile_value<KIND>(tile, c, r, i, levels) * weight);
        }
}

// e = beta * e + (x - value); where that is NaN (the block was not finite) e stays as it was
template <int KIND>
inline void feedback_tile(const Tile& tile, const Coefs& c, int levels, float beta, const float* x, float* e) {
    for (int r = 0; r < ROWS; ++r)
        for (int i = r * LANES; i < (r + 1) * LANES; i += V) {
            f32v old = load<f32v>(e + i);
            f32v now = old * beta + (load<f32v>(x + i) - tile_value<KIND>(tile, c, r, i, levels));
            store(e + i, now == now ? now : old);
        }
}

}  // namespace
}  // namespace TW_NS
