// Parallel loops. Callers from several Python threads share the workers: each caller works on its own loop, and idle
// workers help with the loops that are open, in turns.
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace polynext {

class Threads {
  public:
    explicit Threads(int count);
    ~Threads();
    Threads(const Threads&) = delete;

    int count() const { return int(workers_.size()) + 1; }
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
    void run_one(Loop& loop, std::unique_lock<std::mutex>& guard);

    std::mutex lock_;
    std::condition_variable opened_, finished_;
    std::vector<Loop*> open_;  // loops with iterations that nobody has started
    std::size_t turn_ = 0;
    bool stopping_ = false;
    std::vector<std::thread> workers_;
};

}  // namespace polynext
