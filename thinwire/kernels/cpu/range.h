// What the passes share: sizes of work, and how many bytes fields take.
#pragma once
#include <cstdlib>

#include "fields.h"
#include "tile.h"

namespace TW_NS {
namespace {

constexpr int64_t CHUNK = 2048;       // elements; 8 KiB of floats, 16 KiB with a residual
constexpr int64_t GRAIN = 1 << 17;    // elements worth a thread of their own

constexpr int64_t BATCH = 1 << 14;    // elements checksummed together
constexpr int64_t AHEAD = 4096;       // elements that decode asks for before it needs them

inline int64_t tiles_of(int64_t n) { return (n + TILE - 1) / TILE; }
inline int width_of(const Spec& s) { return s.kind == NATURAL ? 9 : s.width; }
constexpr bool two_complement(int kind) { return kind == SIGNED || kind == DITHER; }
inline int64_t code_bytes(const Spec& s, int64_t n) {
    return (n / TILE * LANES + (n % TILE + ROWS - 1) / ROWS) * width_of(s);
}

// Asks for lines that will be needed soon, while others are computed.
inline void prefetch(const void* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)p + i, 0, 2);
}

// Scratch for one thread.
struct Buffer {
    float* p;
    explicit Buffer(int64_t n) : p((float*)aligned_alloc(64, (n * 4 + 127) / 64 * 64)) {}
    ~Buffer() { free(p); }
};

}  // namespace
}  // namespace TW_NS
