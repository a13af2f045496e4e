// Selection: the k largest magnitudes of a vector, exactly; all over a threshold; random subsets; merging; what single
// elements add to a vector, and what is left of one that they were taken from.
//
// A magnitude is the 31 low bits of the float, compared as an integer: NaN above infinity above every number. Of equal
// magnitudes the lower index comes first. `top` guesses a threshold from a scattered sample, collects what reaches it in
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

constexpr uint32_t MAGNITUDE = 0x7fffffffu, INFINITE = 0x7f800000u;
constexpr int64_t GRAIN = 1 << 17;  // elements worth a thread

uint32_t bits_of(float x) {
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    return word;
}

// The vector that is searched: x, or x + alpha e, which is not stored.
struct Source {
    const float *x, *e;
    float alpha;
    uint32_t word(int64_t i) const { return bits_of(e ? x[i] + e[i] * alpha : x[i]); }
    uint32_t magnitude(int64_t i) const { return word(i) & MAGNITUDE; }
    Source from(int64_t i) const { return {x + i, e ? e + i : nullptr, alpha}; }
};

// Elements with their places, both as 32 bits.
struct Elements {
    std::vector<uint32_t> at, word;
    size_t count = 0;
    void room(size_t more) {
        if (count + more <= at.size()) return;
        at.resize(std::max(count + 1024, 2 * at.size()));
        word.resize(at.size());
    }
    void add(int64_t i, uint32_t bits) {
        at[count] = (uint32_t)i;
        word[count++] = bits;
    }
};
using Collect = void (*)(const Source& s, int64_t begin, int64_t end, uint32_t floor, Elements& out);

// Appends every element in [begin, end) whose magnitude is at least `floor`. MASK64 gives one bit for each of 64 of
// them.
#define COLLECT(NAME, TARGET, MASK64)                                                                \
    TARGET void NAME(const Source& s, int64_t begin, int64_t end, uint32_t floor, Elements& out) {  \
        int64_t i = begin;                                                                           \
        for (; i + 64 <= end; i += 64) {                                                             \
            uint64_t mask = 0;                                                                       \
            MASK64                                                                                   \
            if (!mask) continue;                                                                     \
            out.room(64);                                                                            \
            for (; mask; mask &= mask - 1) {                                                         \
                int64_t at = i + __builtin_ctzll(mask);                                              \
                out.add(at, s.word(at));                                                             \
            }                                                                                        \
        }                                                                                            \
        out.room(64);                                                                                \
        for (; i < end; ++i)                                                                         \
            if (s.magnitude(i) >= floor) out.add(i, s.word(i));                                      \
    }

COLLECT(collect_portable, , for (int j = 0; j < 64; ++j) mask |= (uint64_t)(s.magnitude(i + j) >= floor) << j;)

#if defined(__x86_64__)
#define MASKS_AVX2(VALUES)                                                                                      \
    const __m256i low = _mm256_set1_epi32((int)floor - 1), bits = _mm256_set1_epi32((int)MAGNITUDE);           \
    for (int j = 0; j < 8; ++j) {                                                                               \
        const int64_t at = i + 8 * j;                                                                           \
        __m256i v = _mm256_and_si256(_mm256_castps_si256(VALUES), bits);                                        \
        uint32_t part = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(v, low)));          \
        mask |= (uint64_t)part << (8 * j);                                                                      \
    }
#define MASKS_AVX512(VALUES)                                                                                    \
    const __m512i low = _mm512_set1_epi32((int)floor), bits = _mm512_set1_epi32((int)MAGNITUDE);               \
    for (int j = 0; j < 4; ++j) {                                                                               \
        const int64_t at = i + 16 * j;                                                                          \
        __m512i v = _mm512_and_si512(_mm512_castps_si512(VALUES), bits);                                        \
        mask |= (uint64_t)_mm512_cmpge_epi32_mask(v, low) << (16 * j);                                          \
    }
#define WITH_AVX2 __attribute__((target("avx2,bmi")))
#define WITH_AVX512 __attribute__((target("avx512f,bmi")))
COLLECT(collect_avx2, WITH_AVX2, MASKS_AVX2(_mm256_loadu_ps(s.x + at)))
COLLECT(collect_sum_avx2, WITH_AVX2,
        MASKS_AVX2(_mm256_add_ps(_mm256_loadu_ps(s.x + at),
                                 _mm256_mul_ps(_mm256_loadu_ps(s.e + at), _mm256_set1_ps(s.alpha)))))
COLLECT(collect_avx512, WITH_AVX512, MASKS_AVX512(_mm512_loadu_ps(s.x + at)))
COLLECT(collect_sum_avx512, WITH_AVX512,
        MASKS_AVX512(_mm512_add_ps(_mm512_loadu_ps(s.x + at),
                                   _mm512_mul_ps(_mm512_loadu_ps(s.e + at), _mm512_set1_ps(s.alpha)))))
#endif

Collect choose([[maybe_unused]] int vectors, [[maybe_unused]] bool sum = false) {
#if defined(__x86_64__)
    const bool bmi = __builtin_cpu_supports("bmi");
    if (vectors >= AVX512 && bmi && __builtin_cpu_supports("avx512f")) return sum ? collect_sum_avx512 : collect_avx512;
    if (vectors >= AVX2 && bmi && __builtin_cpu_supports("avx2")) return sum ? collect_sum_avx2 : collect_avx2;
#endif
    return collect_portable;
}

// The elements that reach `floor`, in consecutive parts; the memory of `found` is reused.
void collect(const Source& s, int64_t n, uint32_t floor, int threads, Collect run, std::vector<Elements>& found) {
    int parts = (int)std::max<int64_t>(1, std::min<int64_t>(threads, n / GRAIN));
    found.resize(parts);
    for (auto& part : found) part.count = 0;
    if (parts == 1) return run(s, 0, n, floor, found[0]);
    struct Job {
        Collect run;
        const Source& s;
        int64_t n, parts;
        uint32_t floor;
        std::vector<Elements>& found;
    } job{run, s, n, parts, floor, found};
    parallel_for(parts, 1, parts, [](void* ctx, int64_t begin, int64_t end) {
        Job& j = *static_cast<Job*>(ctx);
        for (int64_t p = begin; p < end; ++p) j.run(j.s, j.n * p / j.parts, j.n * (p + 1) / j.parts, j.floor, j.found[p]);
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

// A magnitude that somewhat more than k of n elements reach, judging by a sample; 0 is always safe. One element is taken
// of every m-th part, at places that do not repeat: of a matrix, equal strides would see a few columns and no others.
uint32_t guess(const Source& s, int64_t n, int64_t k, double slack, std::vector<uint32_t>& sample) {
    int64_t m = std::min<int64_t>(n, std::max<int64_t>(256, std::min<int64_t>(1 << 14, n / 16)));
    double share = (double)m * (double)k / (double)n;
    int64_t rank = (int64_t)(slack * (share + 4 * std::sqrt(share) + 4));
    if (rank >= m) return 0;
    sample.resize(m);
    const uint64_t part = (uint64_t)(n / m);
    for (int64_t i = 0; i < m; ++i) {
        const uint32_t scattered = (uint32_t)i * 2654435769u;  // multiples of the golden ratio
        sample[i] = s.magnitude((int64_t)(part * (uint64_t)i + (scattered * part >> 32)));
    }
    return kth(sample, rank, 0);
}

int64_t size_of(const std::vector<Elements>& found) {
    int64_t count = 0;
    for (auto& part : found) count += (int64_t)part.count;
    return count;
}

struct Scratch {
    std::vector<Elements> found;
    std::vector<uint32_t> keys;
};

// Indices (ascending) and values of the k largest magnitudes, 0 < k <= n.
template <class Index>
void top(const Source& s, int64_t n, int64_t k, Index* indices, uint32_t* values, int threads, Collect run,
         Scratch& scratch) {
    std::vector<Elements>& found = scratch.found;
    std::vector<uint32_t>& keys = scratch.keys;
    int64_t count = 0;
    uint32_t floor = 0;
    for (double slack = 1; count < k; slack *= 8) {
        floor = k == n ? 0 : guess(s, n, k, slack, keys);
        collect(s, n, floor, threads, run, found);
        count = size_of(found);
    }
    keys.clear();
    keys.reserve(count);
    for (auto& part : found)
        for (size_t j = 0; j < part.count; ++j) keys.push_back(part.word[j] & MAGNITUDE);
    uint32_t last = k == count ? floor : kth(keys, k, floor);
    int64_t above = 0;
    for (auto& part : found)
        for (size_t j = 0; j < part.count; ++j) above += (part.word[j] & MAGNITUDE) > last;
    int64_t ties = k - above;  // how many of those at the threshold itself are taken, from the front
    for (auto& part : found)
        for (size_t j = 0; j < part.count; ++j) {
            uint32_t key = part.word[j] & MAGNITUDE;
            if (key < last || (key == last && ties-- <= 0)) continue;
            *indices++ = (Index)part.at[j];
            *values++ = part.word[j];
        }
}

Source source(Address x, Address e = 0, float alpha = 1) {
    return {reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(e), alpha};
}

const uint32_t* bits(Address x) { return reinterpret_cast<const uint32_t*>(x); }

// The k largest of x, or of x + alpha e where e is given.
void top_of(Address x, Address e, float alpha, int64_t n, int64_t k, Address indices, Address values, int threads,
            int vectors) {
    nb::gil_scoped_release release;
    Scratch scratch;
    int64_t* index = reinterpret_cast<int64_t*>(indices);
    uint32_t* value = reinterpret_cast<uint32_t*>(values);
    if (k > 0) top(source(x, e, alpha), n, k, index, value, threads, choose(vectors, e), scratch);
}

// The k largest of every `block` elements; the last block may be shorter. Indices are those inside the block.
void top_of_blocks(Address x, int64_t n, int64_t block, int64_t k, Address indices, Address values, int threads,
                   int vectors) {
    struct Job {
        Source s;
        int64_t n, block, k;
        int32_t* indices;
        uint32_t* values;
        Collect run;
    } job{source(x), n, block, std::min(k, block), reinterpret_cast<int32_t*>(indices),
          reinterpret_cast<uint32_t*>(values), choose(vectors)};
    nb::gil_scoped_release release;
    parallel_for((n + block - 1) / block, std::max<int64_t>(1, GRAIN / block), threads,
                 [](void* ctx, int64_t begin, int64_t end) {
                     const Job& j = *static_cast<Job*>(ctx);
                     Scratch scratch;
                     for (int64_t b = begin; b < end; ++b) {
                         int64_t size = std::min(j.block, j.n - b * j.block), at = b * j.k;
                         Source part = j.s.from(b * j.block);
                         top(part, size, std::min(j.k, size), j.indices + at, j.values + at, 1, j.run, scratch);
                     }
                 },
                 &job);
}

// Counts the elements whose magnitude is at least `floor`, and writes them if there are no more than `room`.
int64_t over(Address x, int64_t n, uint32_t floor, int64_t room, Address indices, Address values, int threads,
             int vectors) {
    nb::gil_scoped_release release;
    std::vector<Elements> found;
    collect(source(x), n, floor, threads, choose(vectors), found);
    int64_t count = size_of(found);
    if (count > room) return count;
    int64_t* index = reinterpret_cast<int64_t*>(indices);
    uint32_t* value = reinterpret_cast<uint32_t*>(values);
    for (auto& part : found)
        for (size_t j = 0; j < part.count; ++j) {
            *index++ = part.at[j];
            *value++ = part.word[j];
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

enum Found { FINE = 0, NOT_FINITE = 1, OUTSIDE = 2 };

// Whether values are finite, and places are in 0 .. n-1; they ascend, if they have to.
Found look(const int64_t* indices, const float* values, int64_t count, int64_t n, bool ascend) {
    bool finite = true, inside = true;
    int64_t last = -1;
    for (int64_t j = 0; j < count; ++j) {
        finite &= (bits_of(values[j]) & MAGNITUDE) < INFINITE;
        inside &= indices[j] > last && indices[j] < n;
        if (ascend) last = indices[j];
    }
    return !inside ? OUTSIDE : finite ? FINE : NOT_FINITE;
}

// out[indices] += weight * values, if all is as it should be.
int add_at(Address out, int64_t n, Address indices, Address values, int64_t count, float weight) {
    nb::gil_scoped_release release;
    float* y = reinterpret_cast<float*>(out);
    const int64_t* at = reinterpret_cast<const int64_t*>(indices);
    const float* value = reinterpret_cast<const float*>(values);
    Found found = look(at, value, count, n, false);
    if (found == FINE)
        for (int64_t j = 0; j < count; ++j) y[at[j]] += value[j] * weight;
    return found;
}

// e = beta e + x, and what e was, for `count` elements.
void decay(float* __restrict e, const float* __restrict x, int64_t count, float beta, float* __restrict old) {
    for (int64_t i = 0; i < count; ++i) {
        old[i] = e[i];
        e[i] = e[i] * beta + x[i];
    }
}

// e = beta e + x, less `sent` where it was sent, if all is as it should be. Elements are put right while they are in the
// cache.
int keep_at(Address residual, Address vector, int64_t n, Address indices, Address sent, int64_t count, float beta,
            int threads) {
    struct Job {
        float* e;
        const float* x;
        const int64_t* at;
        const float* sent;
        int64_t count;
        float beta;
    } job{reinterpret_cast<float*>(residual), reinterpret_cast<const float*>(vector),
          reinterpret_cast<const int64_t*>(indices), reinterpret_cast<const float*>(sent), count, beta};
    nb::gil_scoped_release release;
    Found found = look(job.at, job.sent, count, n, true);
    if (found != FINE) return found;
    parallel_for(n, GRAIN, threads, [](void* ctx, int64_t begin, int64_t end) {
        constexpr int64_t PART = 1 << 11;
        const Job& j = *static_cast<Job*>(ctx);
        float old[PART];
        const int64_t* next = std::lower_bound(j.at, j.at + j.count, begin);
        for (int64_t first = begin; first < end; first += PART) {
            const int64_t stop = std::min(first + PART, end);
            decay(j.e + first, j.x + first, stop - first, j.beta, old);
            for (; next < j.at + j.count && *next < stop; ++next)
                j.e[*next] = old[*next - first] * j.beta + (j.x[*next] - j.sent[next - j.at]);
        }
    }, &job);
    return FINE;
}

}  // namespace

NB_MODULE(_topk, m) {
    m.def("top", &top_of);
    m.def("top_blocks", &top_of_blocks);
    m.def("over", &over);
    m.def("subset", &subset);
    m.def("merge", &merge);
    m.def("add_at", &add_at);
    m.def("keep_at", &keep_at);
}
