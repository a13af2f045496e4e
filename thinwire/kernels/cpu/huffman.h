// Canonical Huffman codes of at most 12 bits, decoded by one look-up; zeros one by one or as runs.
// Tokens: symbol s is token RUNS + s; with zero runs a run of 2^k .. 2^(k+1)-1 zeros is token k and k plain bits.
// Bytes: tokens (2, little-endian: the last one used, plus one), their lengths in nibbles (0: not used), the codes.
#pragma once
#include <algorithm>
#include <vector>

#include "elias.h"

namespace {

constexpr int RUNS = 32, TOKENS = RUNS + 256, LONGEST = 12;

// Package-merge: the best lengths of at most LONGEST bits. Ties: leaves before packages, small tokens first.
void huffman_lengths(const uint64_t* count, uint8_t* length) {
    struct Item {
        uint64_t weight;
        int leaf, left, right;  // a leaf, or a package of two items of the previous list
    };
    std::vector<Item> leaves;
    for (int t = 0; t < TOKENS; ++t)
        if (count[t]) leaves.push_back({count[t], t, 0, 0});
    std::stable_sort(leaves.begin(), leaves.end(), [](const Item& a, const Item& b) { return a.weight < b.weight; });
    memset(length, 0, TOKENS);
    if (leaves.size() == 1) length[leaves[0].leaf] = 1;
    if (leaves.size() < 2) return;
    std::vector<std::vector<Item>> lists{leaves};
    while (lists.size() < LONGEST) {
        const std::vector<Item>& before = lists.back();
        std::vector<Item> packages, next;
        for (size_t i = 0; i + 1 < before.size(); i += 2)
            packages.push_back({before[i].weight + before[i + 1].weight, -1, (int)i, (int)i + 1});
        std::merge(leaves.begin(), leaves.end(), packages.begin(), packages.end(), std::back_inserter(next),
                   [](const Item& a, const Item& b) { return a.weight < b.weight; });
        lists.push_back(next);
    }
    // The first items of the last list count; a package passes its two items to the previous list, where they form a
    // prefix too.
    size_t take = 2 * leaves.size() - 2;
    for (int i = LONGEST - 1; i >= 0; --i) {
        size_t pass = 0;
        for (size_t j = 0; j < take; ++j) {
            const Item& item = lists[i][j];
            item.leaf >= 0 ? (void)++length[item.leaf] : (void)(pass += 2);
        }
        take = pass;
    }
}

// Codes in order of length, then of token. Returns false if there are more codes than fit.
bool huffman_codes(const uint8_t* length, uint16_t* code) {
    uint32_t next = 0;
    for (int bits = 1; bits <= LONGEST; ++bits) {
        next <<= 1;
        for (int t = 0; t < TOKENS; ++t)
            if (length[t] == bits) code[t] = (uint16_t)next++;
        if (next > 1u << bits) return false;
    }
    return true;
}

// Calls f(token, extra bits, their value) for every token of s.
template <class F>
inline void tokens_of(const uint8_t* s, int64_t n, bool runs, F f) {
    for (int64_t i = 0; i < n;) {
        if (s[i] || !runs) {
            f(RUNS + s[i++], 0, 0);
            continue;
        }
        const int64_t start = i;
        uint64_t w;
        while (i + 8 <= n && (memcpy(&w, s + i, 8), !w)) i += 8;
        while (i < n && !s[i]) ++i;
        for (int64_t run = i - start; run;) {
            const int64_t part = std::min<int64_t>(run, 1ll << (RUNS - 1));
            const int k = log2_floor(part);
            f(k, k, (uint64_t)part - (1ull << k));
            run -= part;
        }
    }
}

// Bytes, or BAD_COUNT when they would be more than `room`.
int64_t huffman_encode(const uint8_t* s, int64_t n, bool runs, uint8_t* out, int64_t room) {
    uint64_t count[TOKENS] = {}, total = 0;
    uint8_t length[TOKENS];
    uint16_t code[TOKENS] = {};
    tokens_of(s, n, runs, [&](int t, int bits, uint64_t) { ++count[t], total += bits; });
    huffman_lengths(count, length);
    huffman_codes(length, code);
    int used = 0;
    for (int t = 0; t < TOKENS; ++t)
        if (length[t]) used = t + 1, total += count[t] * length[t];
    const int64_t head = 2 + (used + 1) / 2;
    if (head + (int64_t)(total + 7) / 8 > room) return BAD_COUNT;
    memset(out, 0, head);
    out[0] = used & 255;
    out[1] = used >> 8;
    for (int t = 0; t < used; ++t) out[2 + t / 2] |= length[t] << (t % 2 ? 0 : 4);
    BitWriter bits(out + head);
    tokens_of(s, n, runs, [&](int t, int extra, uint64_t value) {
        bits.put((uint64_t)code[t] << extra | value, length[t] + extra);
    });
    return head + bits.finish();
}

int64_t huffman_decode(const uint8_t* data, int64_t size, uint8_t* s, int64_t n, bool runs, int limit) {
    if (size < 2) return TRUNCATED;
    const int used = data[0] | data[1] << 8, head = 2 + (used + 1) / 2;
    if (used > RUNS + limit) return BAD_TABLE;
    if (size < head) return TRUNCATED;
    uint8_t length[TOKENS] = {};
    uint16_t code[TOKENS] = {};
    for (int t = 0; t < used; ++t) length[t] = data[2 + t / 2] >> (t % 2 ? 0 : 4) & 15;
    for (int t = 0; t < used; ++t)
        if (length[t] > LONGEST || (length[t] && t < RUNS && !runs)) return BAD_TABLE;
    if (!huffman_codes(length, code)) return BAD_TABLE;
    struct Entry {
        uint16_t token;
        uint8_t bits;
    };
    std::vector<Entry> table(1 << LONGEST, Entry{0, 0});
    for (int t = 0; t < used; ++t)
        if (length[t]) {
            const int free = LONGEST - length[t];
            std::fill_n(table.begin() + (code[t] << free), 1 << free, Entry{(uint16_t)t, length[t]});
        }
    BitReader bits(data + head, size - head);
    for (int64_t i = 0; i < n;) {
        const uint64_t w = bits.peek();
        const Entry e = table[w >> (64 - LONGEST)];
        if (!e.bits) return bits.at + LONGEST > 8 * bits.size ? TRUNCATED : BAD_CODE;
        bits.at += e.bits;
        if (e.token >= RUNS) {
            s[i++] = (uint8_t)(e.token - RUNS);
        } else {
            const int64_t run = 1ll << e.token | (int64_t)(e.token ? w << e.bits >> (64 - e.token) : 0);
            bits.at += e.token;
            if (run > n - i) return BAD_COUNT;
            memset(s + i, 0, run);
            i += run;
        }
        if (bits.overrun()) return TRUNCATED;
    }
    return bits.done() ? OK : LEFT_OVER;
}

}  // namespace
