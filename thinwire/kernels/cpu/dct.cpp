// L X R of many small matrices X, in place: the two halves of a separable transform such as the DCT.
// thinwire/kernels/dct.py is the definition of the bits: float32, every sum in the order of its index, from 0.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "job.h"

namespace nb = nanobind;
using Address = uintptr_t;

namespace {

constexpr int64_t WORTH = 1 << 21;  // multiplications worth a thread of their own

// A tile of R rows and W columns of out = a b, held in registers while j runs.
template <int R, int W>
inline __attribute__((always_inline)) void tile(
    const float* a, const float* b, float* out, int64_t k, int64_t n) {
    float sum[R][W] = {};
    for (int64_t j = 0; j < k; ++j)
        for (int r = 0; r < R; ++r) {
            const float factor = a[r * k + j];
            for (int l = 0; l < W; ++l) sum[r][l] += factor * b[j * n + l];
        }
    for (int r = 0; r < R; ++r) memcpy(out + r * n, sum[r], sizeof sum[r]);
}

template <int R>
inline __attribute__((always_inline)) void rows_of(
    const float* a, const float* b, float* out, int64_t k, int64_t n) {
    int64_t l = 0;
    for (; l + 32 <= n; l += 32) tile<R, 32>(a, b + l, out + l, k, n);
    for (; l + 8 <= n; l += 8) tile<R, 8>(a, b + l, out + l, k, n);
    for (; l < n; ++l) tile<R, 1>(a, b + l, out + l, k, n);
}

// out (m x n) = a (m x k) b (k x n).
inline __attribute__((always_inline)) void product(
    const float* a, const float* b, float* out, int64_t m, int64_t k, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= m; i += 4) rows_of<4>(a + i * k, b, out + i * n, k, n);
    for (; i < m; ++i) rows_of<1>(a + i * k, b, out + i * n, k, n);
}

struct Sandwich {
    float* x;
    int64_t rows, cols;
    const float *left, *right;
    int vectors;
};

inline __attribute__((always_inline)) void each(const Sandwich& s, float* between, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
        float* one = s.x + at * s.rows * s.cols;
        product(one, s.right, between, s.rows, s.cols, s.cols);
        product(s.left, between, one, s.rows, s.rows, s.cols);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void each_avx512(const Sandwich& s, float* between, int64_t begin, int64_t end) {
    each(s, between, begin, end);
}
__attribute__((target("avx2"))) void each_avx2(const Sandwich& s, float* between, int64_t begin, int64_t end) {
    each(s, between, begin, end);
}
#endif

void range(void* ctx, int64_t begin, int64_t end) {
    const Sandwich& s = *static_cast<const Sandwich*>(ctx);
    std::vector<float> between(s.rows * s.cols);
#if defined(__x86_64__)
    if (s.vectors >= AVX512 && __builtin_cpu_supports("avx512f")) return each_avx512(s, between.data(), begin, end);
    if (s.vectors >= AVX2 && __builtin_cpu_supports("avx2")) return each_avx2(s, between.data(), begin, end);
#endif
    each(s, between.data(), begin, end);
}

void sandwich(Address x, int64_t count, int64_t rows, int64_t cols, Address left, Address right, int threads,
              int vectors) {
    nb::gil_scoped_release release;
    Sandwich s{(float*)x, rows, cols, (const float*)left, (const float*)right, vectors};
    parallel_for(count, WORTH / (rows * cols * (rows + cols)) + 1, threads, range, &s);
}

}  // namespace

NB_MODULE(_dct, m) { m.def("sandwich", &sandwich); }
