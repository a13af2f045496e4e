// Planar bit packing. Lane l of a tile holds eight B-bit fields, row r at bit B*r of one 8B-bit number; byte j of
// that number lies at out[j * lanes + l], so that vectors load and store contiguously and shuffle nothing.
#pragma once
#include "simd.h"
#include "job.h"

namespace TW_NS {
namespace {

template <int B>
inline void pack_rows(const uint8_t* codes, uint8_t* out) {
    constexpr uint8_t mask = (1 << B) - 1;
    for (int l = 0; l < LANES; l += TW_VEC) {
        u8v plane[B + 1] = {};
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            u8v q = load<u8v>(codes + r * LANES + l) & mask;
            const int byte = B * r / 8, shift = B * r % 8;
            plane[byte] |= shl8(q, shift);
            if (shift + B > 8) plane[byte + 1] |= shr8(q, 8 - shift);
        }
        for (int j = 0; j < B; ++j) store(out + j * LANES + l, plane[j]);
    }
}

// Two's complement fields are widened to signed bytes.
template <int B, bool SIGNED_FIELD>
inline void unpack_rows(const uint8_t* in, uint8_t* codes) {
    constexpr uint8_t mask = (1 << B) - 1, half = 1 << (B - 1);
    for (int l = 0; l < LANES; l += TW_VEC)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const int byte = B * r / 8, shift = B * r % 8;
            u8v q = shr8(load<u8v>(in + byte * LANES + l), shift);
            if (shift + B > 8) q |= shl8(load<u8v>(in + (byte + 1) * LANES + l), 8 - shift);
            q &= mask;
            if (SIGNED_FIELD) q = (q ^ half) - half;
            store(codes + r * LANES + l, q);
        }
}

inline void pack_tile(const uint8_t* codes, int width, uint8_t* out) {
    switch (width) {
        case 1: return pack_rows<1>(codes, out);
        case 2: return pack_rows<2>(codes, out);
        case 3: return pack_rows<3>(codes, out);
        case 4: return pack_rows<4>(codes, out);
        case 5: return pack_rows<5>(codes, out);
        case 6: return pack_rows<6>(codes, out);
        case 7: return pack_rows<7>(codes, out);
        default: return pack_rows<8>(codes, out);
    }
}

template <bool S>
inline void unpack_tile(const uint8_t* in, int width, uint8_t* codes) {
    switch (width) {
        case 1: return unpack_rows<1, S>(in, codes);
        case 2: return unpack_rows<2, S>(in, codes);
        case 3: return unpack_rows<3, S>(in, codes);
        case 4: return unpack_rows<4, S>(in, codes);
        case 5: return unpack_rows<5, S>(in, codes);
        case 6: return unpack_rows<6, S>(in, codes);
        case 7: return unpack_rows<7, S>(in, codes);
        default: return unpack_rows<8, S>(in, codes);
    }
}

// Between a full tile and the narrow last one, whose `left` elements fill rows of `lanes`.
template <class T>
inline void widen(const T* narrow, int left, int lanes, T* wide) {
    for (int i = 0; i < left; ++i) wide[i / lanes * LANES + i % lanes] = narrow[i];
}
template <class T>
inline void narrow(const T* wide, int left, int lanes, T* narrow) {
    for (int i = 0; i < left; ++i) narrow[i] = wide[i / lanes * LANES + i % lanes];
}

// Tiles of fewer lanes go through a full one: plane j starts at j * lanes.
inline void pack_lanes(const uint8_t* codes, int width, int lanes, uint8_t* out) {
    if (lanes == LANES) return pack_tile(codes, width, out);
    alignas(64) uint8_t planes[8 * LANES];
    pack_tile(codes, width, planes);
    for (int b = 0; b < width; ++b) memcpy(out + b * lanes, planes + b * LANES, lanes);
}

// `width` planes of `lanes` bytes as planes of 64; `full` is where they go if they are narrower.
inline const uint8_t* widen_planes(const uint8_t* in, int width, int lanes, uint8_t* full) {
    if (lanes == LANES) return in;
    memset(full, 0, width * LANES);
    for (int b = 0; b < width; ++b) memcpy(full + b * LANES, in + b * lanes, lanes);
    return full;
}

// Elements of the tile at i0, of n in all.
inline int tile_size(int64_t n, int64_t i0) { return (int)(n - i0 < TILE ? n - i0 : TILE); }
inline int tile_lanes(int m) { return m == TILE ? LANES : (m + ROWS - 1) / ROWS; }

}  // namespace
}  // namespace TW_NS
