// Bit streams through 64-bit words; the first bit is the highest of the first byte.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

inline uint64_t load_be64(const uint8_t* p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return __builtin_bswap64(w);
}

inline void store_be64(uint8_t* p, uint64_t w) {
    w = __builtin_bswap64(w);
    memcpy(p, &w, 8);
}

inline int log2_floor(uint64_t k) { return 63 - __builtin_clzll(k); }  // k >= 1

// Writes whole words of bits as they fill, and the rest in `finish`; it never writes past the byte that holds the
// last bit.
struct BitWriter {
    uint8_t *begin, *p;
    uint64_t word = 0;
    int room = 64;  // bits that `word` still takes, 1 to 64
    explicit BitWriter(uint8_t* out) : begin(out), p(out) {}

    void put(uint64_t value, int n) {  // value < 2^n, n <= 64
        if (n < room) {
            if (!n) return;
            word |= value << (room - n);
            room -= n;
            return;
        }
        store_be64(p, word | value >> (n - room));
        p += 8;
        n -= room;
        word = n ? value << (64 - n) : 0;
        room = 64 - n;
    }

    int64_t finish() {  // bytes in all
        for (int bits = 64 - room; bits > 0; bits -= 8, word <<= 8) *p++ = (uint8_t)(word >> 56);
        word = 0;
        room = 64;
        return p - begin;
    }
};

// Reads zeros past the end, which `overrun` reports; `done` also checks that only padding remains.
struct BitReader {
    const uint8_t* data;
    uint64_t size, at = 0;  // bytes; the next bit
    BitReader(const uint8_t* d, int64_t n) : data(d), size((uint64_t)n) {}

    uint64_t peek() const {  // the next 57 bits or more, in the highest places
        uint64_t byte = at >> 3;
        if (byte + 8 <= size) return load_be64(data + byte) << (at & 7);
        uint64_t w = 0;
        for (int i = 0; i < 8; ++i) w = w << 8 | (byte + i < size ? data[byte + i] : 0);
        return w << (at & 7);
    }
    uint64_t get(int n) {  // n <= 57
        if (!n) return 0;
        uint64_t v = peek() >> (64 - n);
        at += n;
        return v;
    }
    bool overrun() const { return at > 8 * size; }
    bool done() const { return !overrun() && 8 * size - at < 8 && !(peek() >> 56); }
};

}  // namespace
