// Threads are started for each call, so that there is no pool to go stale after fork().
#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "job.h"

void parallel_for(int64_t n, int64_t grain, int threads, void (*fn)(void*, int64_t, int64_t), void* ctx) {
    int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, n / std::max<int64_t>(1, grain)));
    std::vector<std::thread> pool;
    pool.reserve(parts);
    int64_t started = 1;
    try {
        for (; started < parts; ++started) pool.emplace_back(fn, ctx, n * started / parts, n * (started + 1) / parts);
    } catch (const std::system_error&) {
        // No further thread could be started, so this one does the rest.
    }
    fn(ctx, 0, n / parts);
    if (started < parts) fn(ctx, n * started / parts, n);
    for (auto& t : pool) t.join();
}
