#include "thread_pool.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace jitney {

namespace {
constexpr int kSpins = 20000;  // some tens of microseconds: longer than the gaps between the loops of one step

void pause() {
#ifdef __x86_64__
    _mm_pause();
#endif
}
}  // namespace

ThreadPool::ThreadPool(int num_threads) {
    for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
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
    body_ = &body;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    take_items(0);
    while (busy_.load(std::memory_order_acquire)) pause();
}

void ThreadPool::take_items(int thread) {
    for (int64_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) (*body_)(item, thread);
}

void ThreadPool::work(int thread) {
    uint32_t seen = 0;
    for (;;) {
        for (int spin = 0; spin < kSpins && round_.load(std::memory_order_acquire) == seen; ++spin) pause();
        round_.wait(seen, std::memory_order_acquire);
        seen = round_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        take_items(thread);
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace jitney
