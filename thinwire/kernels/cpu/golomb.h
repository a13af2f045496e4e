// Golomb's code of gaps: g div M in unary (ones, then a zero), g mod M in truncated binary.
#pragma once
#include "elias.h"

namespace {

struct Golomb {
    uint64_t m, brief;  // remainders below `brief` take one bit fewer
    int bits;
    explicit Golomb(int64_t divisor) : m((uint64_t)divisor), bits(m > 1 ? log2_floor(m - 1) + 1 : 0) {
        brief = (1ull << bits) - m;
    }

    void put(BitWriter& out, uint64_t gap) const {
        uint64_t q = gap < m ? 0 : gap / m;
        const uint64_t r = gap - q * m;
        for (; q >= 32; q -= 32) out.put(0xFFFFFFFFull, 32);
        out.put(((1ull << q) - 1) << 1, (int)q + 1);
        if (bits) r < brief ? out.put(r, bits - 1) : out.put(r + brief, bits);
    }

    int64_t get(BitReader& in, uint64_t most) const {  // negative: beyond `most`
        const uint64_t w = in.peek();  // 57 bits or more
        const int ones = ~w >> 8 ? __builtin_clzll(~w) : 56;
        if (!bits || ones + 1 + bits > 57) return get_slowly(in, most);
        const uint64_t rest = w << (ones + 1) >> (64 - bits);  // the remainder, and perhaps one bit too many
        const bool whole = rest >> 1 >= brief;                 // which is as good as random: no branch
        in.at += ones + bits + whole;
        return (int64_t)((uint64_t)ones * m + (whole ? rest - brief : rest >> 1));
    }

    int64_t get_slowly(BitReader& in, uint64_t most) const {
        uint64_t q = 0;
        for (;;) {
            const uint64_t w = ~in.peek();
            const int ones = w >> 8 ? __builtin_clzll(w) : 56;
            q += ones;
            in.at += ones;
            if (ones < 56) break;
            if (q * m > most || in.overrun()) return -1;
        }
        ++in.at;
        if (q > most / m) return -1;
        if (!bits) return (int64_t)q;
        uint64_t r = in.get(bits - 1);
        if (r >= brief) r = (r << 1 | in.get(1)) - brief;
        return (int64_t)(q * m + r);
    }
};

// Increasing places in 0 .. n-1; BAD_COUNT if they are not.
int64_t gaps_encode(const int64_t* places, int64_t count, int64_t n, int64_t m, uint8_t* out) {
    int64_t last = -1;
    for (int64_t i = 0; i < count; last = places[i++])
        if (places[i] <= last || places[i] >= n) return BAD_COUNT;
    const Golomb code(m);
    BitWriter bits(out);
    last = -1;
    for (int64_t i = 0; i < count; last = places[i++]) code.put(bits, (uint64_t)(places[i] - last - 1));
    return bits.finish();
}

int64_t gaps_decode(const uint8_t* data, int64_t size, int64_t* places, int64_t count, int64_t n, int64_t m) {
    const Golomb code(m);
    BitReader bits(data, size);
    int64_t last = -1;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t gap = code.get(bits, (uint64_t)n);
        if (bits.overrun()) return TRUNCATED;
        if (gap < 0 || gap >= n - last - 1) return BAD_COUNT;
        places[i] = last += gap + 1;
    }
    return bits.done() ? OK : LEFT_OVER;
}

// Zero runs of symbols: every non-zero as the zeros before it (Golomb), sign, gamma(magnitude).
int64_t runs_encode(const uint8_t* s, int64_t n, int64_t m, uint8_t* out) {
    const Golomb code(m);
    BitWriter bits(out);
    int64_t last = -1;
    for (int64_t i = 0; i < n; ++i) {
        if (!s[i]) continue;
        code.put(bits, (uint64_t)(i - last - 1));
        bits.put(s[i] & 1, 1);
        put_elias<GAMMA>(bits, (s[i] + 1) / 2);
        last = i;
    }
    return bits.finish();
}

int64_t runs_decode(const uint8_t* data, int64_t size, uint8_t* s, int64_t n, int64_t count, int64_t m, int limit) {
    const Golomb code(m);
    BitReader bits(data, size);
    memset(s, 0, n);
    int64_t last = -1;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t gap = code.get(bits, (uint64_t)n);
        const uint64_t negative = bits.get(1), k = get_elias<GAMMA>(bits);
        if (bits.overrun()) return TRUNCATED;
        if (gap < 0 || gap >= n - last - 1) return BAD_COUNT;
        if (!k) return BAD_CODE;
        if (2 * k - negative >= (uint64_t)limit) return BAD_SYMBOL;
        s[last += gap + 1] = (uint8_t)(2 * k - negative);
    }
    return bits.done() ? OK : LEFT_OVER;
}

}  // namespace
