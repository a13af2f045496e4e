// Vectors of the width that TW_VEC (16, 32 or 64 bytes) names, with compiler vector extensions, so that one source
// serves every instruction set and gives the same bits. Included inside namespace TW_NS.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "job.h"

namespace TW_NS {
namespace {

constexpr int V = TW_VEC / 4;  // 32-bit lanes of a vector
constexpr int H = TW_VEC / 8;  // 64-bit lanes

typedef float f32v __attribute__((vector_size(TW_VEC)));
typedef int32_t i32v __attribute__((vector_size(TW_VEC)));
typedef uint32_t u32v __attribute__((vector_size(TW_VEC)));
typedef uint64_t u64v __attribute__((vector_size(TW_VEC)));
typedef double f64v __attribute__((vector_size(TW_VEC)));
typedef uint8_t u8v __attribute__((vector_size(TW_VEC)));
typedef uint16_t u16v __attribute__((vector_size(TW_VEC)));
typedef float f32h __attribute__((vector_size(TW_VEC / 2)));
typedef int8_t i8q __attribute__((vector_size(TW_VEC / 4)));
typedef uint8_t u8q __attribute__((vector_size(TW_VEC / 4)));
typedef uint16_t u16h __attribute__((vector_size(TW_VEC / 2)));

template <class T, class P>
inline T load(const P* p) {
    T v;
    memcpy(&v, p, sizeof(T));
    return v;
}
template <class T, class P>
inline void store(P* p, T v) {
    memcpy(p, &v, sizeof(T));
}
inline f32v splat(float x) { return x - f32v{}; }
inline f32v fmin_(f32v a, f32v b) { return a < b ? a : b; }  // b where a is NaN, as in the reference
inline f32v fmax_(f32v a, f32v b) { return a > b ? a : b; }
inline f32v fabs_(f32v x) { return (f32v)((u32v)x & 0x7FFFFFFFu); }
inline i32v trunc_(f32v x) { return __builtin_convertvector(x, i32v); }

// To the nearest integer, ties to even.
inline i32v round_(f32v x) {
#if TW_VEC == 64 && defined(__AVX512F__)
    return (i32v)_mm512_cvtps_epi32((__m512)x);
#elif TW_VEC == 32 && defined(__AVX2__)
    return (i32v)_mm256_cvtps_epi32((__m256)x);
#elif TW_VEC == 16 && defined(__SSE2__)
    return (i32v)_mm_cvtps_epi32((__m128)x);
#else
    i32v r;
    for (int i = 0; i < V; ++i) r[i] = (int32_t)__builtin_rintf(x[i]);
    return r;
#endif
}

// The product of the low 32 bits of every 64-bit lane; the high halves may hold anything.
inline u64v mul32(u64v a, u64v b) {
#if TW_VEC == 64 && defined(__AVX512F__)
    return (u64v)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif TW_VEC == 32 && defined(__AVX2__)
    return (u64v)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif TW_VEC == 16 && defined(__SSE2__)
    return (u64v)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xFFFFFFFFull) * (b & 0xFFFFFFFFull);
#endif
}

// The low byte of every 32-bit lane.
inline void store_low_bytes(uint8_t* p, i32v v) {
#if TW_VEC == 64 && defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif TW_VEC == 32 && defined(__AVX2__)
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                          -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i b = _mm256_shuffle_epi8((__m256i)v, pick);
    _mm_storel_epi64((__m128i*)p, _mm_or_si128(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1)));
#else
    store(p, __builtin_convertvector((u32v)v, u8q));
#endif
}

// Bytes widened to 32-bit lanes.
inline i32v widen_i8(const uint8_t* p) {
#if TW_VEC == 64 && defined(__AVX512F__)
    return (i32v)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif TW_VEC == 32 && defined(__AVX2__)
    return (i32v)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    return __builtin_convertvector(load<i8q>(p), i32v);
#endif
}
inline i32v widen_u8(const uint8_t* p) {
#if TW_VEC == 64 && defined(__AVX512F__)
    return (i32v)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif TW_VEC == 32 && defined(__AVX2__)
    return (i32v)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    return __builtin_convertvector(load<u8q>(p), i32v);
#endif
}

inline u8v shl8(u8v v, int s) { return (u8v)((u16v)v << s) & (u8v{} + (uint8_t)(0xFF << s)); }
inline u8v shr8(u8v v, int s) { return (u8v)((u16v)v >> s) & (u8v{} + (uint8_t)(0xFF >> s)); }

inline void from_bf16(const uint16_t* x, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) {
        uint32_t b = (uint32_t)x[i] << 16;
        memcpy(out + i, &b, 4);
    }
}

inline float from_f16_one(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFF, bits;
    if (rest >= 0x7C00) {
        bits = sign | 0x7F800000u | ((rest & 0x3FF) << 13) | ((rest & 0x3FF) ? 0x400000u : 0);
    } else if (rest >= 0x400) {
        bits = sign | ((rest << 13) + (112u << 23));
    } else {
        float f = (float)rest * 5.9604644775390625e-08f;  // 2^-24, exact
        memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

inline void from_f16(const uint16_t* x, int64_t n, float* out) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + i))));
#endif
    for (; i < n; ++i) out[i] = from_f16_one(x[i]);
}

}  // namespace
}  // namespace TW_NS
