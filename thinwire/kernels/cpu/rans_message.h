// A whole rANS message: histogram, model, chunks side by side.
// Bytes: kind (ONE and the symbol; or RANS, + WIDE for 32 states instead of 4, + ESCAPE), then for RANS
//   log2 of the symbols per chunk; the table, in bits: gamma(last + 1), then for symbols 1 to last the gamma code of
//   1 plus the difference from the frequency of `neighbour`, as 0, -1, 1, -2, ... (symbol 0 has the rest of TOTAL);
//   with ESCAPE: which symbol it is, the size of the message of rare symbols (4), and that message;
//   the size of every chunk but the last (4 each); the chunks: states (4 each), words (2 each). Little-endian.
#pragma once
#include <memory>
#include <vector>

#include "job.h"
#include "rans_avx512.h"

namespace {

enum Message { ONE = 1, RANS = 2, WIDE = 4, ESCAPE = 8 };
// log2 of the symbols of a chunk. Sizes and 32 states cost 132 bytes, so a chunk with 32 states has ENOUGH bytes. A CPU has
// few threads and makes chunks of CHUNK; on a GPU each chunk has 32 threads, and its chunks are as small as may be.
constexpr int SMALLEST_CHUNK = 13, CHUNK = 19, LARGEST_CHUNK = 21, LIKE_A_GPU = 1;
constexpr uint64_t ENOUGH = 20 << 10, ENOUGH_ON_A_GPU = 5 << 10;
constexpr int64_t FEW = 1 << 18;    // more symbols have 32 states however few their bytes: 4 would take too long
constexpr int64_t PIECE = 1 << 18;  // of a histogram

inline void put32(uint8_t* p, uint32_t v) {
    for (int i = 0; i < 4; ++i) p[i] = (uint8_t)(v >> 8 * i);
}
inline uint32_t get32(const uint8_t* p) { return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24; }

struct Histogram {
    const uint8_t* s;
    int64_t n;
    bool few;                     // symbols 0 to 15 alone, and vectors to count them with
    std::vector<uint64_t> parts;  // 256 per piece
};

void count_pieces(void* ctx, int64_t a, int64_t b) {
    Histogram& h = *(Histogram*)ctx;
    for (int64_t piece = a; piece < b; ++piece) {
        uint32_t t[8][256] = {};  // consecutive symbols do not wait for the same counter
        int64_t i = piece * PIECE;
        const int64_t stop = i + PIECE < h.n ? i + PIECE : h.n;
#if defined(__x86_64__)
        if (h.few) i += count_few(h.s + i, stop - i, t[0]);
#endif
        for (; i + 8 <= stop; i += 8) {
            uint64_t w;
            memcpy(&w, h.s + i, 8);
            for (int k = 0; k < 8; ++k) ++t[k][w >> 8 * k & 255];
        }
        for (; i < stop; ++i) ++t[0][h.s[i]];
        for (int v = 0; v < 256; ++v)
            for (int k = 0; k < 8; ++k) h.parts[256 * piece + v] += t[k][v];
    }
}

void count_symbols(const uint8_t* s, int64_t n, bool few, int threads, uint64_t* count) {
    const int64_t pieces = (n + PIECE - 1) / PIECE;
    Histogram h{s, n, few, std::vector<uint64_t>(256 * pieces)};
    parallel_for(pieces, 1, threads, count_pieces, &h);
    memset(count, 0, 256 * sizeof *count);
    for (int64_t i = 0; i < 256 * pieces; ++i) count[i % 256] += h.parts[i];
}

struct Chunks {
    const Model* model;
    int64_t n, size, count;  // symbols; symbols per chunk; chunks
    int lanes;
    bool vectors;
    const uint8_t* from;     // symbols; or coded bytes
    uint8_t* to;
    std::vector<int64_t> start, bytes;
    int64_t symbols(int64_t c) const { return c + 1 < count ? size : n - c * size; }
};

template <int LANES>
uint8_t* encode_chunk(const Chunks& j, const uint8_t* s, int64_t n, uint8_t* end) {
    uint32_t x[LANES];
    for (uint32_t& v : x) v = LOW;
#if defined(__x86_64__)
    if (LANES == 32 && j.vectors) {
        const int64_t whole = n / 32 * 32;
        for (int64_t i = n; i > whole; --i) push(x[(i - 1) % LANES], end, *j.model, s[i - 1]);
        end = j.model->last < 32 && j.model->escape < 0 ? push_vectors<true>(*j.model, s, whole, x, end)
                                                        : push_vectors<false>(*j.model, s, whole, x, end);
        n = 0;
    }
#endif
    if (n) end = push_all<LANES>(*j.model, s, n, x, end);
    for (int k = LANES - 1; k >= 0; --k) put32(end -= 4, x[k]);
    return end;
}

// Chunk c has room for one word per symbol and for its states, and is written to end where that room ends.
inline int64_t room_of(const Chunks& j) { return 2 * j.size + 4 * j.lanes; }

void encode_chunks(void* ctx, int64_t a, int64_t b) {
    Chunks& j = *(Chunks*)ctx;
    for (int64_t c = a; c < b; ++c) {
        uint8_t* end = j.to + (c + 1) * room_of(j);
        const uint8_t* s = j.from + c * j.size;
        uint8_t* p = j.lanes == 32 ? encode_chunk<32>(j, s, j.symbols(c), end) : encode_chunk<4>(j, s, j.symbols(c), end);
        j.start[c] = p - j.to;
        j.bytes[c] = end - p;
    }
}

// The frequency that v's is likely to be near: that of the same magnitude or, for a negative, of the one before.
inline int64_t neighbour(const Model& m, int v) { return v < 2 ? 0 : m.freq[v % 2 ? v - 2 : v - 1]; }

// Bytes, or BAD_COUNT when they would be more than `room`. Symbols are less than `limit`. `chunk` is log2 of the symbols
// of a chunk, with 32 states; or 0 for what suits their bytes, or LIKE_A_GPU for what a GPU makes of them.
int64_t rans_encode(const uint8_t* s, int64_t n, uint8_t* out, int64_t room, int limit, int threads, bool vectors,
                    int chunk = 0, bool escapes = true) {
    if (room < 2) return BAD_COUNT;
    const bool gpu = chunk;
    if (chunk == LIKE_A_GPU) chunk = 0;
    const bool wide = chunk || (gpu && n > FEW);
    uint64_t count[256];
    count_symbols(s, n, vectors && limit <= 16, threads, count);
    uint64_t seen = 0;
    for (int v = 0; v < limit && v < 256; ++v) seen += count[v];
    if (seen != (uint64_t)n) return BAD_SYMBOL;
    if (count[s[0]] == (uint64_t)n) return out[0] = ONE, out[1] = s[0], 2;
    Model m;
    fit(m, count, n, escapes, gpu);
    m.fill(true);
    const uint64_t bytes = estimate(m, count);
    const uint64_t enough = gpu ? ENOUGH_ON_A_GPU : ENOUGH;
    int log = chunk ? chunk : gpu ? SMALLEST_CHUNK : CHUNK;
    while (!chunk && log > SMALLEST_CHUNK && (1ll << (log - 1)) >= n) --log;
    while (!chunk && log < LARGEST_CHUNK && (1ll << log) < n && (bytes << log) / n < enough) ++log;
    Chunks j{&m, n, 1ll << log, ((n - 1) >> log) + 1, 4, vectors, s, nullptr, {}, {}};
    if (wide || bytes / j.count >= enough) j.lanes = 32;
    if (j.count == 1) j.size = n;

    std::vector<uint8_t> head(2);
    head[0] = (uint8_t)(RANS | (j.lanes == 32 ? WIDE : 0) | (m.escape >= 0 ? ESCAPE : 0));
    head[1] = (uint8_t)log;
    uint8_t table[1024];  // at most 25 bits each
    BitWriter bits(table);
    put_elias<GAMMA>(bits, m.last + 1);
    for (int v = 1; v <= m.last; ++v) {
        const int64_t d = m.freq[v] - neighbour(m, v);
        put_elias<GAMMA>(bits, (uint32_t)(d < 0 ? -2 * d : 2 * d + 1));
    }
    head.insert(head.end(), table, table + bits.finish());
    if (m.escape >= 0) {
        std::vector<uint8_t> rare;
        for (int64_t i = 0; i < n; ++i)
            if (m.rare[s[i]]) rare.push_back(s[i]);
        std::vector<uint8_t> coded(2 * rare.size() + 2048);
        // A GPU's warp should not take longer for the rare symbols than the others do for a chunk.
        const int small = wide ? SMALLEST_CHUNK : gpu ? LIKE_A_GPU : 0;
        const int64_t used = rans_encode(rare.data(), rare.size(), coded.data(), coded.size(), limit, 1, vectors, small,
                                         false);
        if (used < 0) return used;
        const size_t at = head.size();
        head.resize(at + 5);
        head[at] = (uint8_t)m.escape;
        put32(&head[at + 1], (uint32_t)used);
        head.insert(head.end(), coded.data(), coded.data() + used);
    }
    std::unique_ptr<uint8_t[]> space(new uint8_t[j.count * room_of(j)]);
    j.to = space.get();
    j.start.resize(j.count);
    j.bytes.resize(j.count);
    parallel_for(j.count, 1, threads, encode_chunks, &j);
    int64_t total = head.size() + 4 * (j.count - 1);
    for (int64_t b : j.bytes) total += b;
    if (total > room) return BAD_COUNT;
    memcpy(out, head.data(), head.size());
    uint8_t* p = out + head.size();
    for (int64_t c = 0; c + 1 < j.count; ++c, p += 4) put32(p, (uint32_t)j.bytes[c]);
    for (int64_t c = 0; c < j.count; p += j.bytes[c++]) memcpy(p, space.get() + j.start[c], j.bytes[c]);
    return total;
}

template <int LANES>
int64_t decode_chunk(const Chunks& j, const uint8_t* p, int64_t bytes, uint8_t* s, int64_t n) {
    const uint8_t* end = p + bytes;
    if (bytes < 4 * LANES) return TRUNCATED;
    uint32_t x[LANES];
    for (uint32_t& v : x) {
        v = get32(p);
        p += 4;
        if (v < LOW || v >> 31) return BAD_CODE;
    }
    int64_t done = 0;
#if defined(__x86_64__)
    if (LANES == 32 && j.vectors) done = pop_vectors(*j.model, p, end, s, n, x);
#endif
    if (!pop_all<LANES>(*j.model, p, end, s + done, n - done, x)) return TRUNCATED;
    if (p != end) return LEFT_OVER;
    for (uint32_t v : x)
        if (v != LOW) return BAD_CODE;
    return OK;
}

void decode_chunks(void* ctx, int64_t a, int64_t b) {
    Chunks& j = *(Chunks*)ctx;
    for (int64_t c = a; c < b; ++c) {
        const uint8_t* p = j.from + j.start[c];
        uint8_t* s = j.to + c * j.size;
        j.bytes[c] = j.lanes == 32 ? decode_chunk<32>(j, p, j.bytes[c], s, j.symbols(c))
                                   : decode_chunk<4>(j, p, j.bytes[c], s, j.symbols(c));
    }
}

// Reads the frequencies; returns how many bytes they took, or what is wrong with them.
int64_t read_table(Model& m, const uint8_t* data, int64_t size, int limit) {
    BitReader bits(data, size);
    memset(m.freq, 0, sizeof m.freq);
    const uint64_t last = get_elias<GAMMA>(bits);
    if (!last || last > (uint64_t)limit) return bits.overrun() ? TRUNCATED : BAD_TABLE;
    uint64_t sum = 0;
    for (int v = 1; v < (int)last; ++v) {
        const int64_t d = (int64_t)get_elias<GAMMA>(bits);
        const int64_t f = neighbour(m, v) + (d % 2 ? (d - 1) / 2 : -d / 2);
        if (bits.overrun()) return TRUNCATED;
        if (!d || f < 0 || f >= TOTAL || (sum += f) > TOTAL) return BAD_TABLE;
        m.freq[v] = (uint32_t)f;
    }
    m.freq[0] = (uint32_t)(TOTAL - sum);
    if (m.freq[0] == TOTAL) return BAD_TABLE;
    const int64_t used = (int64_t)(bits.at + 7) / 8;
    return used > size ? (int64_t)TRUNCATED : used;
}

int64_t rans_decode(const uint8_t* data, int64_t size, uint8_t* s, int64_t n, int limit, int threads, bool vectors,
                    bool escapes = true) {
    if (size < 2) return TRUNCATED;
    if (data[0] == ONE) {
        if (data[1] >= limit) return BAD_SYMBOL;
        if (size != 2) return LEFT_OVER;
        memset(s, data[1], n);
        return OK;
    }
    const int kind = data[0], log = data[1];
    if ((kind & ~(WIDE | ESCAPE)) != RANS || log < SMALLEST_CHUNK || log > LARGEST_CHUNK) return BAD_TABLE;
    Model m;
    const int64_t table = read_table(m, data + 2, size - 2, limit);
    if (table < 0) return table;
    m.fill(false);
    int64_t at = 2 + table, rare_at = 0, rare_size = 0;
    if (kind & ESCAPE) {
        if (size < at + 5) return TRUNCATED;
        m.escape = data[at];
        rare_at = at + 5;
        rare_size = get32(data + at + 1);
        if (!escapes || m.escape >= limit || !m.freq[m.escape]) return BAD_TABLE;
        if (rare_size > size - rare_at) return TRUNCATED;
        at = rare_at + rare_size;
    }
    Chunks j{&m, n, 1ll << log, ((n - 1) >> log) + 1, kind & WIDE ? 32 : 4, vectors, data, s, {}, {}};
    if (4 * (j.count - 1) > size - at) return TRUNCATED;
    int64_t begin = at + 4 * (j.count - 1);
    for (int64_t c = 0; c < j.count; ++c) {
        const int64_t bytes = c + 1 < j.count ? (int64_t)get32(data + at + 4 * c) : size - begin;
        if (bytes > size - begin) return TRUNCATED;
        j.start.push_back(begin);
        j.bytes.push_back(bytes);
        begin += bytes;
    }
    parallel_for(j.count, 1, threads, decode_chunks, &j);
    for (int64_t fault : j.bytes)
        if (fault) return fault;
    if (!(kind & ESCAPE)) return OK;
    int64_t rares = 0;
    for (int64_t i = 0; i < n; ++i) rares += s[i] == m.escape;
    if (!rares) return BAD_COUNT;
    std::vector<uint8_t> rare(rares);
    const int64_t fault = rans_decode(data + rare_at, rare_size, rare.data(), rares, limit, 1, vectors, false);
    if (fault) return fault;
    const uint8_t* next = rare.data();
    for (uint8_t* p = s; (p = (uint8_t*)memchr(p, m.escape, s + n - p)); ++p) *p = *next++;
    return OK;
}

}  // namespace
