// A few threads that run one loop at a time. The caller works too; between loops the others spin for a moment, then
// sleep, so that an idle engine takes no CPU and does not fight with torch's OpenMP threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace jitney {

class ThreadPool {
public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(item, thread) for every item in [0, count), items in any order, and returns when all are done.
    // Waits for items, not for threads: one that sleeps, or that the system gives no core, costs nothing.
    // Only one thread may call it at a time, and the body must not throw.
    void run(int64_t count, const std::function<void(int64_t, int)>& body);

private:
    void stop();
    void work(int thread);
    void take_items(int thread);

    // Written by run while the loop is closed and nobody is inside.
    const std::function<void(int64_t, int)>* body_ = nullptr;
    int64_t count_ = 0;

    std::atomic<int64_t> next_{0}, done_{0};
    std::atomic<int> inside_{0};  // workers that may be looking at the loop
    std::atomic<bool> is_open_{false};
    std::atomic<uint32_t> round_{0};  // loops so far
    std::atomic<bool> stop_{false};
    std::vector<std::thread> workers_;
};

}  // namespace jitney
