// Run by scripts/sanitize.sh under ThreadSanitizer: every item exactly once, on a valid thread, loop after loop, with
// pauses long enough for the pool to fall asleep, and pools that come and go.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "thread_pool.h"

int main() {
    for (int threads = 1; threads <= 4; ++threads) {
        jitney::ThreadPool pool(threads);
        for (int loop = 0; loop < 2000; ++loop) {
            const int64_t count = loop % 37;
            std::vector<int> seen(count, 0);  // plain ints: a second visit or a missing order is a race to be reported
            pool.run(count, [&](int64_t item, int thread) {
                if (thread < 0 || thread >= threads) std::abort();
                ++seen[item];
            });
            for (int times : seen)
                if (times != 1) {
                    std::fprintf(stderr, "an item ran %d times\n", times);
                    return 1;
                }
            if (loop % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    std::puts("thread pool: ok");
}
