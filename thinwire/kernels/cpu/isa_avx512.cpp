// The passes with 64-byte vectors, compiled for avx512.
#define TW_VEC 64
#define TW_NS tw_avx512
#include "passes.h"

const Passes passes_avx512 = {tw_avx512::encode, tw_avx512::scale_blocks, tw_avx512::decode_add, tw_avx512::noise, tw_avx512::pack, tw_avx512::unpack, tw_avx512::copy, tw_avx512::difference, tw_avx512::total};
