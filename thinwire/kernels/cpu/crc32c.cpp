// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), in three ways: by tables; by the SSE4.2 instruction, on
// three streams that hide its latency of three cycles; and by carry-less products of 64 bytes at a time, which fold
// the message onto itself (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel 2009).
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "job.h"

namespace {

constexpr uint32_t POLY = 0x82F63B78u;

struct Tables {
    uint32_t byte[8][256];  // slicing by eight
    Tables() {
        for (uint32_t i = 0; i < 256; ++i) {
            uint32_t c = i;
            for (int k = 0; k < 8; ++k) c = c & 1 ? (c >> 1) ^ POLY : c >> 1;
            byte[0][i] = c;
        }
        for (int t = 1; t < 8; ++t)
            for (int i = 0; i < 256; ++i) byte[t][i] = (byte[t - 1][i] >> 8) ^ byte[0][byte[t - 1][i] & 255];
    }
};

const Tables& tables() {
    static const Tables t;
    return t;
}

uint32_t software(const uint8_t* p, int64_t n, uint32_t c) {
    const Tables& t = tables();
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= c;
        c = t.byte[7][lo & 255] ^ t.byte[6][lo >> 8 & 255] ^ t.byte[5][lo >> 16 & 255] ^ t.byte[4][lo >> 24] ^
            t.byte[3][hi & 255] ^ t.byte[2][hi >> 8 & 255] ^ t.byte[1][hi >> 16 & 255] ^ t.byte[0][hi >> 24];
    }
    for (; n > 0; --n, ++p) c = (c >> 8) ^ t.byte[0][(c ^ *p) & 255];
    return c;
}

// a * b modulo the polynomial; bit 31 is x^0.
uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t m = 1u << 31; m; m >>= 1) {
        if (a & m) product ^= b;
        b = b & 1 ? (b >> 1) ^ POLY : b >> 1;
    }
    return product;
}

uint32_t x_to_the(uint64_t e) {
    uint32_t power = 1u << 30, result = 1u << 31;  // x^1, x^0
    for (; e; e >>= 1) {
        if (e & 1) result = multiply(power, result);
        power = multiply(power, power);
    }
    return result;
}

// Multiplying by this factor appends that many zero bytes.
uint32_t zeros(uint64_t bytes) { return x_to_the(8 * bytes); }

#if defined(__x86_64__)
constexpr int64_t STREAM = 4096;

// Appends `bytes` zero bytes to a running checksum, by table.
struct Shift {
    uint32_t t[4][256];
    explicit Shift(int64_t bytes) {
        uint32_t z = zeros(bytes);
        for (int i = 0; i < 4; ++i)
            for (uint32_t v = 0; v < 256; ++v) t[i][v] = multiply(z, v << (8 * i));
    }
    uint32_t operator()(uint32_t c) const {
        return t[0][c & 255] ^ t[1][c >> 8 & 255] ^ t[2][c >> 16 & 255] ^ t[3][c >> 24];
    }
};

__attribute__((target("sse4.2"))) uint32_t hardware(const uint8_t* p, int64_t n, uint32_t crc) {
    static const Shift shift(STREAM);
    auto word = [](const uint8_t* q) {
        uint64_t w;
        memcpy(&w, q, 8);
        return w;
    };
    uint64_t c = crc;
    for (; n >= 3 * STREAM; n -= 3 * STREAM, p += 3 * STREAM) {
        uint64_t c1 = 0, c2 = 0;
        for (int64_t i = 0; i < STREAM; i += 8) {
            c = _mm_crc32_u64(c, word(p + i));
            c1 = _mm_crc32_u64(c1, word(p + STREAM + i));
            c2 = _mm_crc32_u64(c2, word(p + 2 * STREAM + i));
        }
        c = shift(shift((uint32_t)c) ^ (uint32_t)c1) ^ (uint32_t)c2;
    }
    for (; n >= 8; n -= 8, p += 8) c = _mm_crc32_u64(c, word(p));
    for (; n > 0; --n, ++p) c = _mm_crc32_u8((uint32_t)c, *p);
    return (uint32_t)c;
}

// Factors that carry 128 bits over `bits` of message: x^(bits + 32) for the low half, x^(bits - 32) for the high.
struct Fold {
    uint64_t low, high;
    explicit Fold(uint64_t bits) : low((uint64_t)x_to_the(bits + 32) << 1), high((uint64_t)x_to_the(bits - 32) << 1) {}
};

#define TW_FOLDING __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

TW_FOLDING uint32_t folded(const uint8_t* p, int64_t n, uint32_t crc) {
    static const Fold far(2048), near(128);
    if (n < 512) return hardware(p, n, crc);
    const __m512i k = _mm512_broadcast_i32x4(_mm_set_epi64x((long long)far.high, (long long)far.low));
    __m512i a[4];
    for (int i = 0; i < 4; ++i) a[i] = _mm512_loadu_si512(p + 64 * i);
    a[0] = _mm512_xor_si512(a[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int i = 0; i < 4; ++i) {
            __m512i lo = _mm512_clmulepi64_epi128(a[i], k, 0x00), hi = _mm512_clmulepi64_epi128(a[i], k, 0x11);
            a[i] = _mm512_ternarylogic_epi64(lo, hi, _mm512_loadu_si512(p + 64 * i), 0x96);
        }
    alignas(64) __m128i lane[16];
    memcpy(lane, a, sizeof lane);
    const __m128i step = _mm_set_epi64x((long long)near.high, (long long)near.low);
    __m128i r = lane[0];
    for (int i = 1; i < 16; ++i) {
        __m128i lo = _mm_clmulepi64_si128(r, step, 0x00), hi = _mm_clmulepi64_si128(r, step, 0x11);
        r = _mm_xor_si128(lane[i], _mm_xor_si128(lo, hi));
    }
    uint64_t c = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(r));
    c = _mm_crc32_u64(c, (uint64_t)_mm_extract_epi64(r, 1));
    return hardware(p, n, (uint32_t)c);
}
#endif

uint32_t update(const uint8_t* p, int64_t n, uint32_t c, [[maybe_unused]] int vectors) {
#if defined(__x86_64__)
    if (vectors >= AVX512 && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq"))
        return folded(p, n, c);
    if (vectors > ANY && __builtin_cpu_supports("sse4.2")) return hardware(p, n, c);
#endif
    return software(p, n, c);
}

constexpr int64_t BLOCK = 1 << 18;

struct Parts {
    const uint8_t* data;
    int64_t n;
    uint32_t* crc;
    int vectors;
};

void part_range(void* ctx, int64_t b0, int64_t b1) {
    const Parts& p = *(const Parts*)ctx;
    for (int64_t b = b0; b < b1; ++b) {
        int64_t start = b * BLOCK, n = p.n - start < BLOCK ? p.n - start : BLOCK;
        p.crc[b] = update(p.data + start, n, 0, p.vectors);
    }
}

}  // namespace

// A remainder is the checksum without its inversions: it starts from 0, and remainders of parts add up.
uint32_t remainder32c(const uint8_t* data, int64_t n, int vectors) { return update(data, n, 0, vectors); }

uint32_t join32c(const uint32_t* parts, int64_t count, int64_t size, int64_t n, uint32_t start) {
    const uint32_t shift = count > 1 ? zeros(size) : 0, last = zeros(n - (count - 1) * size);
    uint32_t c = start;
    for (int64_t b = 0; b < count; ++b) c = multiply(b + 1 < count ? shift : last, c) ^ parts[b];
    return c;
}

uint32_t crc32c(const uint8_t* data, int64_t n, uint32_t crc, int threads, int vectors) {
    if (threads < 2 || n < 8 * BLOCK) return ~update(data, n, ~crc, vectors);
    const int64_t count = (n + BLOCK - 1) / BLOCK;
    std::vector<uint32_t> parts(count);
    Parts p{data, n, parts.data(), vectors};
    parallel_for(count, 4, threads, part_range, &p);
    return ~join32c(parts.data(), count, BLOCK, n, ~crc);
}
