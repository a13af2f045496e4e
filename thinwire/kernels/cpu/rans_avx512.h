// The 32 states of a chunk in two vectors.
#pragma once
#include "rans.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc's own headers declare vectors unset
#define TW_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,popcnt")))

namespace {

inline bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Adds how often each of the symbols 0 to 15 occurs in s[0..n) to t; returns how many symbols it read, in whole
// vectors.
TW_AVX512 int64_t count_few(const uint8_t* s, int64_t n, uint32_t* t) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const __m512i v = _mm512_loadu_si512(s + i);
        for (int k = 0; k < 16; ++k)
            t[k] += (uint32_t)__builtin_popcountll(_mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8((char)k)));
    }
    return i;
}

struct Tables {
    __m512i magic[2], packed[2];  // of symbols 0 to 31
};

template <bool SMALL>
TW_AVX512 inline __m512i look_up(const uint32_t* table, const __m512i* regs, __m512i s) {
    return SMALL ? _mm512_permutex2var_epi32(regs[0], s, regs[1]) : _mm512_i32gather_epi32(s, table, 4);
}

template <bool SMALL>
TW_AVX512 inline void push16(__m512i& x, uint8_t*& p, const Model& m, const Tables& t, const uint8_t* symbols) {
    const __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)symbols));
    const __m512i magic = look_up<SMALL>(m.magic, t.magic, s), e = look_up<SMALL>(m.packed, t.packed, s);
    const __m512i twelve = _mm512_set1_epi32(0xFFF), f = _mm512_and_si512(e, twelve);
    const __mmask16 full = _mm512_cmpge_epu32_mask(x, _mm512_slli_epi32(f, 19));
    const int count = __builtin_popcount(full);
    p -= 2 * count;
    const __m256i words = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x));
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << count) - 1), words);
    x = _mm512_mask_srli_epi32(x, full, x, 16);
    const __m512i shift = _mm512_srli_epi32(e, 24);
    const __m512i even = _mm512_srlv_epi64(_mm512_mul_epu32(x, magic),
                                           _mm512_and_si512(shift, _mm512_set1_epi64(0xFFFFFFFF)));
    const __m512i odd = _mm512_srlv_epi64(_mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(magic, 32)),
                                          _mm512_srli_epi64(shift, 32));
    const __m512i q = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
    const __m512i c = _mm512_and_si512(_mm512_srli_epi32(e, 12), twelve);
    x = _mm512_add_epi32(x, _mm512_add_epi32(c, _mm512_mullo_epi32(q, _mm512_sub_epi32(_mm512_set1_epi32(TOTAL), f))));
}

template <bool SMALL>
TW_AVX512 uint8_t* push_vectors(const Model& m, const uint8_t* s, int64_t n, uint32_t* states, uint8_t* end) {
    Tables t;
    for (int i = 0; i < 2; ++i) {
        t.magic[i] = _mm512_loadu_si512(m.magic + 16 * i);
        t.packed[i] = _mm512_loadu_si512(m.packed + 16 * i);
    }
    __m512i low = _mm512_loadu_si512(states), high = _mm512_loadu_si512(states + 16);
    for (int64_t i = n - 32; i >= 0; i -= 32) {
        push16<SMALL>(high, end, m, t, s + i + 16);
        push16<SMALL>(low, end, m, t, s + i);
    }
    _mm512_storeu_si512(states, low);
    _mm512_storeu_si512(states + 16, high);
    return end;
}

TW_AVX512 inline void pop16(__m512i& x, const uint8_t*& p, const Model& m, uint8_t* s) {
    const __m512i slot = _mm512_and_si512(x, _mm512_set1_epi32(TOTAL - 1)), e = _mm512_i32gather_epi32(slot, m.slot, 4);
    _mm_storeu_si128((__m128i*)s, _mm512_cvtepi32_epi8(e));
    const __m512i f = _mm512_and_si512(_mm512_srli_epi32(e, 8), _mm512_set1_epi32(0xFFF));
    x = _mm512_add_epi32(_mm512_mullo_epi32(f, _mm512_srli_epi32(x, BITS)), _mm512_srli_epi32(e, 20));
    const __mmask16 more = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(LOW));
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
    x = _mm512_mask_or_epi32(x, more, _mm512_slli_epi32(x, 16), _mm512_maskz_expand_epi32(more, words));
    p += 2 * __builtin_popcount(more);
}

// Decodes as many whole groups as the words are sure to suffice for; returns the number of symbols decoded.
TW_AVX512 int64_t pop_vectors(const Model& m, const uint8_t*& p, const uint8_t* end, uint8_t* s, int64_t n,
                              uint32_t* states) {
    __m512i low = _mm512_loadu_si512(states), high = _mm512_loadu_si512(states + 16);
    int64_t i = 0;
    for (; i + 32 <= n && end - p >= 64; i += 32) {
        pop16(low, p, m, s + i);
        pop16(high, p, m, s + i + 16);
    }
    _mm512_storeu_si512(states, low);
    _mm512_storeu_si512(states + 16, high);
    return i;
}

}  // namespace
#pragma GCC diagnostic pop
#else
namespace {
inline bool has_avx512() { return false; }
}  // namespace
#endif
