// The smaller passes: noise, copy, difference, pack, unpack; and all of them for one instruction set.
#pragma once
#include "decode.h"
#include "encode.h"

namespace TW_NS {
namespace {

struct NoiseJob {
    const Noise& noise;
    int64_t n;
    uint32_t* out;
};

void noise_range(void* ctx, int64_t t0, int64_t t1) {
    const NoiseJob& j = *(const NoiseJob*)ctx;
    const Stream stream(j.noise);
    for (int64_t tile = t0; tile < t1; ++tile) {
        const int64_t i0 = tile * TILE;
        const int m = tile_size(j.n, i0), lanes = tile_lanes(m);
        alignas(64) uint32_t wide[TILE];
        for (int g = 0; g < LANES; g += V) {
            Words w = philox(stream, (uint32_t)(tile * LANES) + g);
            for (int r = 0; r < ROWS; ++r) store(wide + r * LANES + g, w.row(r));
        }
        narrow(wide, m, lanes, j.out + i0);
    }
}

void noise(const Noise& key, int64_t n, uint32_t* out, int threads) {
    NoiseJob j{key, n, out};
    parallel_for(tiles_of(n), GRAIN / TILE, threads, noise_range, &j);
}

constexpr int32_t WILD = (127 + 96) << 23;  // the bits of 2^96

// Elements of tiles t0 .. t1 - 1 of n: `wide` writes V of them from a place on and returns their bits, `one` a single
// element; returns whether one of them is not tame: 2^96 or more in magnitude, or not finite.
template <class Wide, class One>
inline bool any_wild(int64_t t0, int64_t t1, int64_t n, Wide wide, One one) {
    const int64_t stop = t1 * TILE < n ? t1 * TILE : n;
    int64_t i = t0 * TILE;
    i32v wild{};
    for (; i + V <= stop; i += V) wild |= (wide(i) & 0x7FFFFFFF) >= WILD;
    int any = 0;
    for (int k = 0; k < V; ++k) any |= wild[k];
    for (; i < stop; ++i) any |= (one(i) & 0x7FFFFFFF) >= WILD;
    return any;
}

struct CopyJob {
    const float* x;
    float* out;
    int64_t n;
    int wild;
};

void copy_range(void* ctx, int64_t t0, int64_t t1) {
    CopyJob& j = *(CopyJob*)ctx;
    const auto wide = [&j](int64_t i) {
        const i32v bits = load<i32v>(j.x + i);
        store(j.out + i, bits);
        return bits;
    };
    const auto one = [&j](int64_t i) {
        int32_t bits;
        memcpy(&bits, j.x + i, 4);
        memcpy(j.out + i, &bits, 4);
        return bits;
    };
    if (any_wild(t0, t1, j.n, wide, one)) __atomic_store_n(&j.wild, 1, __ATOMIC_RELAXED);
}

// Copies, and returns whether every element is below 2^96 in magnitude.
bool copy(const float* x, int64_t n, float* out, int threads) {
    CopyJob j{x, out, n, 0};
    if (n) parallel_for(tiles_of(n), GRAIN / TILE, threads, copy_range, &j);
    return !j.wild;
}

struct DifferenceJob {
    const float* a;
    const float* b;
    float* out;
    float* again;
    int64_t n;
    int wild;
};

template <bool AGAIN>
void difference_range(void* ctx, int64_t t0, int64_t t1) {
    DifferenceJob& j = *(DifferenceJob*)ctx;
    const auto wide = [&j](int64_t i) {
        const f32v d = load<f32v>(j.a + i) - load<f32v>(j.b + i);
        store(j.out + i, d);
        if (AGAIN) store(j.again + i, d);
        return (i32v)d;
    };
    const auto one = [&j](int64_t i) {
        const float d = j.a[i] - j.b[i];
        j.out[i] = d;
        if (AGAIN) j.again[i] = d;
        int32_t bits;
        memcpy(&bits, &d, 4);
        return bits;
    };
    if (any_wild(t0, t1, j.n, wide, one)) __atomic_store_n(&j.wild, 1, __ATOMIC_RELAXED);
}

// Writes a - b to out, and to `again` unless that is null; returns whether every element of it is below 2^96.
bool difference(const float* a, const float* b, int64_t n, float* out, float* again, int threads) {
    DifferenceJob j{a, b, out, again, n, 0};
    if (n) parallel_for(tiles_of(n), GRAIN / TILE, threads, again ? difference_range<true> : difference_range<false>, &j);
    return !j.wild;
}

void pack(const uint8_t* codes, int64_t n, int width, uint8_t* out) {
    alignas(64) uint8_t wide[TILE] = {};
    for (int64_t i0 = 0; i0 < n; i0 += TILE) {
        const int m = tile_size(n, i0), lanes = tile_lanes(m);
        const uint8_t* from = codes + i0;
        if (m < TILE) {
            widen(from, m, lanes, wide);
            from = wide;
        }
        pack_lanes(from, width, lanes, out + i0 / TILE * LANES * width);
    }
}

void unpack(const uint8_t* packed, int64_t n, int width, uint8_t* codes) {
    alignas(64) uint8_t wide[TILE], planes[8 * LANES];
    for (int64_t i0 = 0; i0 < n; i0 += TILE) {
        const int m = tile_size(n, i0), lanes = tile_lanes(m);
        const uint8_t* from = widen_planes(packed + i0 / TILE * LANES * width, width, lanes, planes);
        unpack_tile<false>(from, width, m == TILE ? codes + i0 : wide);
        if (m < TILE) narrow(wide, m, lanes, codes + i0);
    }
}

}  // namespace
}  // namespace TW_NS
