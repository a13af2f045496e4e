// Selection: the k largest magnitudes of a vector, exactly; all over a threshold; random subsets; merging.
//
// A magnitude is the 31 low bits of the float, compared as an integer: NaN above infinity above every number. Of equal
// magnitudes the lower index comes first. `top` guesses a threshold from a strided sample, collects what reaches it in
// one pass over memory, and settles the rest among those few: a bad guess costs another pass, never a wrong answer.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "job.h"

namespace nb = nanobind;
using Address = uintptr_t;

namespace {

constexpr uint32_t MAGNITUDE = 0x7fffffffu;
constexpr int64_t GRAIN = 1 << 17;  // elements worth a thread
using Indices = std::vector<uint32_t>;
using Collect = void (*)(const uint32_t* x, int64_t begin, int64_t end, uint32_t floor, Indices& out);

// Appends every index in [begin, end) whose magnitude is at least `floor`. MASK64 gives one bit for each of 64
// elements.
#define COLLECT(NAME, TARGET, MASK64)                                                                             \
    TARGET void NAME(const uint32_t* x, int64_t begin, int64_t end, uint32_t floor, Indices& out) {               \
        size_t count = out.size();                                                                                \
        int64_t i = begin;                                                                                        \
        for (; i + 64 <= end; i += 64) {                                                                          \
            uint64_t mask = 0;                                                                                    \
            MASK64                                                                                                \
            if (!mask) continue;                                                                                  \
            if (count + 64 > out.size()) out.resize(std::max<size_t>(count + 1024, 2 * out.size()));              \
            for (; mask; mask &= mask - 1) out[count++] = (uint32_t)(i + __builtin_ctzll(mask));                  \
        }                                                                                                         \
        out.resize(count);                                                                                        \
        for (; i < end; ++i)                                                                                      \
            if ((x[i] & MAGNITUDE) >= floor) out.push_back((uint32_t)i);                                          \
    }

COLLECT(collect_portable, , for (int j = 0; j < 64; ++j) mask |= (uint64_t)((x[i + j] & MAGNITUDE) >= floor) << j;)

#if defined(__x86_64__)
COLLECT(
    collect_avx2, __attribute__((target("avx2,bmi"))),
    const __m256i low = _mm256_set1_epi32((int)floor - 1); const __m256i bits = _mm256_set1_epi32((int)MAGNITUDE);
    for (int j = 0; j < 8; ++j) {
        __m256i v = _mm256_and_si256(_mm256_loadu_si256((const __m256i*)(x + i + 8 * j)), bits);
        uint32_t part = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(v, low)));
        mask |= (uint64_t)part << (8 * j);
    })
COLLECT(
    collect_avx512, __attribute__((target("avx512f,bmi"))),
    const __m512i low = _mm512_set1_epi32((int)floor); const __m512i bits = _mm512_set1_epi32((int)MAGNITUDE);
    for (int j = 0; j < 4; ++j) {
        __m512i v = _mm512_and_si512(_mm512_loadu_si512(x + i + 16 * j), bits);
        mask |= (uint64_t)_mm512_cmpge_epi32_mask(v, low) << (16 * j);
    })
#endif

Collect choose([[maybe_unused]] int vectors) {
#if defined(__x86_64__)
    const bool bmi = __builtin_cpu_supports("bmi");
    if (vectors >= AVX512 && bmi && __builtin_cpu_supports("avx512f")) return collect_avx512;
    if (vectors >= AVX2 && bmi && __builtin_cpu_supports("avx2")) return collect_avx2;
#endif
    return collect_portable;
}

// The elements that reach `floor`, in consecutive parts; the memory of `found` is reused.
void collect(const uint32_t* x, int64_t n, uint32_t floor, int threads, Collect run, std::vector<Indices>& found) {
    int parts = (int)std::max<int64_t>(1, std::min<int64_t>(threads, n / GRAIN));
    found.resize(parts);
    for (auto& part : found) part.clear();
    if (parts == 1) return run(x, 0, n, floor, found[0]);
    struct Job {
        Collect run;
        const uint32_t* x;
        int64_t n, parts;
        uint32_t floor;
        std::vector<Indices>& found;
    } job{run, x, n, parts, floor, found};
    parallel_for(parts, 1, parts, [](void* ctx, int64_t begin, int64_t end) {
        Job& j = *static_cast<Job*>(ctx);
        for (int64_t p = begin; p < end; ++p) j.run(j.x, j.n * p / j.parts, j.n * (p + 1) / j.parts, j.floor, j.found[p]);
    }, &job);
}

// The k-th largest of m magnitudes, all at least `floor`; `keys` is reordered. A histogram leaves few to sort.
uint32_t kth(std::vector<uint32_t>& keys, int64_t k, uint32_t floor) {
    if (keys.size() > 4096) {
        uint32_t highest = *std::max_element(keys.begin(), keys.end());
        int shift = 0;
        while ((highest - floor) >> shift >= 4096) ++shift;
        std::vector<int64_t> bins(4096);
        for (uint32_t key : keys) ++bins[(key - floor) >> shift];
        int64_t above = 0;
        uint32_t bin = 4095;
        while (above + bins[bin] < k) above += bins[bin--];
        size_t kept = 0;
        for (uint32_t key : keys)
            if ((key - floor) >> shift == bin) keys[kept++] = key;
        keys.resize(kept);
        k -= above;
    }
    std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end(), std::greater<uint32_t>());
    return keys[k - 1];
}

// A magnitude that somewhat more than k of n elements reach, judging by a strided sample; 0 is always safe.
uint32_t guess(const uint32_t* x, int64_t n, int64_t k, double slack, std::vector<uint32_t>& sample) {
    int64_t m = std::min<int64_t>(n, std::max<int64_t>(256, std::min<int64_t>(1 << 16, n / 16)));
    double share = (double)m * (double)k / (double)n;
    int64_t rank = (int64_t)(slack * (share + 4 * std::sqrt(share) + 4));
    if (rank >= m) return 0;
    sample.resize(m);
    for (int64_t i = 0; i < m; ++i) sample[i] = x[n / m * i] & MAGNITUDE;
    return kth(sample, rank, 0);
}

int64_t size_of(const std::vector<Indices>& found) {
    int64_t count = 0;
    for (auto& part : found) count += (int64_t)part.size();
    return count;
}

struct Scratch {
    std::vector<Indices> found;
    std::vector<uint32_t> keys;
};

// Indices (ascending) and values of the k largest magnitudes, 0 < k <= n.
template <class Index>
void top(const uint32_t* x, int64_t n, int64_t k, Index* indices, uint32_t* values, int threads, Collect run,
         Scratch& scratch) {
    std::vector<Indices>& found = scratch.found;
    std::vector<uint32_t>& keys = scratch.keys;
    int64_t count = 0;
    uint32_t floor = 0;
    for (double slack = 1; count < k; slack *= 8) {
        floor = k == n ? 0 : guess(x, n, k, slack, keys);
        collect(x, n, floor, threads, run, found);
        count = size_of(found);
    }
    keys.clear();
    keys.reserve(count);
    for (auto& part : found)
        for (uint32_t i : part) keys.push_back(x[i] & MAGNITUDE);
    uint32_t last = k == count ? floor : kth(keys, k, floor);
    int64_t above = 0;
    for (auto& part : found)
        for (uint32_t i : part) above += (x[i] & MAGNITUDE) > last;
    int64_t ties = k - above;  // how many of those at the threshold itself are taken, from the front
    for (auto& part : found)
        for (uint32_t i : part) {
            uint32_t key = x[i] & MAGNITUDE;
            if (key < last || (key == last && ties-- <= 0)) continue;
            *indices++ = (Index)i;
            *values++ = x[i];
        }
}

const uint32_t* bits(Address x) { return reinterpret_cast<const uint32_t*>(x); }

void top_of(Address x, int64_t n, int64_t k, Address indices, Address values, int threads, int vectors) {
    nb::gil_scoped_release release;
    Scratch scratch;
    int64_t* index = reinterpret_cast<int64_t*>(indices);
    uint32_t* value = reinterpret_cast<uint32_t*>(values);
    if (k > 0) top(bits(x), n, k, index, value, threads, choose(vectors), scratch);
}

// The k largest of every `block` elements; the last block may be shorter. Indices are those inside the block.
void top_of_blocks(Address x, int64_t n, int64_t block, int64_t k, Address indices, Address values, int threads,
                   int vectors) {
    struct Job {
        const uint32_t* x;
        int64_t n, block, k;
        int32_t* indices;
        uint32_t* values;
        Collect run;
    } job{bits(x), n, block, std::min(k, block), reinterpret_cast<int32_t*>(indices),
          reinterpret_cast<uint32_t*>(values), choose(vectors)};
    nb::gil_scoped_release release;
    parallel_for((n + block - 1) / block, std::max<int64_t>(1, GRAIN / block), threads,
                 [](void* ctx, int64_t begin, int64_t end) {
                     const Job& j = *static_cast<Job*>(ctx);
                     Scratch scratch;
                     for (int64_t b = begin; b < end; ++b) {
                         int64_t size = std::min(j.block, j.n - b * j.block), at = b * j.k;
                         const uint32_t* part = j.x + b * j.block;
                         top(part, size, std::min(j.k, size), j.indices + at, j.values + at, 1, j.run, scratch);
                     }
                 },
                 &job);
}

// Counts the elements whose magnitude is at least `floor`, and writes them if there are no more than `room`.
int64_t over(Address x, int64_t n, uint32_t floor, int64_t room, Address indices, Address values, int threads,
             int vectors) {
    nb::gil_scoped_release release;
    std::vector<Indices> found;
    collect(bits(x), n, floor, threads, choose(vectors), found);
    int64_t count = size_of(found);
    if (count > room) return count;
    int64_t* index = reinterpret_cast<int64_t*>(indices);
    uint32_t* value = reinterpret_cast<uint32_t*>(values);
    for (auto& part : found)
        for (uint32_t i : part) {
            *index++ = i;
            *value++ = bits(x)[i];
        }
    return count;
}

// Floyd's subset: k of 0 .. n-1, every subset as likely as any other, ascending. One 32-bit word of noise each.
void subset(Address noise, int64_t n, int64_t k, Address indices) {
    nb::gil_scoped_release release;
    std::vector<uint64_t> taken((n + 63) / 64);
    const uint32_t* word = bits(noise);
    for (int64_t j = n - k; j < n; ++j) {
        int64_t t = (int64_t)(((uint64_t)*word++ * (uint64_t)(j + 1)) >> 32);
        if (taken[t >> 6] >> (t & 63) & 1) t = j;
        taken[t >> 6] |= 1ull << (t & 63);
    }
    int64_t* index = reinterpret_cast<int64_t*>(indices);
    for (int64_t w = 0; w < (int64_t)taken.size(); ++w)
        for (uint64_t mask = taken[w]; mask; mask &= mask - 1) *index++ = w * 64 + __builtin_ctzll(mask);
}

// The sum of two sparse vectors, indices ascending in each; returns how many elements it has.
int64_t merge(Address ai, Address av, int64_t an, Address bi, Address bv, int64_t bn, Address oi, Address ov) {
    nb::gil_scoped_release release;
    const int64_t *a = reinterpret_cast<const int64_t*>(ai), *b = reinterpret_cast<const int64_t*>(bi);
    const float *va = reinterpret_cast<const float*>(av), *vb = reinterpret_cast<const float*>(bv);
    int64_t *index = reinterpret_cast<int64_t*>(oi), i = 0, j = 0, count = 0;
    float* value = reinterpret_cast<float*>(ov);
    while (i < an || j < bn) {
        bool left = j == bn || (i < an && a[i] <= b[j]), right = i == an || (j < bn && b[j] <= a[i]);
        index[count] = left ? a[i] : b[j];
        value[count++] = left && right ? va[i] + vb[j] : left ? va[i] : vb[j];
        i += left;
        j += right;
    }
    return count;
}

}  // namespace

NB_MODULE(_topk, m) {
    m.def("top", &top_of);
    m.def("top_blocks", &top_of_blocks);
    m.def("over", &over);
    m.def("subset", &subset);
    m.def("merge", &merge);
}
