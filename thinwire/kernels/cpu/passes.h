// The passes over a whole input: encode (with or without error feedback), decode-and-add, noise, pack, unpack.
#pragma once
#include <cstdlib>

#include "fields.h"
#include "tile.h"

namespace TW_NS {
namespace {

constexpr int64_t CHUNK = 2048;       // elements; 8 KiB of floats, 16 KiB with a residual
constexpr int64_t GRAIN = 1 << 17;    // elements worth a thread of their own

constexpr int64_t BATCH = 1 << 14;    // elements checksummed together
constexpr int64_t AHEAD = 4096;       // elements that decode asks for before it needs them

inline int64_t tiles_of(int64_t n) { return (n + TILE - 1) / TILE; }
inline int width_of(const Spec& s) { return s.kind == NATURAL ? 9 : s.width; }
constexpr bool two_complement(int kind) { return kind == SIGNED || kind == DITHER; }

// x as float; a buffer is filled only when x is 16-bit or a residual is added.
inline const float* as_float(const Job& j, int64_t start, int64_t n, float* buf) {
    if (j.dtype == F32) return (const float*)j.x + start;
    const uint16_t* x = (const uint16_t*)j.x + start;
    j.dtype == BF16 ? from_bf16(x, n, buf) : from_f16(x, n, buf);
    return buf;
}

// Asks for the lines that the next chunk will read, while this one is computed.
inline void prefetch(const void* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)p + i, 0, 2);
}

inline const float* stage(const Job& j, int64_t start, int64_t n, float* buf) {
    const float* x = as_float(j, start, n, buf);
    if (!j.e) return x;
    const float* e = j.e + start;
    for (int64_t i = 0; i < n; ++i) buf[i] = x[i] + j.alpha * e[i];
    return buf;
}

template <int KIND>
inline void codes_of(bool stochastic, const float* p, const float* next, const Coefs& c, float top,
                     const Stream& noise, uint32_t first, Tile& t) {
    if (KIND == NATURAL || KIND == DITHER || (KIND != SIGN && stochastic))
        c.rows ? encode_tile<KIND, true, true>(p, next, c, top, noise, first, t)
               : encode_tile<KIND, true, false>(p, next, c, top, noise, first, t);
    else
        c.rows ? encode_tile<KIND, false, true>(p, next, c, top, noise, first, t)
               : encode_tile<KIND, false, false>(p, next, c, top, noise, first, t);
}

inline void pack_natural(const Tile& t, int lanes, uint8_t* out) {
    alignas(64) uint8_t plane[LANES];
    pack_tile(t.signs, 1, plane);
    for (int r = 0; r < ROWS; ++r) memcpy(out + r * lanes, t.codes + r * LANES, lanes);
    memcpy(out + ROWS * lanes, plane, lanes);
}

// Tiles [t0, t1); `p` holds the staged floats from element `origin` on.
template <int KIND>
void encode_tiles(const Job& j, const float* p, int64_t origin, int64_t t0, int64_t t1) {
    const int64_t ahead = (t1 - t0) * TILE, item = j.dtype == F32 ? 4 : 2;
    const int width = width_of(j.spec);
    const float top = KIND == DITHER ? std::ldexp(1.0f, j.spec.levels - 1)
                                     : (float)j.spec.levels * (j.spec.stochastic ? 65536.0f : 1.0f);
    const Stream noise(j.noise);
    Coefs c;
    Tile t;
    Cursor cur(j, t0 * TILE);
    alignas(64) float tail[TILE], xs[TILE], es[TILE];
    alignas(64) uint8_t planes[9 * LANES];
    for (int64_t tile = t0; tile < t1; ++tile) {
        const int64_t i0 = tile * TILE;
        const int m = (int)(j.n - i0 < TILE ? j.n - i0 : TILE), lanes = tile_lanes(m);
        const float* src = p + (i0 - origin);
        const bool more = i0 + ahead + TILE <= j.n;
        const float* next = more && item == 4 ? (const float*)j.x + i0 + ahead : src;
        if (more && item == 2) prefetch((const char*)j.x + (i0 + ahead) * item, TILE * item);
        tile_coefs(cur, i0, m, lanes, c);
        if (m < TILE) {
            for (float& v : tail) v = KIND == SIGN ? -1.0f : 0.0f;  // padding packs to zero bits
            widen(src, m, lanes, tail);
            src = tail;
        }
        codes_of<KIND>(j.spec.stochastic, src, next, c, top, noise, (uint32_t)(tile * LANES), t);
        uint8_t* out = j.codes + tile * LANES * width;
        if (KIND == NATURAL) {
            pack_natural(t, lanes, out);
        } else if (lanes == LANES) {
            pack_tile(t.codes, width, out);
        } else {
            pack_tile(t.codes, width, planes);
            for (int b = 0; b < width; ++b) memcpy(out + b * lanes, planes + b * LANES, lanes);
        }
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

template <int KIND>
void decode_tiles(const Job& j, int64_t t0, int64_t t1) {
    const int width = width_of(j.spec);
    Coefs c;
    Tile t;
    Cursor cur(j, t0 * TILE);
    alignas(64) float tail[TILE];
    alignas(64) uint8_t planes[9 * LANES];
    for (int64_t tile = t0; tile < t1; ++tile) {
        const int64_t i0 = tile * TILE;
        const int m = (int)(j.n - i0 < TILE ? j.n - i0 : TILE), lanes = tile_lanes(m);
        const uint8_t* in = j.codes + tile * LANES * width;
        if (i0 + AHEAD + TILE <= j.n) prefetch(j.out + i0 + AHEAD, TILE * 4);
        tile_coefs(cur, i0, m, lanes, c);
        if (m < TILE) {
            memset(planes, 0, sizeof planes);
            for (int b = 0; b < width; ++b) memcpy(planes + b * LANES, in + b * lanes, lanes);
            in = planes;
        }
        if (KIND == NATURAL) {
            memcpy(t.codes, in, TILE);
            unpack_tile<false>(in + TILE, 1, t.signs);
        } else {
            unpack_tile<two_complement(KIND)>(in, width, t.codes);
        }
        if (m == TILE) {
            add_tile<KIND>(t, c, j.spec.levels, j.weight, j.out + i0);
        } else {
            memset(tail, 0, sizeof tail);
            widen(j.out + i0, m, lanes, tail);
            add_tile<KIND>(t, c, j.spec.levels, j.weight, tail);
            narrow(tail, m, lanes, j.out + i0);
        }
    }
}

typedef void (*EncodeTiles)(const Job&, const float*, int64_t, int64_t, int64_t);
typedef void (*DecodeTiles)(const Job&, int64_t, int64_t);
const EncodeTiles encode_by_kind[] = {encode_tiles<SIGNED>, encode_tiles<UNSIGNED>, encode_tiles<SIGN>,
                                      encode_tiles<DITHER>, encode_tiles<NATURAL>};
const DecodeTiles decode_by_kind[] = {decode_tiles<SIGNED>, decode_tiles<UNSIGNED>, decode_tiles<SIGN>,
                                      decode_tiles<DITHER>, decode_tiles<NATURAL>};

// Scratch for one thread.
struct Buffer {
    float* p;
    explicit Buffer(int64_t n) : p((float*)aligned_alloc(64, (n * 4 + 127) / 64 * 64)) {}
    ~Buffer() { free(p); }
};

// The scale of one block, segment by segment; `threads` > 1 computes the segments side by side, merged in order.
struct BlockJob {
    const Job& j;
    int64_t begin, end;
    Partial* parts;
};

void segment_range(void* ctx, int64_t s0, int64_t s1) {
    const BlockJob& b = *(const BlockJob*)ctx;
    Buffer buf(SEGMENT);
    for (int64_t s = s0; s < s1; ++s) {
        int64_t i = b.begin + s * SEGMENT, n = b.end - i < SEGMENT ? b.end - i : SEGMENT;
        b.parts[s] = partial(b.j.spec.norm, stage(b.j, i, n, buf.p), n);
    }
}

void block_scale(const Job& j, int64_t b, int threads) {
    const int64_t begin = j.blocks.begin(b), end = j.blocks.end(b), count = (end - begin + SEGMENT - 1) / SEGMENT;
    if (!count) return;
    Partial one, total, *parts = count == 1 ? &one : (Partial*)malloc(count * sizeof(Partial));
    BlockJob job{j, begin, end, parts};
    parallel_for(count, 2, threads, segment_range, &job);
    for (int64_t s = 0; s < count; ++s) merge(total, parts[s]);
    if (parts != &one) free(parts);
    finish(j.spec.norm, total, end - begin, j.scales + b * scales_per_block(j.spec.norm));
}

inline bool is_large(const Job& j, int64_t b) { return j.blocks.end(b) - j.blocks.begin(b) > 4 * SEGMENT; }

void small_blocks(void* ctx, int64_t b0, int64_t b1) {
    const Job& j = *(const Job*)ctx;
    for (int64_t b = b0; b < b1; ++b)
        if (!is_large(j, b)) block_scale(j, b, 1);
}

void scale_blocks(const Job& j) {
    for (int64_t b = 0; b < j.blocks.count; ++b)
        if (is_large(j, b)) block_scale(j, b, j.threads);
    parallel_for(j.blocks.count, 1, j.n < GRAIN ? 1 : j.threads, small_blocks, (void*)&j);
}

// Whole blocks and whole tiles in one chunk that stays in cache: scales, then codes, while memory is read once.
// A batch of chunks is checksummed while its codes are still in cache.
struct Fused {
    const Job& j;
    int64_t chunk, batch;  // elements, chunks
    uint32_t* crc;         // a remainder for each batch
};

void encode_chunk(const Fused& f, int64_t c, float* buf) {
    const Job& j = f.j;
    const int stride = j.given ? 0 : scales_per_block(j.spec.norm);
    const int64_t i0 = c * f.chunk, i1 = i0 + f.chunk < j.n ? i0 + f.chunk : j.n;
    const float* p = stage(j, i0, i1 - i0, buf);
    if (stride)
        for (int64_t b = i0 / j.blocks.size; b < j.blocks.count && j.blocks.begin(b) < i1; ++b) {
            int64_t s = j.blocks.begin(b), n = j.blocks.end(b) - s;
            finish(j.spec.norm, partial(j.spec.norm, p + (s - i0), n), n, j.scales + b * stride);
        }
    encode_by_kind[j.spec.kind](j, p, i0, i0 / TILE, tiles_of(i1));
}

inline int64_t code_bytes(const Spec& s, int64_t n) {
    return (n / TILE * LANES + (n % TILE + ROWS - 1) / ROWS) * width_of(s);
}

void encode_batches(void* ctx, int64_t b0, int64_t b1) {
    const Fused& f = *(const Fused*)ctx;
    const Job& j = f.j;
    Buffer buf(f.chunk);
    for (int64_t b = b0; b < b1; ++b) {
        const int64_t begin = b * f.batch * f.chunk, end = (b + 1) * f.batch * f.chunk;
        for (int64_t c = b * f.batch; c < (b + 1) * f.batch && c * f.chunk < j.n; ++c) encode_chunk(f, c, buf.p);
        if (f.crc) {
            const int64_t from = code_bytes(j.spec, begin), to = code_bytes(j.spec, end < j.n ? end : j.n);
            f.crc[b] = remainder32c(j.codes + from, to - from);
        }
    }
}

int64_t lcm_with_tile(int64_t block) {
    int64_t a = block, b = TILE;
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return block / a * TILE;
}

void encode(const Job& j) {
    if (j.crc) *j.crc = 0;
    if (!j.n) return;
    const bool needs_scale = !j.given && scales_per_block(j.spec.norm) > 0;
    int64_t unit = needs_scale && !j.blocks.starts ? lcm_with_tile(j.blocks.size) : TILE;
    if (needs_scale && (j.blocks.starts || unit > SEGMENT)) {
        scale_blocks(j);
        Job codes = j;
        codes.given = true;
        return encode(codes);
    }
    Fused f{j, (CHUNK + unit - 1) / unit * unit, 1, nullptr};
    f.batch = (BATCH + f.chunk - 1) / f.chunk;
    const int64_t elements = f.chunk * f.batch, count = (j.n + elements - 1) / elements;
    if (j.crc) f.crc = (uint32_t*)malloc(count * sizeof(uint32_t));
    parallel_for(count, (GRAIN + elements - 1) / elements, j.threads, encode_batches, &f);
    if (j.crc) *j.crc = join32c(f.crc, count, code_bytes(j.spec, elements), code_bytes(j.spec, j.n), 0);
    free(f.crc);
}

void decode_range(void* ctx, int64_t t0, int64_t t1) {
    const Job& j = *(const Job*)ctx;
    decode_by_kind[j.spec.kind](j, t0, t1);
}

void decode_add(const Job& j) {
    if (j.n) parallel_for(tiles_of(j.n), GRAIN / TILE, j.threads, decode_range, (void*)&j);
}

struct NoiseJob {
    const Noise& noise;
    int64_t n;
    uint16_t* out;
};

void noise_range(void* ctx, int64_t t0, int64_t t1) {
    const NoiseJob& j = *(const NoiseJob*)ctx;
    const Stream stream(j.noise);
    for (int64_t tile = t0; tile < t1; ++tile) {
        const int64_t i0 = tile * TILE;
        const int m = (int)(j.n - i0 < TILE ? j.n - i0 : TILE), lanes = tile_lanes(m);
        alignas(64) uint16_t wide[TILE];
        for (int g = 0; g < LANES; g += V) {
            Words w = philox(stream, (uint32_t)(tile * LANES) + g);
            for (int r = 0; r < ROWS; ++r)
                for (int l = 0; l < V; ++l)
                    wide[r * LANES + g + l] = (uint16_t)(r & 1 ? w.w[r / 2][l] >> 16 : w.w[r / 2][l]);
        }
        narrow(wide, m, lanes, j.out + i0);
    }
}

void noise(const Noise& key, int64_t n, uint16_t* out, int threads) {
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
