// Staging of the input, and scales of blocks too large or too ragged for a chunk.
#pragma once
#include "range.h"

namespace TW_NS {
namespace {

// x as float; a buffer is filled only when x is 16-bit or a residual is added.
inline const float* as_float(const Job& j, int64_t start, int64_t n, float* buf) {
    if (j.dtype == F32) return (const float*)j.x + start;
    const uint16_t* x = (const uint16_t*)j.x + start;
    j.dtype == BF16 ? from_bf16(x, n, buf) : from_f16(x, n, buf);
    return buf;
}

inline const float* stage(const Job& j, int64_t start, int64_t n, float* buf) {
    const float* x = as_float(j, start, n, buf);
    if (!j.e) return x;
    const float* e = j.e + start;
    for (int64_t i = 0; i < n; ++i) buf[i] = x[i] + j.alpha * e[i];
    return buf;
}

// The scale of one block, segment by segment; `threads` > 1 computes the segments side by side, merged in order.
struct BlockJob {
    const Job& j;
    int64_t begin, end;
    Partial* parts;
};

void segment_range(void* ctx, int64_t s0, int64_t s1) {
    const BlockJob& b = *(const BlockJob*)ctx;
    Buffer buf(SEGMENT);
    for (int64_t s = s0; s < s1; ++s) {
        int64_t i = b.begin + s * SEGMENT, n = b.end - i < SEGMENT ? b.end - i : SEGMENT;
        b.parts[s] = partial(b.j.spec.norm, stage(b.j, i, n, buf.p), n);
    }
}

void block_scale(const Job& j, int64_t b, int threads) {
    const int64_t begin = j.blocks.begin(b), end = j.blocks.end(b), count = (end - begin + SEGMENT - 1) / SEGMENT;
    if (!count) return;
    Partial one, total, *parts = count == 1 ? &one : (Partial*)malloc(count * sizeof(Partial));
    BlockJob job{j, begin, end, parts};
    parallel_for(count, 2, threads, segment_range, &job);
    for (int64_t s = 0; s < count; ++s) merge(total, parts[s]);
    if (parts != &one) free(parts);
    finish(j.spec, total, end - begin, j.scales + b * scales_per_block(j.spec.norm));
}

inline bool is_large(const Job& j, int64_t b) { return j.blocks.end(b) - j.blocks.begin(b) > 4 * SEGMENT; }

void small_blocks(void* ctx, int64_t b0, int64_t b1) {
    const Job& j = *(const Job*)ctx;
    for (int64_t b = b0; b < b1; ++b)
        if (!is_large(j, b)) block_scale(j, b, 1);
}

void scale_blocks(const Job& j) {
    for (int64_t b = 0; b < j.blocks.count; ++b)
        if (is_large(j, b)) block_scale(j, b, j.threads);
    parallel_for(j.blocks.count, 1, j.n < GRAIN ? 1 : j.threads, small_blocks, (void*)&j);
}

}  // namespace
}  // namespace TW_NS
