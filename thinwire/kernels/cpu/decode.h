// Decode and add: unpack, scale, accumulate.
#pragma once
#include "range.h"

namespace TW_NS {
namespace {

template <int KIND, bool FRESH>
void decode_tiles(const Job& j, int64_t t0, int64_t t1) {
    const int width = width_of(j.spec);
    Coefs c;
    Tile t;
    Cursor cur(j, t0 * TILE);
    alignas(64) float tail[TILE];
    alignas(64) uint8_t planes[9 * LANES];
    for (int64_t tile = t0; tile < t1; ++tile) {
        const int64_t i0 = tile * TILE;
        const int m = tile_size(j.n, i0), lanes = tile_lanes(m);
        const uint8_t* in = widen_planes(j.codes + tile * LANES * width, width, lanes, planes);
        if (!FRESH && i0 + AHEAD + TILE <= j.n) prefetch(j.out + i0 + AHEAD, TILE * 4);
        tile_coefs(cur, i0, m, lanes, c);
        if (KIND == NATURAL) {
            memcpy(t.codes, in, TILE);
            unpack_tile<false>(in + TILE, 1, t.signs);
        } else {
            unpack_tile<two_complement(KIND)>(in, width, t.codes);
        }
        if (m == TILE) {
            add_tile<KIND, FRESH>(t, c, j.spec.levels, j.weight, j.out + i0);
        } else {
            memset(tail, 0, sizeof tail);
            if (!FRESH) widen(j.out + i0, m, lanes, tail);
            add_tile<KIND, FRESH>(t, c, j.spec.levels, j.weight, tail);
            narrow(tail, m, lanes, j.out + i0);
        }
    }
}

typedef void (*DecodeTiles)(const Job&, int64_t, int64_t);
template <bool FRESH>
constexpr DecodeTiles decode_by_kind[] = {decode_tiles<SIGNED, FRESH>, decode_tiles<UNSIGNED, FRESH>,
                                          decode_tiles<SIGN, FRESH>,   decode_tiles<DITHER, FRESH>,
                                          decode_tiles<NATURAL, FRESH>, decode_tiles<PAIR, FRESH>};

void decode_range(void* ctx, int64_t t0, int64_t t1) {
    const Job& j = *(const Job*)ctx;
    (j.fresh ? decode_by_kind<true> : decode_by_kind<false>)[j.spec.kind](j, t0, t1);
}

void decode_add(const Job& j) {
    if (j.n) parallel_for(tiles_of(j.n), GRAIN / TILE, j.threads, decode_range, (void*)&j);
}

}  // namespace
}  // namespace TW_NS
