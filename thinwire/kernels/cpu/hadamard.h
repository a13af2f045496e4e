// The Walsh-Hadamard transform of one block, random signs, and both together, for hadamard.cpp.
// Butterflies in float32 with distances 1, 2, 4, ... in this order, then one multiplication by 2^(-k/2).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define TW_INLINE inline __attribute__((always_inline))

namespace {

constexpr int V = 8;
constexpr int64_t CACHED = 4096;    // floats whose stages run in the first-level cache
constexpr int64_t LARGEST = 1 << 16;
constexpr float TOP = 0x1p126f;     // as thinwire.kernels.spec: decoded values stop here
typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef uint8_t b8 __attribute__((vector_size(8)));

TW_INLINE f8 load(const float* p) {
    f8 v;
    memcpy(&v, p, sizeof v);
    return v;
}
TW_INLINE void store(float* p, f8 v) { memcpy(p, &v, sizeof v); }

// clang has only the shuffle whose places are constants, gcc before 12 only the other.
#if defined(__clang__)
#define TW_SWAP(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
TW_INLINE f8 pick(f8 table, i8 at) {
    f8 out;
    for (int i = 0; i < V; ++i) out[i] = table[at[i]];
    return out;
}
#else
#define TW_SWAP(v, ...) __builtin_shuffle(v, i8{__VA_ARGS__})
TW_INLINE f8 pick(f8 table, i8 at) { return __builtin_shuffle(table, at); }
#endif

// Butterflies between lanes: low lanes a + b, high lanes -b + a.
TW_INLINE f8 lanes(f8 v) {
    constexpr int32_t N = INT32_MIN;
    v = (f8)((i8)v ^ i8{0, N, 0, N, 0, N, 0, N}) + TW_SWAP(v, 1, 0, 3, 2, 5, 4, 7, 6);
    v = (f8)((i8)v ^ i8{0, 0, N, N, 0, 0, N, N}) + TW_SWAP(v, 2, 3, 0, 1, 6, 7, 4, 5);
    return (f8)((i8)v ^ i8{0, 0, 0, 0, N, N, N, N}) + TW_SWAP(v, 4, 5, 6, 7, 0, 1, 2, 3);
}

template <int R>
TW_INLINE void butterflies(f8 (&v)[R]) {
#pragma GCC unroll 4
    for (int h = 1; h < R; h *= 2)
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
            if (!(i & h)) {
                f8 a = v[i], b = v[i + h];
                v[i] = a + b;
                v[i + h] = a - b;
            }
}

// The stages with distances s, 2s, ... R s / 2 of `n` floats, then a multiplication by c.
template <int R>
TW_INLINE void stages(float* p, int64_t n, int64_t s, float c) {
    for (int64_t base = 0; base < n; base += R * s)
        for (int64_t j = base; j < base + s; j += V) {
            f8 v[R];
#pragma GCC unroll 16
            for (int i = 0; i < R; ++i) v[i] = load(p + j + i * s);
            butterflies<R>(v);
#pragma GCC unroll 16
            for (int i = 0; i < R; ++i) store(p + j + i * s, v[i] * c);
        }
}

TW_INLINE void first_six(float* p, int64_t n, float c) {
    for (int64_t j = 0; j < n; j += 64) {
        f8 v[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) v[i] = lanes(load(p + j + i * V));
        butterflies<8>(v);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) store(p + j + i * V, v[i] * c);
    }
}

// Stages from distance `s` until the transform has size `size`, on `n` floats; the last pass multiplies by c.
TW_INLINE void upwards(float* p, int64_t n, int64_t s, int64_t size, float c) {
    while (s < size) {
        int64_t left = size / s;
        if (left == 16) {
            stages<16>(p, n, s, c), s *= 16;
        } else if (left >= 8) {
            stages<8>(p, n, s, left == 8 ? c : 1.0f), s *= 8;
        } else if (left == 4) {
            stages<4>(p, n, s, c), s *= 4;
        } else {
            stages<2>(p, n, s, c), s *= 2;
        }
    }
}

float norm_of(int64_t size) { return (float)std::sqrt(1.0 / (double)size); }

// The normalised transform of one block, in place.
TW_INLINE void transform(float* p, int64_t size) {
    float c = norm_of(size);
    if (size < 64) {
        for (int64_t h = 1; h < size; h *= 2)
            for (int64_t i = 0; i < size; ++i)
                if (!(i & h)) {
                    float a = p[i], b = p[i + h];
                    p[i] = a + b;
                    p[i + h] = a - b;
                }
        for (int64_t i = 0; i < size; ++i) p[i] *= c;
        return;
    }
    int64_t part = std::min(size, CACHED);
    for (int64_t at = 0; at < size; at += part) {
        first_six(p + at, part, size == 64 ? c : 1.0f);
        upwards(p + at, part, 64, part, part == size ? c : 1.0f);
    }
    upwards(p, size, part, size, c);
}

// One bit per element: bit e % 32 of word (e / 32) % 4 at counter e / 128.
struct Signs {
    uint32_t key[2], counter[4];
    TW_INLINE void words(int64_t element, int64_t count, uint32_t* out) const {
        constexpr uint32_t M0 = 0xD2511F53u, M1 = 0xCD9E8D57u, W0 = 0x9E3779B9u, W1 = 0xBB67AE85u;
        uint32_t first = counter[0] + (uint32_t)(element / 128);
        int64_t calls = (count + 127) / 128;
        for (int64_t i = 0; i < calls; ++i) {
            uint32_t c0 = first + (uint32_t)i, c1 = counter[1], c2 = counter[2], c3 = counter[3];
            uint32_t k0 = key[0], k1 = key[1];
#pragma GCC unroll 7
            for (int r = 0; r < 7; ++r, k0 += W0, k1 += W1) {
                uint64_t p0 = (uint64_t)M0 * c0, p1 = (uint64_t)M1 * c2;
                uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
                c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
            }
            out[4 * i] = c0, out[4 * i + 1] = c1, out[4 * i + 2] = c2, out[4 * i + 3] = c3;
        }
    }
};

// out = +-x * factor, with the signs in `bits`; x and out may be the same.
TW_INLINE void flip(const float* x, const uint32_t* bits, int64_t n, float factor, float* out) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
#pragma GCC unroll 4
        for (int l = 0; l < 32; l += V) {
            i8 w = i8{} + (int32_t)(bits[i / 32] >> l);
            w = (w << i8{31, 30, 29, 28, 27, 26, 25, 24}) & INT32_MIN;
            store(out + i + l, (f8)((i8)(load(x + i + l) * factor) ^ w));
        }
    for (; i < n; ++i) out[i] = (bits[i / 32] >> (i % 32)) & 1 ? -(x[i] * factor) : x[i] * factor;
}

struct Plan {
    int64_t n, block, last;      // elements; floats of a block; floats of the last, padded one (0: none)
    std::vector<Signs> signs;    // one per rotation
    int threads;
    int64_t full() const { return n / block; }
    int64_t count() const { return full() + (last > 0); }
    int64_t size(int64_t b) const { return b < full() ? block : last; }
    int64_t real(int64_t b) const { return b < full() ? block : n - full() * block; }
};

// HD ... HD x of block b.
TW_INLINE void forward(const Plan& p, int64_t b, const float* x, float factor, float* out) {
    uint32_t bits[LARGEST / 32];
    int64_t at = b * p.block, size = p.size(b), real = p.real(b);
    bool fresh = true;
    for (const Signs& s : p.signs) {
        s.words(at, size, bits);
        if (fresh) {
            flip(x + at, bits, real, factor, out);
            std::fill(out + real, out + size, 0.0f);
        } else {
            flip(out, bits, size, 1.0f, out);
        }
        fresh = false;
        transform(out, size);
    }
}

// The inverse, in place.
TW_INLINE void backward(const Plan& p, int64_t b, float* r) {
    uint32_t bits[LARGEST / 32];
    int64_t size = p.size(b);
    for (auto s = p.signs.rbegin(); s != p.signs.rend(); ++s) {
        transform(r, size);
        s->words(b * p.block, size, bits);
        flip(r, bits, size, 1.0f, r);
    }
}

}  // namespace
