// The Python face of the lossless codes: addresses and numbers in, bytes used or a fault out, the GIL released.
#include <nanobind/nanobind.h>

#include <stdexcept>

#include "golomb.h"
#include "huffman.h"
#include "rans_message.h"

namespace nb = nanobind;
using Address = uintptr_t;

namespace {

template <class T>
T* at(Address a) {
    return reinterpret_cast<T*>(a);
}

// The instance of a template for a code chosen at run time.
#define BY_CODE(code, call)                                            \
    [&]() -> int64_t {                                                 \
        nb::gil_scoped_release release;                                \
        if (code == GAMMA) return call<GAMMA>ARGUMENTS;                \
        if (code == DELTA) return call<DELTA>ARGUMENTS;                \
        return call<OMEGA>ARGUMENTS;                                   \
    }()

int64_t numbers_encode(int code, Address k, int64_t n, Address out) {
#define ARGUMENTS (at<const uint32_t>(k), n, at<uint8_t>(out))
    return BY_CODE(code, elias_numbers_encode);
#undef ARGUMENTS
}

int64_t numbers_decode(int code, Address data, int64_t size, Address k, int64_t n) {
#define ARGUMENTS (at<const uint8_t>(data), size, at<uint32_t>(k), n)
    return BY_CODE(code, elias_numbers_decode);
#undef ARGUMENTS
}

int64_t levels_encode(int code, bool sparse, Address s, int64_t n, Address out) {
#define ARGUMENTS (at<const uint8_t>(s), n, at<uint8_t>(out))
    return sparse ? BY_CODE(code, elias_sparse_encode) : BY_CODE(code, elias_dense_encode);
#undef ARGUMENTS
}

int64_t levels_decode(int code, bool sparse, Address data, int64_t size, Address s, int64_t n, int limit) {
#define ARGUMENTS (at<const uint8_t>(data), size, at<uint8_t>(s), n, limit)
    return sparse ? BY_CODE(code, elias_sparse_decode) : BY_CODE(code, elias_dense_decode);
#undef ARGUMENTS
}

int64_t gaps_encode_(Address places, int64_t count, int64_t n, int64_t m, Address out) {
    nb::gil_scoped_release release;
    return gaps_encode(at<const int64_t>(places), count, n, m, at<uint8_t>(out));
}

int64_t gaps_decode_(Address data, int64_t size, Address places, int64_t count, int64_t n, int64_t m) {
    nb::gil_scoped_release release;
    return gaps_decode(at<const uint8_t>(data), size, at<int64_t>(places), count, n, m);
}

int64_t runs_encode_(Address s, int64_t n, int64_t m, Address out) {
    nb::gil_scoped_release release;
    return runs_encode(at<const uint8_t>(s), n, m, at<uint8_t>(out));
}

int64_t runs_decode_(Address data, int64_t size, Address s, int64_t n, int64_t count, int64_t m, int limit) {
    nb::gil_scoped_release release;
    return runs_decode(at<const uint8_t>(data), size, at<uint8_t>(s), n, count, m, limit);
}

int64_t huffman_encode_(Address s, int64_t n, bool runs, Address out, int64_t room) {
    nb::gil_scoped_release release;
    return huffman_encode(at<const uint8_t>(s), n, runs, at<uint8_t>(out), room);
}

int64_t huffman_decode_(Address data, int64_t size, Address s, int64_t n, bool runs, int limit) {
    nb::gil_scoped_release release;
    return huffman_decode(at<const uint8_t>(data), size, at<uint8_t>(s), n, runs, limit);
}

int64_t rans_encode_(Address s, int64_t n, Address out, int64_t room, int limit, int threads, int chunk, bool vectors) {
    nb::gil_scoped_release release;
    if (chunk && chunk != LIKE_A_GPU && (chunk < SMALLEST_CHUNK || chunk > LARGEST_CHUNK)) return BAD_COUNT;
    return rans_encode(at<const uint8_t>(s), n, at<uint8_t>(out), room, limit, threads, vectors && has_avx512(), chunk);
}

int64_t rans_decode_(Address data, int64_t size, Address s, int64_t n, int limit, int threads, bool vectors) {
    nb::gil_scoped_release release;
    return rans_decode(at<const uint8_t>(data), size, at<uint8_t>(s), n, limit, threads, vectors && has_avx512());
}

}  // namespace

NB_MODULE(_codes, m) {
    m.def("numbers_encode", &numbers_encode);
    m.def("numbers_decode", &numbers_decode);
    m.def("levels_encode", &levels_encode);
    m.def("levels_decode", &levels_decode);
    m.def("gaps_encode", &gaps_encode_);
    m.def("gaps_decode", &gaps_decode_);
    m.def("runs_encode", &runs_encode_);
    m.def("runs_decode", &runs_decode_);
    m.def("huffman_encode", &huffman_encode_);
    m.def("huffman_decode", &huffman_decode_);
    m.def("rans_encode", &rans_encode_);
    m.def("rans_decode", &rans_decode_);
}
