// Encode: stage (widen 16-bit input, add the residual), scale, round, pack, keep the error, checksum.
#pragma once
#include "blocks.h"
#include "checksum.h"

namespace TW_NS {
namespace {

template <int KIND>
inline void codes_of(const Spec& s, const float* p, const float* next, const Coefs& c, float top, int fraction,
                     const Stream& noise, uint32_t first, Tile& t) {
    if (KIND == NATURAL || KIND == DITHER || (KIND != SIGN && KIND != PAIR && s.stochastic))
        c.rows ? encode_tile<KIND, true, true>(p, next, c, top, fraction, noise, first, t)
               : encode_tile<KIND, true, false>(p, next, c, top, fraction, noise, first, t);
    else
        c.rows ? encode_tile<KIND, false, true>(p, next, c, top, fraction, noise, first, t)
               : encode_tile<KIND, false, false>(p, next, c, top, fraction, noise, first, t);
}

inline void pack_natural(const Tile& t, int lanes, uint8_t* out) {
    pack_lanes(t.codes, 8, lanes, out);
    pack_lanes(t.signs, 1, lanes, out + ROWS * lanes);
}

// Tiles [t0, t1); `p` holds the staged floats from element `origin` on.
template <int KIND>
void encode_tiles(const Job& j, const float* p, int64_t origin, int64_t t0, int64_t t1) {
    const int64_t ahead = (t1 - t0) * TILE, item = j.dtype == F32 ? 4 : 2;
    const int width = width_of(j.spec);
    const int fraction = j.spec.fraction();
    const float top = KIND == DITHER ? std::ldexp(1.0f, j.spec.levels - 1)
                                     : (float)j.spec.levels * (j.spec.stochastic ? std::ldexp(1.0f, fraction) : 1.0f);
    const Stream noise(j.noise);
    Coefs c;
    Tile t;
    Cursor cur(j, t0 * TILE);
    alignas(64) float tail[TILE], xs[TILE], es[TILE];
    for (int64_t tile = t0; tile < t1; ++tile) {
        const int64_t i0 = tile * TILE;
        const int m = tile_size(j.n, i0), lanes = tile_lanes(m);
        const float* src = p + (i0 - origin);
        const bool more = i0 + ahead + TILE <= j.n;
        const float* next = more && item == 4 ? (const float*)j.x + i0 + ahead : src;
        if (more && item == 2) prefetch((const char*)j.x + (i0 + ahead) * item, TILE * item);
        tile_coefs(cur, i0, m, lanes, c);
        if (m < TILE) {
            for (float& v : tail) v = KIND == SIGN || KIND == PAIR ? -1.0f : 0.0f;  // padding packs to zero bits
            widen(src, m, lanes, tail);
            src = tail;
        }
        codes_of<KIND>(j.spec, src, next, c, top, fraction, noise, (uint32_t)(tile * LANES), t);
        uint8_t* out = j.codes + tile * LANES * width;
        KIND == NATURAL ? pack_natural(t, lanes, out) : pack_lanes(t.codes, width, lanes, out);
        if (!j.e) continue;
        if (more) prefetch(j.e + i0 + ahead, TILE * 4);
        const float* x = as_float(j, i0, m, xs);
        if (m == TILE) {
            feedback_tile<KIND>(t, c, j.spec.levels, j.beta, x, j.e + i0);
        } else {
            float wide[TILE] = {};
            memset(es, 0, sizeof es);
            widen(x, m, lanes, wide);
            widen(j.e + i0, m, lanes, es);
            feedback_tile<KIND>(t, c, j.spec.levels, j.beta, wide, es);
            narrow(es, m, lanes, j.e + i0);
        }
    }
}

typedef void (*EncodeTiles)(const Job&, const float*, int64_t, int64_t, int64_t);
const EncodeTiles encode_by_kind[] = {encode_tiles<SIGNED>, encode_tiles<UNSIGNED>, encode_tiles<SIGN>,
                                      encode_tiles<DITHER>, encode_tiles<NATURAL>,  encode_tiles<PAIR>};

// Whole blocks and whole tiles in one chunk that stays in cache: scales, then codes, while memory is read once.
// A batch of chunks is checksummed while its codes are still in cache.
struct Fused {
    const Job& j;
    int64_t chunk, batch;  // elements, chunks
};

void encode_chunk(const Fused& f, int64_t c, float* buf) {
    const Job& j = f.j;
    const int stride = j.given ? 0 : scales_per_block(j.spec.norm);
    const int64_t i0 = c * f.chunk, i1 = i0 + f.chunk < j.n ? i0 + f.chunk : j.n;
    const float* p = stage(j, i0, i1 - i0, buf);
    if (stride)
        for (int64_t b = i0 / j.blocks.size; b < j.blocks.count && j.blocks.begin(b) < i1; ++b) {
            int64_t s = j.blocks.begin(b), n = j.blocks.end(b) - s;
            finish(j.spec, partial(j.spec.norm, p + (s - i0), n), n, j.scales + b * stride);
        }
    encode_by_kind[j.spec.kind](j, p, i0, i0 / TILE, tiles_of(i1));
}

void encode_batches(void* ctx, int64_t b0, int64_t b1) {
    const Fused& f = *(const Fused*)ctx;
    const Job& j = f.j;
    Buffer buf(f.chunk);
    uint64_t sum = 0;
    for (int64_t b = b0; b < b1; ++b) {
        const int64_t begin = b * f.batch * f.chunk, end = (b + 1) * f.batch * f.chunk;
        for (int64_t c = b * f.batch; c < (b + 1) * f.batch && c * f.chunk < j.n; ++c) encode_chunk(f, c, buf.p);
        if (j.sum) {
            const int64_t from = code_bytes(j.spec, begin), to = code_bytes(j.spec, end < j.n ? end : j.n);
            sum += sum_words(j.codes + from, to - from, j.first + from / 4);
        }
    }
    if (j.sum) __atomic_fetch_add(j.sum, sum, __ATOMIC_RELAXED);
}

int64_t lcm_with_tile(int64_t block) {  // block is at most SEGMENT
    int64_t a = block, b = TILE;
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return block / a * TILE;
}

void encode(const Job& j) {
    if (!j.n) return;
    const bool needs_scale = !j.given && scales_per_block(j.spec.norm) > 0;
    const bool fits = !j.blocks.starts && j.blocks.size <= SEGMENT && lcm_with_tile(j.blocks.size) <= SEGMENT;
    const int64_t unit = needs_scale && fits ? lcm_with_tile(j.blocks.size) : TILE;
    if (needs_scale && !fits) {
        scale_blocks(j);
        Job codes = j;
        codes.given = true;
        return encode(codes);
    }
    Fused f{j, (CHUNK + unit - 1) / unit * unit, 1};
    f.batch = (BATCH + f.chunk - 1) / f.chunk;
    const int64_t elements = f.chunk * f.batch, count = (j.n + elements - 1) / elements;
    parallel_for(count, (GRAIN + elements - 1) / elements, j.threads, encode_batches, &f);
}

}  // namespace
}  // namespace TW_NS
