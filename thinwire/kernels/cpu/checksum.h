// The checksum's sum (thinwire/kernels/checksum.py defines it): every 32-bit word times a key that follows from its
// index in the payload. Products are exact in 64 bits and add up in any order, so parts and threads need no joining.
#pragma once
#include "simd.h"

namespace TW_NS {
namespace {

constexpr uint64_t STEP = 0x9E3779B97F4A7C15u, START = 0xD1B54A32D192ED03u;
constexpr int64_t AHEAD_BYTES = 4096;  // asked for before they are needed
constexpr int64_t PART = 1 << 18;  // bytes that a thread sums at a time

// Of at most four bytes, padded with zeros.
inline uint64_t product(const uint8_t* p, int64_t bytes, uint64_t index) {
    uint32_t word = 0;
    memcpy(&word, p, bytes < 4 ? bytes : 4);
    const uint64_t z = (index >> 1) * STEP + START, low = (uint32_t)z, keys = z ^ low * low;
    return word * (index & 1 ? keys >> 32 : keys & 0xFFFFFFFFu);
}

// The sum of `n` bytes whose first word has this index.
uint64_t sum_words(const uint8_t* p, int64_t n, uint64_t index) {
    constexpr int UNROLL = 4;
    uint64_t sum = 0;
    int64_t i = 0;
    if (index & 1 && n > 0) {  // vectors start with a pair of keys
        sum = product(p, n, index);
        i = 4;
    }
    u64v z[UNROLL];
    for (int u = 0; u < UNROLL; ++u)
        for (int k = 0; k < H; ++k) z[u][k] = ((index + 1) / 2 + u * H + k) * STEP + START;
    u64v even{}, odd{};
    for (; i + UNROLL * TW_VEC <= n; i += UNROLL * TW_VEC)
        for (int u = 0; u < UNROLL; ++u) {
            __builtin_prefetch(p + i + u * TW_VEC + AHEAD_BYTES);
            const u64v w = load<u64v>(p + i + u * TW_VEC), keys = z[u] ^ mul32(z[u], z[u]);
            even += mul32(w, keys);
            odd += mul32(w >> 32, keys >> 32);
            z[u] += UNROLL * H * STEP;
        }
    even += odd;
    for (int k = 0; k < H; ++k) sum += even[k];
    for (; i < n; i += 4) sum += product(p + i, n - i, index + i / 4);
    return sum;
}

struct SumJob {
    const uint8_t* data;
    int64_t n;
    uint64_t first;
    uint64_t sum;
};

void sum_range(void* ctx, int64_t b0, int64_t b1) {
    SumJob& j = *(SumJob*)ctx;
    const int64_t from = b0 * PART, to = b1 * PART < j.n ? b1 * PART : j.n;
    const uint64_t sum = sum_words(j.data + from, to - from, j.first + from / 4);
    __atomic_fetch_add(&j.sum, sum, __ATOMIC_RELAXED);
}

uint64_t total(const uint8_t* data, int64_t n, uint64_t first, int threads) {
    if (threads < 2 || n < 8 * PART) return sum_words(data, n, first);
    SumJob j{data, n, first, 0};
    parallel_for((n + PART - 1) / PART, 4, threads, sum_range, &j);
    return j.sum;
}

}  // namespace
}  // namespace TW_NS
