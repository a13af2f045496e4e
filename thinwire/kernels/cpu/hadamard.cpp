// Randomised Walsh-Hadamard transforms of blocks of 2^0 .. 2^16 floats, and the codes of DRIVE and EDEN on top of them.
// thinwire/kernels/hadamard.py is the definition of the bits: butterflies in float32 with distances 1, 2, 4, ... in
// this order, then one multiplication by 2^(-k/2); sums in float64, by halving.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "hadamard.h"
#include "job.h"

namespace nb = nanobind;
using Address = uintptr_t;

namespace {

TW_INLINE double halving_sum(double* a, int64_t n) {
    for (int64_t h = n / 2; h; h /= 2)
        for (int64_t i = 0; i < h; ++i) a[i] += a[i + h];
    return a[0];
}

// Codes of two rates: the first `share * size` coordinates of a block take table 0, the others table 1.
struct Table {
    int bits = 0;                 // of a code, which is a sign above a magnitude; 0 if nothing is sent
    float centroids[V] = {}, bounds[V] = {};
};

struct Code {
    Plan plan;
    Table table[2];
    double share;
    bool biased;
    int64_t split(int64_t size) const {
        return std::max<int64_t>(1, (int64_t)std::floor(share * (double)size + 0.5));
    }
};

// Codes and centroids (as magnitudes) of coordinates from .. to - 1.
TW_INLINE void code_range(const Table& t, const float* r, int64_t from, int64_t to, float k, uint8_t* codes,
                          float* c) {
    if (!t.bits) {
        std::fill(codes + from, codes + to, 0);
        std::fill(c + from, c + to, 0.0f);
        return;
    }
    int levels = 1 << (t.bits - 1);
    int64_t i = from;
    for (; i + V <= to; i += V) {
        f8 x = load(r + i), scaled = (f8)((i8)x & INT32_MAX) * k, value = f8{} + t.centroids[0];
        i8 code = (i8)(x < 0.0f) & levels;
        for (int j = 1; j < levels; ++j) {
            i8 above = scaled > t.bounds[j];
            code -= above;
            value = above ? f8{} + t.centroids[j] : value;
        }
        b8 narrow = __builtin_convertvector(code, b8);
        memcpy(codes + i, &narrow, V);
        store(c + i, value);
    }
    for (; i < to; ++i) {
        float scaled = std::fabs(r[i]) * k;
        int m = 0;
        for (int j = 1; j < levels; ++j) m += scaled > t.bounds[j];
        codes[i] = (uint8_t)(m | (r[i] < 0 ? levels : 0));
        c[i] = t.centroids[m];
    }
}

TW_INLINE void rotate_blocks(const Plan& p, const float* x, float factor, float* out, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) forward(p, b, x, factor, out + b * p.block);
}

TW_INLINE void hadamard_blocks(float* x, int64_t block, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) transform(x + b * block, block);
}

TW_INLINE double product_sum(const float* __restrict x, const float* __restrict y, int64_t n, double* __restrict a) {
    for (int64_t i = 0; i < n; ++i) a[i] = (double)std::fabs(x[i]) * (double)std::fabs(y[i]);
    return halving_sum(a, n);
}

TW_INLINE void encode_blocks(const Code& c, const float* x, float factor, uint8_t* codes, double* scales,
                             int64_t begin, int64_t end) {
    std::vector<float> r(c.plan.block), near(c.plan.block);
    std::vector<double> a(c.plan.block);
    for (int64_t b = begin; b < end; ++b) {
        int64_t size = c.plan.size(b), split = c.split(size);
        forward(c.plan, b, x, factor, r.data());
        double square = product_sum(r.data(), r.data(), size, a.data());
        float k = square > 0 ? (float)(std::sqrt((double)size) / std::sqrt(square)) : 0.0f;
        code_range(c.table[0], r.data(), 0, split, k, codes + b * c.plan.block, near.data());
        code_range(c.table[1], r.data(), split, size, k, codes + b * c.plan.block, near.data());
        double inner = product_sum(near.data(), r.data(), size, a.data());
        if (c.biased)
            scales[b] = inner / product_sum(near.data(), near.data(), size, a.data());
        else
            scales[b] = square == 0 ? 0.0 : square / inner;
    }
}

TW_INLINE void value_range(const Table& t, const uint8_t* codes, int64_t from, int64_t to, float* r) {
    if (!t.bits) {
        std::fill(r + from, r + to, 0.0f);
        return;
    }
    int sign = t.bits - 1, mask = (1 << sign) - 1;
    f8 table = load(t.centroids);
    int64_t i = from;
    for (; i + V <= to; i += V) {
        b8 narrow;
        memcpy(&narrow, codes + i, V);
        i8 code = __builtin_convertvector(narrow, i8);
        f8 value = pick(table, code & mask);
        store(r + i, (f8)((i8)value ^ ((code >> sign) << 31)));
    }
    for (; i < to; ++i) {
        float c = t.centroids[codes[i] & mask];
        r[i] = (codes[i] >> sign) & 1 ? -c : c;
    }
}

// out += weight * s r, where r is finite; NaN elsewhere.
TW_INLINE void add_scaled(const float* __restrict r, int64_t n, float s, float weight, float* __restrict out) {
    for (int64_t i = 0; i < n; ++i) {
        float v = s * r[i];
        v = v > TOP ? TOP : v;
        v = v < -TOP ? -TOP : v;
        v = std::fabs(r[i]) <= FLT_MAX ? v : NAN;
        out[i] = out[i] + v * weight;
    }
}

TW_INLINE void unrotate_add_blocks(const Plan& p, float* r, float s, float weight, float* out, int64_t begin,
                                   int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
        backward(p, b, r + b * p.block);
        add_scaled(r + b * p.block, p.real(b), s, weight, out + b * p.block);
    }
}

TW_INLINE void decode_blocks(const Code& c, const uint8_t* codes, const float* scales, float weight, float* out,
                             int64_t begin, int64_t end) {
    std::vector<float> r(c.plan.block);
    for (int64_t b = begin; b < end; ++b) {
        int64_t size = c.plan.size(b), split = c.split(size), real = c.plan.real(b), at = b * c.plan.block;
        value_range(c.table[0], codes + at, 0, split, r.data());
        value_range(c.table[1], codes + at, split, size, r.data());
        backward(c.plan, b, r.data());
        add_scaled(r.data(), real, std::isfinite(scales[b]) ? scales[b] : NAN, weight, out + at);
    }
}

TW_INLINE uint32_t peak_of(const uint32_t* x, int64_t n) {
    uint32_t top = 0;
    for (int64_t i = 0; i < n; ++i) {
        uint32_t b = x[i] & 0x7FFFFFFFu;
        b = b < 0x7F800000u ? b : 0;
        top = b > top ? b : top;
    }
    return top;
}

#define TW_BLOCKS [&](int64_t begin, int64_t end) __attribute__((always_inline))

#if defined(__x86_64__)
template <class F>
__attribute__((target("avx2"))) void call_avx2(const F& fn, int64_t begin, int64_t end) {
    fn(begin, end);
}
#endif

// Calls `fn`, which is inlined, with the instructions that `vectors` allows.
template <class F>
void over_blocks(int64_t count, int64_t block, int threads, int vectors, F fn) {
    struct Work {
        F& fn;
        bool avx2;
    } work{fn, vectors >= AVX2};
#if defined(__x86_64__)
    work.avx2 &= (bool)__builtin_cpu_supports("avx2");
#endif
    parallel_for(count, std::max<int64_t>(1, (1 << 15) / block), threads,
                 [](void* ctx, int64_t begin, int64_t end) {
                     const Work& w = *static_cast<Work*>(ctx);
#if defined(__x86_64__)
                     if (w.avx2) return call_avx2(w.fn, begin, end);
#endif
                     w.fn(begin, end);
                 },
                 &work);
}

using Words = std::vector<std::vector<uint32_t>>;

Plan plan_of(int64_t n, int64_t block, int64_t last, const Words& words, int threads) {
    Plan p{n, block, last, {}, threads};
    for (const auto& w : words)
        p.signs.push_back({{w.at(0), w.at(1)}, {w.at(2), w.at(3), w.at(4), w.at(5)}});
    return p;
}

void rotate(Address x, int64_t n, int64_t block, int64_t last, const Words& words, float factor, Address out,
            int threads, int vectors) {
    Plan p = plan_of(n, block, last, words, threads);
    nb::gil_scoped_release release;
    over_blocks(p.count(), block, threads, vectors, TW_BLOCKS {
        rotate_blocks(p, reinterpret_cast<const float*>(x), factor, reinterpret_cast<float*>(out), begin, end);
    });
}

void unrotate_add(Address r, int64_t n, int64_t block, int64_t last, const Words& words, float unit, float weight,
                  Address out, int threads, int vectors) {
    Plan p = plan_of(n, block, last, words, threads);
    nb::gil_scoped_release release;
    over_blocks(p.count(), block, threads, vectors, TW_BLOCKS {
        unrotate_add_blocks(p, reinterpret_cast<float*>(r), unit, weight, reinterpret_cast<float*>(out), begin, end);
    });
}

void hadamard(Address x, int64_t blocks, int64_t block, int threads, int vectors) {
    nb::gil_scoped_release release;
    over_blocks(blocks, block, threads, vectors, TW_BLOCKS {
        hadamard_blocks(reinterpret_cast<float*>(x), block, begin, end);
    });
}

using Floats = std::vector<float>;

Code code_of(Plan plan, double share, bool biased, const Floats& high, const Floats& low, int high_bits,
             int low_bits) {
    Code c{std::move(plan), {}, share, biased};
    const Floats* centroids[2] = {&high, &low};
    int bits[2] = {high_bits, low_bits};
    for (int t = 0; t < 2; ++t) {
        c.table[t].bits = bits[t];
        for (size_t j = 0; bits[t] && j < (size_t)1 << (bits[t] - 1); ++j) {
            c.table[t].centroids[j] = centroids[t]->at(j);
            c.table[t].bounds[j] = j ? (centroids[t]->at(j - 1) + centroids[t]->at(j)) * 0.5f : 0.0f;
        }
    }
    return c;
}

void encode(Address x, int64_t n, int64_t block, int64_t last, const Words& words, float factor, double share,
            bool biased, const Floats& high, int high_bits, const Floats& low, int low_bits, Address codes,
            Address scales, int threads, int vectors) {
    Code c = code_of(plan_of(n, block, last, words, threads), share, biased, high, low, high_bits, low_bits);
    nb::gil_scoped_release release;
    over_blocks(c.plan.count(), block, threads, vectors, TW_BLOCKS {
        encode_blocks(c, reinterpret_cast<const float*>(x), factor, reinterpret_cast<uint8_t*>(codes),
                      reinterpret_cast<double*>(scales), begin, end);
    });
}

void decode_add(Address codes, int64_t n, int64_t block, int64_t last, const Words& words, double share,
                const Floats& high, int high_bits, const Floats& low, int low_bits, Address scales, float weight,
                Address out, int threads, int vectors) {
    Code c = code_of(plan_of(n, block, last, words, threads), share, false, high, low, high_bits, low_bits);
    nb::gil_scoped_release release;
    over_blocks(c.plan.count(), block, threads, vectors, TW_BLOCKS {
        decode_blocks(c, reinterpret_cast<const uint8_t*>(codes), reinterpret_cast<const float*>(scales), weight,
                      reinterpret_cast<float*>(out), begin, end);
    });
}

float peak(Address x, int64_t n, int threads, int vectors) {
    nb::gil_scoped_release release;
    constexpr int64_t PART = 1 << 16;
    int64_t parts = (n + PART - 1) / PART;
    std::vector<uint32_t> tops(parts, 0);
    over_blocks(parts, PART, threads, vectors, TW_BLOCKS {
        for (int64_t i = begin; i < end; ++i)
            tops[i] = peak_of(reinterpret_cast<const uint32_t*>(x) + i * PART, std::min(PART, n - i * PART));
    });
    uint32_t top = 0;
    for (uint32_t t : tops) top = std::max(top, t);
    float out;
    memcpy(&out, &top, 4);
    return out;
}

}  // namespace

NB_MODULE(_hadamard, m) {
    m.def("hadamard", &hadamard);
    m.def("rotate", &rotate);
    m.def("unrotate_add", &unrotate_add);
    m.def("encode", &encode);
    m.def("decode_add", &decode_add);
    m.def("peak", &peak);
}
