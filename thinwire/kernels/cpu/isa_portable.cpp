// The passes with 16-byte vectors, compiled for portable.
#define TW_VEC 16
#define TW_NS tw_portable
#include "passes.h"

const Passes passes_portable = {tw_portable::encode, tw_portable::scale_blocks, tw_portable::decode_add, tw_portable::noise, tw_portable::pack, tw_portable::unpack, tw_portable::copy, tw_portable::difference, tw_portable::total};
