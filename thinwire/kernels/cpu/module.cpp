// The Python face of the CPU kernels: addresses and numbers in, nothing allocated, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "job.h"

namespace nb = nanobind;
using Address = uintptr_t;

namespace {

std::vector<std::string> available() {
    std::vector<std::string> names;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        names.push_back("avx512");
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) names.push_back("avx2");
#endif
    names.push_back("portable");
    return names;
}

const Passes& passes(const std::string& isa) {
#if defined(__x86_64__)
    if (isa == "avx512") return passes_avx512;
    if (isa == "avx2") return passes_avx2;
#endif
    if (isa == "portable") return passes_portable;
    throw std::invalid_argument("no kernels for instruction set '" + isa + "'");
}

using Words = std::vector<uint32_t>;  // key0, key1, counter0 .. counter3

Noise noise_of(const Words& w) { return {{w.at(0), w.at(1)}, {w.at(2), w.at(3), w.at(4), w.at(5)}}; }

using Numbers = std::vector<double>;  // kind, norm, levels, width, stochastic, clip, lo, hi

// What encode, scales and decode share.
Job job_of(const Numbers& s, int64_t n, int64_t block, Address starts, int64_t count, Address scales, int threads) {
    Job job{};
    job.spec = {(int)s.at(0),  (int)s.at(1),   (int)s.at(2),   (int)s.at(3),
                s.at(4) != 0, (float)s.at(5), (float)s.at(6), (float)s.at(7)};
    job.blocks = {count, block, reinterpret_cast<const int64_t*>(starts), n};
    job.n = n;
    job.scales = reinterpret_cast<float*>(scales);
    job.threads = threads;
    return job;
}

uint64_t encode(const std::string& isa, const Numbers& spec, int64_t n, int64_t block, Address starts,
            int64_t count, const Words& words, Address x, int dtype, Address e, float alpha, float beta,
            Address scales, bool given, Address codes, bool summed, uint64_t first, int threads) {
    Job job = job_of(spec, n, block, starts, count, scales, threads);
    job.noise = noise_of(words);
    job.x = reinterpret_cast<const void*>(x);
    job.dtype = dtype;
    job.e = reinterpret_cast<float*>(e);
    job.alpha = alpha;
    job.beta = beta;
    job.given = given;
    job.codes = reinterpret_cast<uint8_t*>(codes);
    uint64_t sum = 0;
    job.sum = summed ? &sum : nullptr;
    job.first = first;
    const Passes& p = passes(isa);
    nb::gil_scoped_release release;
    p.encode(job);
    return sum;
}

void scales(const std::string& isa, const Numbers& spec, int64_t n, int64_t block, Address starts, int64_t count,
            Address x, int dtype, Address out, int threads) {
    Job job = job_of(spec, n, block, starts, count, out, threads);
    job.x = reinterpret_cast<const void*>(x);
    job.dtype = dtype;
    const Passes& p = passes(isa);
    nb::gil_scoped_release release;
    p.scales(job);
}

void decode_add(const std::string& isa, const Numbers& spec, int64_t n, int64_t block, Address starts,
                int64_t count, Address scales, Address codes, Address out, float weight, bool fresh, int threads) {
    Job job = job_of(spec, n, block, starts, count, scales, threads);
    job.codes = reinterpret_cast<uint8_t*>(codes);
    job.out = reinterpret_cast<float*>(out);
    job.weight = weight;
    job.fresh = fresh;
    const Passes& p = passes(isa);
    nb::gil_scoped_release release;
    p.decode_add(job);
}

void noise(const std::string& isa, const Words& words, int64_t n, Address out, int threads) {
    const Passes& p = passes(isa);
    Noise key = noise_of(words);
    nb::gil_scoped_release release;
    p.noise(key, n, reinterpret_cast<uint32_t*>(out), threads);
}

void pack(const std::string& isa, Address codes, int64_t n, int width, Address out) {
    const Passes& p = passes(isa);
    nb::gil_scoped_release release;
    p.pack(reinterpret_cast<const uint8_t*>(codes), n, width, reinterpret_cast<uint8_t*>(out));
}

void unpack(const std::string& isa, Address packed, int64_t n, int width, Address codes) {
    const Passes& p = passes(isa);
    nb::gil_scoped_release release;
    p.unpack(reinterpret_cast<const uint8_t*>(packed), n, width, reinterpret_cast<uint8_t*>(codes));
}

bool copy(const std::string& isa, Address x, int64_t n, Address out, int threads) {
    const Passes& p = passes(isa);
    nb::gil_scoped_release release;
    return p.copy(reinterpret_cast<const float*>(x), n, reinterpret_cast<float*>(out), threads);
}

bool difference(const std::string& isa, Address a, Address b, int64_t n, Address out, Address again, int threads) {
    const Passes& p = passes(isa);
    nb::gil_scoped_release release;
    return p.difference(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), n,
                        reinterpret_cast<float*>(out), reinterpret_cast<float*>(again), threads);
}

// The checksum's sum of bytes whose first word has the index `first`.
uint64_t total(const std::string& isa, Address data, int64_t n, uint64_t first, int threads) {
    const Passes& p = passes(isa);
    nb::gil_scoped_release release;
    return p.total(reinterpret_cast<const uint8_t*>(data), n, first, threads);
}

// A payload: a header whose last word is the checksum of those before it and, where a flag says so, of the body.
constexpr int64_t HEADER = 32, COVERED = 28, FLAGS = 5;
constexpr uint8_t CHECKED = 1;

// The checksum of a payload, of which the last `tail` bytes enter by their sum.
uint32_t checksum(const Passes& p, const uint8_t* data, int64_t n, int64_t tail, uint64_t sum, int threads) {
    if (data[FLAGS] & CHECKED)
        sum += p.total(data + HEADER, n - HEADER - tail, HEADER / 4, threads);
    else
        sum = 0;
    sum += p.total(data, COVERED, 0, 1);
    constexpr uint64_t MIX = 0xD6E8FEB86659FD93u;
    sum = (sum ^ sum >> 32) * MIX;
    return (uint32_t)((sum ^ sum >> 29) * MIX >> 32);
}

// Write the header and the checksum of the payload of `n` bytes at `data`.
void seal(const std::string& isa, Address data, int64_t n, nb::bytes header, int64_t tail, uint64_t sum, int threads) {
    const Passes& p = passes(isa);
    uint8_t* to = reinterpret_cast<uint8_t*>(data);
    if (n < HEADER || (int64_t)header.size() != COVERED || tail > n - HEADER)
        throw std::invalid_argument("not the header of a payload");
    if (tail && (n - tail) % 4) throw std::invalid_argument("a part with a sum of its own starts at a whole word");
    memcpy(to, header.c_str(), COVERED);
    nb::gil_scoped_release release;
    const uint32_t check = checksum(p, to, n, tail, sum, threads);
    memcpy(to + COVERED, &check, sizeof check);
}

// Whether the checksum of a payload is right.
bool sealed(const std::string& isa, Address data, int64_t n, int threads) {
    const Passes& p = passes(isa);
    const uint8_t* from = reinterpret_cast<const uint8_t*>(data);
    if (n < HEADER) return false;
    nb::gil_scoped_release release;
    uint32_t said;
    memcpy(&said, from + COVERED, sizeof said);
    return checksum(p, from, n, 0, 0, threads) == said;
}

// Signed bytes 0, -1, 1, -2, ... as 0, 1, 2, 3, ..., in place, and back.
void fold(Address codes, int64_t n) {
    nb::gil_scoped_release release;
    int8_t* q = reinterpret_cast<int8_t*>(codes);
    for (int64_t i = 0; i < n; ++i) q[i] = (int8_t)((uint8_t)q[i] << 1 ^ q[i] >> 7);
}

void unfold(Address codes, int64_t n) {
    nb::gil_scoped_release release;
    uint8_t* s = reinterpret_cast<uint8_t*>(codes);
    for (int64_t i = 0; i < n; ++i) s[i] = (uint8_t)(s[i] >> 1 ^ -(s[i] & 1));
}

}  // namespace

NB_MODULE(_cpu, m) {
    m.def("available", &available);
    m.def("encode", &encode);
    m.def("scales", &scales);
    m.def("decode_add", &decode_add);
    m.def("noise", &noise);
    m.def("pack", &pack);
    m.def("unpack", &unpack);
    m.def("copy", &copy);
    m.def("difference", &difference);
    m.def("total", &total);
    m.def("seal", &seal);
    m.def("sealed", &sealed);
    m.def("fold", &fold);
    m.def("unfold", &unfold);
}
