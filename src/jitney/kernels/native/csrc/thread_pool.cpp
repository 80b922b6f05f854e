#include "thread_pool.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace jitney {

namespace {
constexpr int kSpins = 5000;  // about 0.1 ms: longer than the gaps between the loops of one step

// Spins for a moment, then lets others have the core at each look: whoever is waited for may need it.
template <class Condition>
void wait_until(Condition condition) {
    for (int spin = 0; !condition(); ++spin) {
        if (spin >= kSpins) {
            std::this_thread::yield();
            continue;
        }
#ifdef __x86_64__
        _mm_pause();
#endif
    }
}
}  // namespace

ThreadPool::ThreadPool(int num_threads) {
    try {
        for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
    } catch (...) {  // the system gives no more threads
        stop();
        throw;
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stop_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, const std::function<void(int64_t, int)>& body) {
    if (count <= 1 || workers_.empty()) {
        for (int64_t item = 0; item < count; ++item) body(item, 0);
        return;
    }
    // The loop before is closed. Whoever came in before it was closed is counted in inside_; whoever comes later sees
    // that it is closed, or finds this one open.
    wait_until([this] { return inside_.load() == 0; });
    body_ = &body;
    count_ = count;
    next_.store(0);
    done_.store(0);
    is_open_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    take_items(0);
    wait_until([this] { return done_.load(std::memory_order_acquire) == count_; });
    is_open_.store(false);
}

void ThreadPool::take_items(int thread) {
    int64_t taken = 0;
    for (int64_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < count_; ++taken) (*body_)(item, thread);
    done_.fetch_add(taken, std::memory_order_release);
}

void ThreadPool::work(int thread) {
    uint32_t seen = 0;
    for (;;) {
        for (int spin = 0; spin < kSpins && round_.load() == seen; ++spin) {
#ifdef __x86_64__
            _mm_pause();
#endif
        }
        round_.wait(seen);
        seen = round_.load();
        if (stop_.load()) return;
        inside_.fetch_add(1);
        if (is_open_.load()) take_items(thread);
        inside_.fetch_sub(1);
    }
}

}  // namespace jitney
