// Parallel loops. Callers from several Python threads share the workers: each caller works on its own loop, and workers help
// with the loops that are open, in turns. No more than `count` threads work at a time, unless there are more callers.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace polynext {

class Threads {
  public:
    explicit Threads(int count) { resize(count); }
    ~Threads() { stop(); }
    Threads(const Threads&) = delete;

    int count() const { return count_; }
    // Works with another number of threads from now on. Several callers may ask for it at a time, while loops are running.
    void resize(int count);
    // Calls body(0) to body(count - 1), in any order. The first exception that one of them throws is thrown again here.
    void loop(int count, const std::function<void(int)>& body);

  private:
    struct Loop {
        const std::function<void(int)>& body;
        const int count;
        int next = 0, finished = 0;
        std::exception_ptr error;
    };
    void work();
    void stop();
    void run_one(Loop& loop, std::unique_lock<std::mutex>& guard);

    std::mutex resizing_;  // held while workers are stopped and started
    std::mutex lock_;      // of everything below but the workers
    std::condition_variable opened_, finished_;
    std::vector<Loop*> open_;  // loops with iterations that nobody has started
    std::size_t turn_ = 0;
    std::atomic<int> count_{1};
    int running_ = 0;  // iterations at this moment
    bool stopping_ = false;
    std::vector<std::thread> workers_;
};

}  // namespace polynext
