// Philox4x32 with 7 rounds (Salmon et al., SC 2011). Even and odd lanes live in separate 64-bit vectors, where a
// 32 x 32 product needs one instruction and its high half one shift; the high 32 bits between rounds are ignored.
// Only counter word 0 differs between lanes, so one product of each of the first two rounds is the same for all.
#pragma once
#include "job.h"
#include "simd.h"

namespace TW_NS {
namespace {

constexpr uint32_t M0 = 0xD2511F53u, M1 = 0xCD9E8D57u, W0 = 0x9E3779B9u, W1 = 0xBB67AE85u;

// What all lanes share: the round keys and the scalar half of rounds 1 and 2.
struct Stream {
    uint32_t first;
    uint64_t k0[7], k1[7];
    uint64_t after1_c1, after1_c2, after2_c2, after2_c3;
    explicit Stream(const Noise& n) : first(n.counter[0]) {
        for (int r = 0; r < 7; ++r) {
            k0[r] = (uint32_t)(n.key[0] + r * W0);
            k1[r] = (uint32_t)(n.key[1] + r * W1);
        }
        uint64_t p1 = (uint64_t)M1 * n.counter[2];
        uint64_t c0 = (p1 >> 32) ^ n.counter[1] ^ k0[0];
        after1_c1 = (uint32_t)p1 ^ k0[1];
        after1_c2 = n.counter[3] ^ k1[0];
        uint64_t p0 = (uint64_t)M0 * (uint32_t)c0;
        after2_c2 = (p0 >> 32) ^ k1[1];
        after2_c3 = (uint32_t)p0;
    }
};

struct Words {
    u32v w[4];
    // Two rows share a word: the even one takes its low half first, the odd one its high half.
    inline u32v row(int r) const { return r & 1 ? w[r / 2] : (w[r / 2] << 16) | (w[r / 2] >> 16); }
};

struct Half {
    u64v c0, c1, c2, c3;
    inline explicit Half(u64v index, const Stream& s) {
        u64v p0 = mul32(index, u64v{} + M0);
        u64v p1 = mul32((p0 >> 32) ^ s.after1_c2, u64v{} + M1);
        c0 = (p1 >> 32) ^ s.after1_c1;
        c1 = p1;
        c2 = p0 ^ s.after2_c2;
        c3 = u64v{} + s.after2_c3;
    }
    inline void round(uint64_t k0, uint64_t k1) {
        u64v p0 = mul32(c0, u64v{} + M0), p1 = mul32(c2, u64v{} + M1);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c3 = p0;
    }
};

// The four words at counters first + offset .. first + offset + V - 1.
inline Words philox(const Stream& s, uint32_t offset) {
    u32v index;
    for (int i = 0; i < V; ++i) index[i] = i;
    index += s.first + offset;
    Half even((u64v)index, s), odd((u64v)index >> 32, s);
#pragma GCC unroll 5
    for (int r = 2; r < 7; ++r) {
        even.round(s.k0[r], s.k1[r]);
        odd.round(s.k0[r], s.k1[r]);
    }
    auto join = [](u64v e, u64v o) { return (u32v)((e & 0xFFFFFFFFull) | (o << 32)); };
    return {{join(even.c0, odd.c0), join(even.c1, odd.c1), join(even.c2, odd.c2), join(even.c3, odd.c3)}};
}

}  // namespace
}  // namespace TW_NS
