// The plain arguments of every pass: pointers and numbers, no templates, shared by all instruction sets.
#pragma once
#include <cstdint>

// How one element becomes a field. Values are those of thinwire.kernels.spec.
enum Kind { SIGNED = 0, UNSIGNED = 1, SIGN = 2, DITHER = 3, NATURAL = 4, PAIR = 5 };
// How a block finds its scale.
enum Norm { MAX = 0, L2 = 1, MEAN = 2, RANGE = 3, UNIT = 4, NONE = 5, SIDES = 6, CLIPPED = 7 };
enum Dtype { F32 = 0, BF16 = 1, F16 = 2 };
// Which instructions code outside the passes may use where the CPU has them. Values are those of `Kernels.vectors`.
enum Vectors { ANY = 0, AVX2 = 1, AVX512 = 2 };

// Blocks share one scale: equal sizes, or the ragged boundaries starts[0..count].
struct Blocks {
    int64_t count, size;
    const int64_t* starts;
    int64_t n;
    int64_t begin(int64_t b) const { return starts ? starts[b] : b * size; }
    int64_t end(int64_t b) const {
        int64_t e = starts ? starts[b + 1] : (b + 1) * size;
        return e < n ? e : n;
    }
};

struct Noise {
    uint32_t key[2];      // the 64-bit seed
    uint32_t counter[4];  // word 0 counts lanes; words 1 to 3 are bucket, step, rank and hop
};

struct Spec {
    int kind, norm, levels, width;
    bool stochastic;
    float clip;    // CLIPPED: in standard deviations
    float lo, hi;  // UNSIGNED with UNIT: the ends of a fixed grid
    int fraction() const {  // bits behind the point in fixed-point rounding: levels + 1 still fit 31 bits
        int f = 31;
        for (int l = levels; l; l >>= 1) --f;
        return f;
    }
};

struct Job {
    Spec spec;
    Blocks blocks;
    Noise noise;
    int64_t n;
    const void* x;      // encode: input; decode: unused
    int dtype;
    float* e;           // residual, updated in place; null without error feedback
    float alpha, beta;
    float* scales;      // encode: written (or read when given); decode: read
    bool given;
    uint8_t* codes;     // packed fields
    uint64_t* sum;      // encode: the checksum's sum of the codes is added here; null when not wanted
    uint64_t first;     // encode: the index, in the payload, of the codes' first word
    float* out;         // decode: accumulated into
    float weight;
    bool fresh;         // decode: `out` counts as zero and is not read
    int threads;
};

// One row of this table for each instruction set.
struct Passes {
    void (*encode)(const Job&);
    void (*scales)(const Job&);
    void (*decode_add)(const Job&);
    void (*noise)(const Noise&, int64_t n, uint32_t* out, int threads);
    void (*pack)(const uint8_t* codes, int64_t n, int width, uint8_t* out);
    void (*unpack)(const uint8_t* packed, int64_t n, int width, uint8_t* codes);
    bool (*copy)(const float* x, int64_t n, float* out, int threads);
    bool (*difference)(const float* a, const float* b, int64_t n, float* out, float* again, int threads);
    uint64_t (*total)(const uint8_t* data, int64_t n, uint64_t first, int threads);
};

extern const Passes passes_portable, passes_avx2, passes_avx512;

constexpr int LANES = 64;            // a row of a tile
constexpr int ROWS = 8;              // rows of a tile: two for each word of a Philox counter
constexpr int TILE = LANES * ROWS;   // 512 elements
constexpr int64_t SEGMENT = 1 << 16; // norms of larger blocks are summed segment by segment

// Calls fn(ctx, begin, end) on ranges that cover [0, n), on at most `threads` threads, each with at least `grain`
// items.
void parallel_for(int64_t n, int64_t grain, int threads, void (*fn)(void*, int64_t, int64_t), void* ctx);
