// Pass 1: the scale of a block. Sums run in double over 64 lanes, row by row, then a halving tree, so that every
// instruction set and the torch reference add in the same order.
#pragma once
#include <cmath>

#include "job.h"
#include "simd.h"

namespace TW_NS {
namespace {

struct Partial {
    double sum = 0;
    int32_t top = 0;  // bits of the largest magnitude: NaN > inf > finite
    float lo = INFINITY, hi = -INFINITY;
};

template <int NORM>
inline Partial partial_of(const float* p, int64_t n) {
    Partial r;
    if constexpr (NORM == L2 || NORM == MEAN) {
        f64v acc[LANES / H] = {};
        alignas(64) float last[LANES] = {};
        auto add_row = [&](const float* row) {
            for (int i = 0; i < LANES / H; ++i) {
                f64v v = __builtin_convertvector(load<f32h>(row + i * H), f64v);
                acc[i] += NORM == L2 ? v * v : (f64v)((u64v)v & 0x7FFFFFFFFFFFFFFFull);
            }
        };
        int64_t rows = n / LANES;
        for (int64_t r0 = 0; r0 < rows; ++r0) add_row(p + r0 * LANES);
        if (n % LANES) {
            memcpy(last, p + rows * LANES, (n % LANES) * sizeof(float));
            add_row(last);
        }
        double lane[LANES];
        memcpy(lane, acc, sizeof lane);
        for (int w = LANES / 2; w; w /= 2)
            for (int i = 0; i < w; ++i) lane[i] += lane[i + w];
        r.sum = lane[0];
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
        default: return partial_of<MAX>(p, n);
    }
}

inline void merge(Partial& a, const Partial& b) {
    a.sum += b.sum;
    a.top = b.top > a.top ? b.top : a.top;
    a.lo = b.lo < a.lo ? b.lo : a.lo;
    a.hi = b.hi > a.hi ? b.hi : a.hi;
}

inline int scales_per_block(int norm) { return norm == NONE ? 0 : norm == RANGE ? 2 : 1; }

// Scales stop at 2^126, so that no sum or product of the decoder overflows.
inline float capped(double s) { return (float)(s < 0x1p126 ? s : 0x1p126); }

// A block that holds NaN or inf gets a NaN scale: it decodes to NaN everywhere.
inline void finish(int norm, const Partial& r, int64_t n, float* scale) {
    float top;
    memcpy(&top, &r.top, 4);
    const bool sums = norm == L2 || norm == MEAN;
    const bool finite = sums ? std::isfinite(r.sum) : r.top < 0x7F800000;
    if (norm == RANGE) {
        scale[0] = finite ? 0.0f - capped(-(double)r.lo) : NAN;  // 0 - : one sign of zero
        scale[1] = finite ? 0.0f + capped((double)r.hi) : NAN;
        return;
    }
    double s = norm == L2 ? std::sqrt(r.sum) : norm == MEAN ? r.sum / (double)n : norm == UNIT ? 1.0 : (double)top;
    scale[0] = finite ? capped(s) : NAN;
}

}  // namespace
}  // namespace TW_NS
