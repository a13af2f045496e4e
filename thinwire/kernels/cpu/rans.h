// rANS with a static histogram: the model of a message, and one chunk of it in plain code.
// A state x in [2^15, 2^31) takes symbol s of frequency f and start c (of 2^12) as
//     x = (x div f) 2^12 + x mod f + c,
// after its low 16 bits went to the stream where x >= 2^19 f. Symbol i belongs to state i mod LANES; all states of a
// chunk share one stream, written from the end, and start at 2^15: a decoder that does not end there was fed damage.
#pragma once
#include "elias.h"

namespace {

constexpr int BITS = 12, TOTAL = 1 << BITS;
constexpr uint32_t LOW = 1u << 15;

struct Model {
    uint32_t freq[256];     // sums to TOTAL; the escape's is that of all rare symbols together
    uint32_t magic[256];    // x div f = x * magic >> shift, exact for x < 2^19 f
    uint32_t packed[256];   // f | c << 12 | shift << 24
    uint32_t slot[TOTAL];   // symbol | f << 8 | (slot - c) << 20
    int last = 0;           // largest symbol with a frequency
    int escape = -1;        // smallest rare symbol; it stands for all of them, which follow in their own message
    bool rare[256];

    // The tables of `freq`. The encoder needs the first three, the decoder the slots.
    void fill(bool encoder) {
        uint32_t c = 0;
        for (int s = 0; s < 256; c += freq[s++]) {
            const uint32_t f = freq[s];
            if (!f) continue;
            last = s;
            if (!encoder) {
                for (uint32_t k = 0; k < f; ++k) slot[c + k] = s | f << 8 | k << 20;
                continue;
            }
            const int k = log2_floor(f), shift = f & (f - 1) ? 32 + k : 31 + k;
            magic[s] = (uint32_t)(((1ull << shift) + f - 1) / f);
            packed[s] = f | c << 12 | (uint32_t)shift << 24;
        }
        if (encoder && escape >= 0)
            for (int s = 0; s < 256; ++s)
                if (rare[s]) magic[s] = magic[escape], packed[s] = packed[escape];
    }
};

// log2(x) in 1/256, rounded down; whole numbers only, so that it is the same everywhere.
inline uint64_t log2_256(uint64_t x) {
    const int k = log2_floor(x);
    uint64_t v = k > 31 ? x >> (k - 31) : x << (31 - k), r = k;
    for (int i = 0; i < 8; ++i) {
        v = v * v >> 31;
        r = r << 1 | v >> 32;
        v >>= v >> 32;
    }
    return r;
}

// Bits for `count` symbols of frequency f.
inline uint64_t bits_of(uint64_t count, uint64_t f) { return (count * (BITS * 256 - log2_256(f))) >> 8; }

// `part` of `n` in units of `total`, between 1 and TOTAL - 1.
inline uint64_t share(uint64_t part, uint64_t n, uint64_t total) {
    const uint64_t f = (part * total + n / 2) / n;
    return f < 1 ? 1 : f > TOTAL - 1 ? TOTAL - 1 : f;
}

inline bool is_rare(uint64_t count, uint64_t n) { return count && count * 2 * TOTAL < n; }

// Whether rare symbols should share a frequency. A frequency of 1 for each of r takes (r - 1) / 2^12 from the others,
// which costs every symbol (r - 1) / (2^12 ln 2) bits: on a GPU, where escapes take time, too many if that is half a
// percent.
bool worth_escaping(const uint64_t* count, uint64_t n, bool gpu) {
    uint64_t rares = 0, bits = 0;
    for (int s = 0; s < 256; ++s) {
        rares += is_rare(count[s], n);
        if (count[s]) bits += bits_of(count[s], share(count[s], n, TOTAL));
    }
    return rares > 1 && (!gpu || (rares - 1) * n > 14 * bits);
}

// Frequencies of at least 1 that sum to 2^12, from counts of two or more symbols. Rare symbols share one frequency
// where that is worth it, and otherwise have 1 each; the others have the rest in proportion to their counts.
void fit(Model& m, const uint64_t* counts, uint64_t n, bool escapes, bool gpu) {
    uint64_t count[256];
    memcpy(count, counts, sizeof count);
    for (int s = 0; s < 256; ++s) m.rare[s] = is_rare(count[s], n);
    m.escape = -1;
    if (escapes && worth_escaping(count, n, gpu)) {
        for (int s = 255; s >= 0; --s)
            if (m.rare[s]) m.escape = s;
        for (int s = 0; s < 256; ++s)
            if (m.rare[s] && s != m.escape) count[m.escape] += count[s], count[s] = 0;
    }
    uint64_t common = n, rest = TOTAL;
    for (int s = 0; s < 256; ++s)
        if (is_rare(count[s], n)) common -= count[s], --rest;
    int64_t over = -TOTAL;
    for (int s = 0; s < 256; ++s) {
        m.freq[s] = (uint32_t)(!count[s] ? 0 : is_rare(count[s], n) ? 1 : share(count[s], common, rest));
        over += m.freq[s];
    }
    for (; over; over += over > 0 ? -1 : 1) {  // where it costs least: count / frequency smallest, or largest
        int best = -1;
        for (int s = 0; s < 256; ++s) {
            if (!m.freq[s] || (over > 0 && m.freq[s] == 1)) continue;
            const int d = over > 0 ? -1 : 1;
            const uint64_t mine = count[s] * (2 * m.freq[best < 0 ? s : best] + d);
            const uint64_t other = best < 0 ? 0 : count[best] * (2 * m.freq[s] + d);
            if (best < 0 || (over > 0 ? mine < other : mine > other)) best = s;
        }
        m.freq[best] += over > 0 ? -1 : 1;
    }
}

// About how many bytes the words of a message will take.
uint64_t estimate(const Model& m, const uint64_t* count) {
    uint64_t bits = 0;
    for (int s = 0; s < 256; ++s)
        if (count[s]) bits += bits_of(count[s], m.freq[m.escape >= 0 && m.rare[s] ? m.escape : s]);
    return bits / 8;
}

// Writes the word before p even where it is not kept: a branch would often be guessed wrong.
inline void push(uint32_t& x, uint8_t*& p, const Model& m, uint8_t s) {
    const uint32_t e = m.packed[s], f = e & 0xFFF;
    const int full = x >= f << 19;
    p[-2] = (uint8_t)x;
    p[-1] = (uint8_t)(x >> 8);
    p -= 2 * full;
    x >>= 16 * full;
    const uint32_t q = (uint32_t)((uint64_t)x * m.magic[s] >> (e >> 24));
    x += q * (TOTAL - f) + (e >> 12 & 0xFFF);
}

// Words for s[0..n) written downwards from `end`; returns where they start. The states stay in x.
template <int LANES>
uint8_t* push_all(const Model& m, const uint8_t* s, int64_t n, uint32_t* states, uint8_t* end) {
    uint32_t x[LANES];
    memcpy(x, states, sizeof x);
    int64_t i = n;
    for (; i % LANES; --i) push(x[(i - 1) % LANES], end, m, s[i - 1]);
    for (; i; i -= LANES)
        for (int k = LANES - 1; k >= 0; --k) push(x[k], end, m, s[i - LANES + k]);
    memcpy(states, x, sizeof x);
    return end;
}

inline uint8_t pop(uint32_t& x, const uint8_t*& p, const uint8_t* end, const Model& m, bool& enough) {
    const uint32_t e = m.slot[x & (TOTAL - 1)];
    x = (e >> 8 & 0xFFF) * (x >> BITS) + (e >> 20);
    if (x < LOW) {
        enough &= end - p >= 2;
        if (enough) {
            x = x << 16 | p[0] | p[1] << 8;
            p += 2;
        }
    }
    return (uint8_t)e;
}

// The words from p on into s[0..n); false when they run out.
template <int LANES>
bool pop_all(const Model& m, const uint8_t*& p, const uint8_t* end, uint8_t* s, int64_t n, uint32_t* states) {
    uint32_t x[LANES];
    memcpy(x, states, sizeof x);
    bool enough = true;
    int64_t i = 0;
    for (; i + LANES <= n && end - p >= 2 * LANES; i += LANES) {  // enough words for whatever comes
        for (int k = 0; k < LANES; ++k) {
            const uint32_t e = m.slot[x[k] & (TOTAL - 1)];
            const uint32_t y = (e >> 8 & 0xFFF) * (x[k] >> BITS) + (e >> 20);
            const uint32_t more = y < LOW, w = p[0] | p[1] << 8;
            x[k] = y << 16 * more | (w & -more);
            p += 2 * more;
            s[i + k] = (uint8_t)e;
        }
    }
    for (; i < n; ++i) s[i] = pop(x[i % LANES], p, end, m, enough);
    memcpy(states, x, sizeof x);
    return enough;
}

}  // namespace
