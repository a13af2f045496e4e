// Threads are started for each call: about 20 us each, no pool to go stale after fork().
#include <algorithm>
#include <thread>
#include <vector>

#include "job.h"

void parallel_for(int64_t n, int64_t grain, int threads, void (*fn)(void*, int64_t, int64_t), void* ctx) {
    int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, n / std::max<int64_t>(1, grain)));
    std::vector<std::thread> pool;
    for (int64_t i = 1; i < parts; ++i) pool.emplace_back(fn, ctx, n * i / parts, n * (i + 1) / parts);
    fn(ctx, 0, n / parts);
    for (auto& t : pool) t.join();
}
