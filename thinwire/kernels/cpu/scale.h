// Pass 1: the scale of a block. Sums run in double over 64 lanes, row by row, then a halving tree, so that every
// instruction set and the torch reference add in the same order.
#pragma once
#include <cmath>

#include "job.h"
#include "simd.h"

namespace TW_NS {
namespace {

struct Partial {
    double sum = 0, second = 0;  // second: the other side's sum (SIDES), the sum of squares (CLIPPED)
    int64_t count = 0;           // SIDES: elements >= 0
    int32_t top = 0;             // bits of the largest magnitude: NaN > inf > finite
    float lo = INFINITY, hi = -INFINITY;
};

constexpr bool sums(int norm) { return norm == L2 || norm == MEAN || norm == SIDES || norm == CLIPPED; }

struct Lanes {
    f64v v[LANES / H] = {};
    // Lane i gets lane i + 32, then i + 16, ...: whole vectors first, then inside the last one.
    double total() const {
        f64v half[LANES / H];
        memcpy(half, v, sizeof half);
#pragma GCC unroll 8
        for (int w = LANES / H / 2; w; w /= 2)
#pragma GCC unroll 32
            for (int i = 0; i < w; ++i) half[i] += half[i + w];
        double lane[H];
        memcpy(lane, half, sizeof lane);
        for (int w = H / 2; w; w /= 2)
            for (int i = 0; i < w; ++i) lane[i] += lane[i + w];
        return lane[0];
    }
};

// Unrolled and inlined, so that the lanes stay in registers.
template <int NORM>
__attribute__((always_inline)) inline void add_row(const float* row, Lanes& first, Lanes& second, int64_t& count) {
#pragma GCC unroll 32
    for (int i = 0; i < LANES / H; ++i) {
        f64v v = __builtin_convertvector(load<f32h>(row + i * H), f64v);
        if constexpr (NORM == L2) first.v[i] += v * v;
        if constexpr (NORM == MEAN) first.v[i] += (f64v)((u64v)v & 0x7FFFFFFFFFFFFFFFull);
        if constexpr (NORM == SIDES) {
            first.v[i] += v >= 0.0 ? f64v{} : v;
            second.v[i] += v >= 0.0 ? v : f64v{};
        }
        if constexpr (NORM == CLIPPED) {
            first.v[i] += v;
            second.v[i] += v * v;
        }
    }
    if constexpr (NORM == SIDES)
        for (int i = 0; i < LANES; ++i) count += row[i] >= 0.0f;
}

template <int NORM>
inline Partial partial_of(const float* p, int64_t n) {
    Partial r;
    if constexpr (sums(NORM)) {
        Lanes first, second;
        const int64_t rows = n / LANES, left = n % LANES;
        for (int64_t k = 0; k < rows; ++k) add_row<NORM>(p + k * LANES, first, second, r.count);
        if (left) {
            alignas(64) float last[LANES] = {};
            memcpy(last, p + rows * LANES, left * sizeof(float));
            add_row<NORM>(last, first, second, r.count);
            r.count -= NORM == SIDES ? LANES - left : 0;  // the padding is not negative
        }
        r.sum = first.total();
        r.second = second.total();
        if constexpr (NORM == CLIPPED) r.top = partial_of<MAX>(p, n).top;
    } else {
        i32v top[4] = {};
        f32v lo[2] = {splat(INFINITY), splat(INFINITY)}, hi[2] = {splat(-INFINITY), splat(-INFINITY)};
        int64_t i = 0;
        for (; i + 4 * V <= n; i += 4 * V)
            for (int u = 0; u < 4; ++u) {
                f32v x = load<f32v>(p + i + u * V);
                i32v bits = (i32v)x & 0x7FFFFFFF;
                top[u] = top[u] > bits ? top[u] : bits;
                if constexpr (NORM == RANGE) {
                    lo[u & 1] = fmin_(x, lo[u & 1]);
                    hi[u & 1] = fmax_(x, hi[u & 1]);
                }
            }
        for (int u = 1; u < 4; ++u) top[0] = top[0] > top[u] ? top[0] : top[u];
        for (int j = 0; j < V; ++j) r.top = top[0][j] > r.top ? top[0][j] : r.top;
        if constexpr (NORM == RANGE) {
            f32v least = fmin_(lo[0], lo[1]), most = fmax_(hi[0], hi[1]);
            for (int j = 0; j < V; ++j) {
                r.lo = least[j] < r.lo ? least[j] : r.lo;
                r.hi = most[j] > r.hi ? most[j] : r.hi;
            }
        }
        for (; i < n; ++i) {
            int32_t bits;
            memcpy(&bits, p + i, 4);
            bits &= 0x7FFFFFFF;
            r.top = bits > r.top ? bits : r.top;
            r.lo = p[i] < r.lo ? p[i] : r.lo;
            r.hi = p[i] > r.hi ? p[i] : r.hi;
        }
    }
    return r;
}

inline Partial partial(int norm, const float* p, int64_t n) {
    switch (norm) {
        case L2: return partial_of<L2>(p, n);
        case MEAN: return partial_of<MEAN>(p, n);
        case RANGE: return partial_of<RANGE>(p, n);
        case SIDES: return partial_of<SIDES>(p, n);
        case CLIPPED: return partial_of<CLIPPED>(p, n);
        default: return partial_of<MAX>(p, n);
    }
}

inline void merge(Partial& a, const Partial& b) {
    a.sum += b.sum;
    a.second += b.second;
    a.count += b.count;
    a.top = b.top > a.top ? b.top : a.top;
    a.lo = b.lo < a.lo ? b.lo : a.lo;
    a.hi = b.hi > a.hi ? b.hi : a.hi;
}

inline int scales_per_block(int norm) { return norm == NONE ? 0 : norm == RANGE || norm == SIDES ? 2 : 1; }

// Scales stop at 2^126, so that no sum or product of the decoder overflows. Adding 0 leaves one sign of zero.
inline float capped(double s) { return (float)(s < -0x1p126 ? -0x1p126 : s < 0x1p126 ? s : 0x1p126) + 0.0f; }

// A block that holds NaN or inf gets a NaN scale: it decodes to NaN everywhere.
inline void finish(const Spec& spec, const Partial& r, int64_t n, float* scale) {
    const int norm = spec.norm;
    float top;
    memcpy(&top, &r.top, 4);
    const bool finite = sums(norm) ? std::isfinite(r.sum + r.second) : r.top < 0x7F800000;
    if (norm == RANGE || norm == SIDES) {
        const int64_t low = n - r.count, high = r.count;
        scale[0] = !finite ? NAN : norm == RANGE ? capped(r.lo) : capped(r.sum / (double)(low ? low : 1));
        scale[1] = !finite ? NAN : norm == RANGE ? capped(r.hi) : capped(r.second / (double)(high ? high : 1));
        return;
    }
    double s = top;
    if (norm == L2) s = std::sqrt(r.sum);
    if (norm == MEAN) s = r.sum / (double)n;
    if (norm == UNIT) s = 1.0;
    if (norm == CLIPPED) {
        const double mean = r.sum / (double)n, square = r.second / (double)n, variance = square - mean * mean;
        // A block of equal elements has no spread: clipping to it would send nothing.
        if (variance > square * 0x1p-40) {
            const double limit = (double)spec.clip * std::sqrt(variance);
            s = limit < s ? limit : s;
        }
    }
    scale[0] = finite ? capped(s) : NAN;
}

}  // namespace
}  // namespace TW_NS
