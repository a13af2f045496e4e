// Elias' codes of whole numbers k >= 1, and QSGD's two ways to send signed levels with them.
// Symbols are 0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ...: magnitude (s + 1) / 2, negative where s is odd.
#pragma once
#include "bits.h"

namespace {

enum Elias { GAMMA = 0, DELTA = 1, OMEGA = 2 };
// What a decoder found wrong; thinwire/codecs/native.py has the words.
enum Fault { OK = 0, TRUNCATED = -1, LEFT_OVER = -2, BAD_CODE = -3, BAD_SYMBOL = -4, BAD_COUNT = -5, BAD_TABLE = -6 };

template <int CODE>
inline void put_elias(BitWriter& out, uint32_t k) {
    const int n = log2_floor(k);
    if (CODE == GAMMA) {
        out.put(k, 2 * n + 1);  // n zeros, then k
    } else if (CODE == DELTA) {
        out.put(n + 1, 2 * log2_floor(n + 1) + 1);
        out.put(k - (1ull << n), n);
    } else {
        uint64_t code = 0;  // groups in front of a zero, each as long as the value of the one before it, plus one
        int bits = 1;
        for (uint32_t v = k; v > 1; v = log2_floor(v)) {
            code |= (uint64_t)v << bits;
            bits += log2_floor(v) + 1;
        }
        out.put(code, bits);
    }
}

template <int CODE>
inline uint64_t get_elias(BitReader& in) {  // 0 where there is no code of 32 bits
    uint64_t w = in.peek();
    if (CODE == OMEGA) {
        uint64_t k = 1;
        int used = 0;
        while (w >> 63) {
            if (k > 31) return 0;
            const int n = (int)k + 1;
            k = w >> (64 - n);
            w <<= n;
            used += n;
            if (used > 48) return 0;
        }
        in.at += used + 1;
        return k;
    }
    if (!w) return 0;
    const int zeros = __builtin_clzll(w);
    if (CODE == GAMMA) {
        if (zeros > 31) return 0;
        in.at += zeros;
        return in.get(zeros + 1);
    }
    if (zeros > 5) return 0;
    const int n = (int)(w >> (63 - 2 * zeros)) - 1;
    if (n > 31) return 0;
    in.at += 2 * zeros + 1;
    return 1ull << n | in.get(n);
}

template <int CODE>
int64_t elias_numbers_encode(const uint32_t* k, int64_t n, uint8_t* out) {
    BitWriter bits(out);
    for (int64_t i = 0; i < n; ++i) put_elias<CODE>(bits, k[i]);
    return bits.finish();
}

template <int CODE>
int64_t elias_numbers_decode(const uint8_t* data, int64_t size, uint32_t* k, int64_t n) {
    BitReader bits(data, size);
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t v = get_elias<CODE>(bits);
        if (bits.overrun()) return TRUNCATED;
        if (!v) return BAD_CODE;
        k[i] = (uint32_t)v;
    }
    return bits.done() ? OK : LEFT_OVER;
}

// Every element: Elias(magnitude + 1), and a sign where it is not zero.
template <int CODE>
int64_t elias_dense_encode(const uint8_t* s, int64_t n, uint8_t* out) {
    struct {
        uint64_t code;
        int bits;
    } table[256];
    for (int v = 0; v < 256; ++v) {
        uint8_t buffer[16] = {};
        BitWriter one(buffer);
        put_elias<CODE>(one, (v + 1) / 2 + 1);
        if (v) one.put(v & 1, 1);
        const int bits = 64 - one.room;
        one.finish();
        table[v] = {load_be64(buffer) >> (64 - bits), bits};
    }
    BitWriter bits(out);
    for (int64_t i = 0; i < n; ++i) bits.put(table[s[i]].code, table[s[i]].bits);
    return bits.finish();
}

template <int CODE>
int64_t elias_dense_decode(const uint8_t* data, int64_t size, uint8_t* s, int64_t n, int limit) {
    BitReader bits(data, size);
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t k = get_elias<CODE>(bits);
        const uint64_t v = k > 1 ? 2 * (k - 1) - bits.get(1) : 0;
        if (bits.overrun()) return TRUNCATED;
        if (!k) return BAD_CODE;
        if (v >= (uint64_t)limit) return BAD_SYMBOL;
        s[i] = (uint8_t)v;
    }
    return bits.done() ? OK : LEFT_OVER;
}

// Every non-zero: Elias(distance from the last one), sign, Elias(magnitude). The distance to place n ends the list.
template <int CODE>
int64_t elias_sparse_encode(const uint8_t* s, int64_t n, uint8_t* out) {
    BitWriter bits(out);
    int64_t last = -1;
    for (int64_t i = 0; i < n; ++i) {
        if (!s[i]) continue;
        put_elias<CODE>(bits, (uint32_t)(i - last));
        bits.put(s[i] & 1, 1);
        put_elias<CODE>(bits, (s[i] + 1) / 2);
        last = i;
    }
    put_elias<CODE>(bits, (uint32_t)(n - last));
    return bits.finish();
}

template <int CODE>
int64_t elias_sparse_decode(const uint8_t* data, int64_t size, uint8_t* s, int64_t n, int limit) {
    BitReader bits(data, size);
    memset(s, 0, n);
    for (int64_t place = -1;;) {
        const uint64_t gap = get_elias<CODE>(bits);
        if (bits.overrun()) return TRUNCATED;
        if (!gap) return BAD_CODE;
        place += (int64_t)gap;
        if (place == n) return bits.done() ? OK : LEFT_OVER;
        if (place > n) return BAD_COUNT;
        const uint64_t negative = bits.get(1), k = get_elias<CODE>(bits);
        if (bits.overrun()) return TRUNCATED;
        if (!k) return BAD_CODE;
        if (2 * k - negative >= (uint64_t)limit) return BAD_SYMBOL;
        s[place] = (uint8_t)(2 * k - negative);
    }
}

}  // namespace
