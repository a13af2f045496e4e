// The smaller passes: noise, pack, unpack; and all of them for one instruction set.
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
        const int m = (int)(j.n - i0 < TILE ? j.n - i0 : TILE), lanes = tile_lanes(m);
        alignas(64) uint32_t wide[TILE];
        for (int g = 0; g < LANES; g += V) {
            Words w = philox(stream, (uint32_t)(tile * LANES) + g);
            for (int r = 0; r < ROWS; ++r)
                store(wide + r * LANES + g, r & 1 ? w.w[r / 2] : (w.w[r / 2] << 16) | (w.w[r / 2] >> 16));
        }
        narrow(wide, m, lanes, j.out + i0);
    }
}

void noise(const Noise& key, int64_t n, uint32_t* out, int threads) {
    NoiseJob j{key, n, out};
    parallel_for(tiles_of(n), GRAIN / TILE, threads, noise_range, &j);
}

void pack(const uint8_t* codes, int64_t n, int width, uint8_t* out) {
    alignas(64) uint8_t wide[TILE], planes[8 * LANES];
    for (int64_t i0 = 0; i0 < n; i0 += TILE) {
        const int m = (int)(n - i0 < TILE ? n - i0 : TILE), lanes = tile_lanes(m);
        uint8_t* to = out + i0 / TILE * LANES * width;
        if (m == TILE) {
            pack_tile(codes + i0, width, to);
            continue;
        }
        memset(wide, 0, sizeof wide);
        widen(codes + i0, m, lanes, wide);
        pack_tile(wide, width, planes);
        for (int b = 0; b < width; ++b) memcpy(to + b * lanes, planes + b * LANES, lanes);
    }
}

void unpack(const uint8_t* packed, int64_t n, int width, uint8_t* codes) {
    alignas(64) uint8_t wide[TILE], planes[8 * LANES];
    for (int64_t i0 = 0; i0 < n; i0 += TILE) {
        const int m = (int)(n - i0 < TILE ? n - i0 : TILE), lanes = tile_lanes(m);
        const uint8_t* from = packed + i0 / TILE * LANES * width;
        if (m == TILE) {
            unpack_tile<false>(from, width, codes + i0);
            continue;
        }
        memset(planes, 0, sizeof planes);
        for (int b = 0; b < width; ++b) memcpy(planes + b * LANES, from + b * lanes, lanes);
        unpack_tile<false>(planes, width, wide);
        narrow(wide, m, lanes, codes + i0);
    }
}

}  // namespace
}  // namespace TW_NS
