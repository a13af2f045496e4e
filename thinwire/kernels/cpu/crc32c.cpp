// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78). The SSE4.2 instruction has a latency of three cycles, so
// three streams run side by side and are joined by multiplying with powers of x modulo the polynomial.
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
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

// x^(8 * bytes): multiplying by it appends that many zero bytes.
uint32_t zeros(uint64_t bytes) {
    uint32_t power = 1u << 30, result = 1u << 31;  // x^1, x^0
    for (uint64_t e = bytes * 8; e; e >>= 1) {
        if (e & 1) result = multiply(power, result);
        power = multiply(power, power);
    }
    return result;
}

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
#endif

uint32_t update(const uint8_t* p, int64_t n, uint32_t c) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return hardware(p, n, c);
#endif
    return software(p, n, c);
}

struct Part {
    const uint8_t* data;
    int64_t n, size;
    uint32_t* crc;
};

void update_parts(void* ctx, int64_t i0, int64_t i1) {
    const Part& p = *(const Part*)ctx;
    for (int64_t i = i0; i < i1; ++i) {
        int64_t start = i * p.size, n = p.n - start < p.size ? p.n - start : p.size;
        p.crc[i] = update(p.data + start, n, 0);
    }
}

}  // namespace

uint32_t crc32c(const uint8_t* data, int64_t n, uint32_t crc, int threads) {
    constexpr int64_t GRAIN = 1 << 18;
    constexpr int MOST = 64;
    uint32_t c = ~crc;
    if (threads < 2 || n < 2 * GRAIN) return ~update(data, n, c);
    uint32_t parts[MOST];
    int count = threads < MOST ? threads : MOST;
    Part p{data, n, (n + count - 1) / count, parts};
    parallel_for(count, 1, threads, update_parts, &p);
    for (int i = 0; i < count; ++i) {
        int64_t start = i * p.size, len = n - start < p.size ? n - start : p.size;
        c = multiply(zeros(len), c) ^ parts[i];
    }
    return ~c;
}
