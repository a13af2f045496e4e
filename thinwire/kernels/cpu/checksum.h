// The checksum's sum (thinwire/kernels/checksum.py defines it): every 32-bit word times a key that follows from its
// index in the payload. Products are exact in 64 bits and add up in any order, so parts and threads need no joining.
#pragma once
#include "simd.h"

namespace TW_NS {
namespace {

constexpr uint32_t WEYL = 0x9E3779B1u;
constexpr int FOLD = 15;
constexpr int64_t PART = 1 << 18;  // bytes that a thread sums at a time

inline uint64_t product(uint32_t word, uint32_t index) {
    const uint32_t t = (index + 1) * WEYL;
    return (uint64_t)word * (t ^ t >> FOLD);
}

// The sum of `n` bytes whose first word has this index; the last word is padded with zeros.
uint64_t sum_words(const uint8_t* p, int64_t n, uint32_t index) {
    constexpr int UNROLL = 4;
    u32v t[UNROLL];
    for (int u = 0; u < UNROLL; ++u)
        for (int k = 0; k < V; ++k) t[u][k] = (index + 1 + u * V + k) * WEYL;
    u64v even{}, odd{};
    int64_t i = 0;
    for (; i + UNROLL * TW_VEC <= n; i += UNROLL * TW_VEC)
        for (int u = 0; u < UNROLL; ++u) {
            const u64v w = load<u64v>(p + i + u * TW_VEC), key = (u64v)(t[u] ^ t[u] >> FOLD);
            even += mul32(w, key);
            odd += mul32(w >> 32, key >> 32);
            t[u] += UNROLL * V * WEYL;
        }
    even += odd;
    uint64_t sum = 0;
    for (int k = 0; k < H; ++k) sum += even[k];
    for (; i < n; i += 4) {
        uint32_t word = 0;
        memcpy(&word, p + i, n - i < 4 ? n - i : 4);
        sum += product(word, index + (uint32_t)(i / 4));
    }
    return sum;
}

struct SumJob {
    const uint8_t* data;
    int64_t n;
    uint32_t first;
    uint64_t sum;
};

void sum_range(void* ctx, int64_t b0, int64_t b1) {
    SumJob& j = *(SumJob*)ctx;
    const int64_t from = b0 * PART, to = b1 * PART < j.n ? b1 * PART : j.n;
    const uint64_t sum = sum_words(j.data + from, to - from, j.first + (uint32_t)(from / 4));
    __atomic_fetch_add(&j.sum, sum, __ATOMIC_RELAXED);
}

uint64_t total(const uint8_t* data, int64_t n, uint32_t first, int threads) {
    if (threads < 2 || n < 8 * PART) return sum_words(data, n, first);
    SumJob j{data, n, first, 0};
    parallel_for((n + PART - 1) / PART, 4, threads, sum_range, &j);
    return j.sum;
}

}  // namespace
}  // namespace TW_NS
