// The passes with 32-byte vectors, compiled for avx2.
#define TW_VEC 32
#define TW_NS tw_avx2
#include "passes.h"

const Passes passes_avx2 = {tw_avx2::encode, tw_avx2::scale_blocks, tw_avx2::decode_add, tw_avx2::noise, tw_avx2::pack, tw_avx2::unpack, tw_avx2::copy, tw_avx2::difference, tw_avx2::total};
