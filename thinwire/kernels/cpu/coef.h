// The factors that turn values into levels and back, for each row of a tile or, where a row meets two blocks or a
// tiny scale, for each element.
#pragma once
#include "job.h"
#include "scale.h"

namespace TW_NS {
namespace {

struct Factor {
    float k, lo, pre, step;
};

// 2^100 lifts scales whose reciprocal would overflow; it is 1 for all others and for zero.
inline float lift(float scale) { return scale > 0 && scale < 0x1p-96f ? 0x1p100f : 1.0f; }

inline Factor factor(const Spec& s, const float* scale) {
    const float levels = (float)s.levels;
    const float unit = s.stochastic ? std::ldexp(1.0f, s.fraction()) : 1.0f;
    Factor f{0, 0, 1, 0};
    if (!scale) return f;  // NATURAL, and bare signs
    const bool two = scales_per_block(s.norm) == 2;
    float lo = two ? scale[0] : -scale[0], hi = two ? scale[1] : scale[0];
    if (s.kind == PAIR) {
        f.lo = lo;
        f.step = hi;
        return f;
    }
    if (s.kind == UNSIGNED) {
        if (s.norm == UNIT) {
            lo = s.lo * scale[0];
            hi = s.hi * scale[0];
        }
        f.lo = lo;
        f.step = hi / levels - lo / levels;
        f.pre = lift(f.step);
        f.k = f.step == 0 ? 0 : unit / (f.step * f.pre);
    } else {
        f.pre = lift(hi);
        float top = s.kind == DITHER ? std::ldexp(1.0f, s.levels - 1) : levels * unit;
        f.k = hi == 0 ? 0 : top / (hi * f.pre);
        f.step = s.kind == SIGNED ? hi / levels : hi;
    }
    return f;
}

struct Coefs {
    bool rows;  // one factor per row (index 0..7), otherwise one per element (index 0..511)
    alignas(64) float k[TILE], lo[TILE], pre[TILE], step[TILE];
    void set(int i, const Factor& f) {
        k[i] = f.k;
        lo[i] = f.lo;
        pre[i] = f.pre;
        step[i] = f.step;
    }
};

// Walks the blocks in order and remembers the factor of the current one.
struct Cursor {
    const Job& job;
    int stride;
    int64_t b = 0, end;
    Factor f;
    Cursor(const Job& j, int64_t start) : job(j), stride(scales_per_block(j.spec.norm)) {
        if (!stride) {
            end = INT64_MAX;
            f = factor(j.spec, nullptr);
            return;
        }
        if (!job.blocks.starts) {
            b = start / job.blocks.size;
        } else {
            int64_t lo = 0, hi = job.blocks.count;
            while (hi - lo > 1) {
                int64_t mid = (lo + hi) / 2;
                (job.blocks.starts[mid] <= start ? lo : hi) = mid;
            }
            b = lo;
        }
        enter();
    }
    void enter() {
        end = job.blocks.end(b);
        f = factor(job.spec, job.scales + b * stride);
    }
    void seek(int64_t i) {
        while (i >= end) {
            ++b;
            enter();
        }
    }
};

// Factors of the tile at element i0. `lanes` is 64, or fewer in the last tile, whose m elements fill rows of that
// many.
inline void tile_coefs(Cursor& cur, int64_t i0, int m, int lanes, Coefs& c) {
    c.rows = m == TILE;
    for (int r = 0; c.rows && r < ROWS; ++r) {
        cur.seek(i0 + r * LANES);
        c.rows = cur.end >= i0 + (r + 1) * LANES && cur.f.pre == 1.0f;
        c.set(r, cur.f);
    }
    if (c.rows) return;
    Cursor each(cur.job, i0);
    memset(c.k, 0, sizeof c.k);
    memset(c.lo, 0, sizeof c.lo);
    memset(c.step, 0, sizeof c.step);
    for (int i = 0; i < TILE; ++i) c.pre[i] = 1;
    for (int i = 0; i < m; ++i) {
        each.seek(i0 + i);
        c.set(i / lanes * LANES + i % lanes, each.f);
    }
}

}  // namespace
}  // namespace TW_NS
