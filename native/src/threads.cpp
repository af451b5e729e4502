#include "threads.h"

#include <algorithm>

namespace polynext {

// Loops that are running go on meanwhile: workers finish what they have begun, and callers do the rest of their own loops.
void Threads::resize(int count) {
    std::lock_guard<std::mutex> alone(resizing_);
    if (count == count_) return;
    stop();
    count_ = count;
    for (int i = 1; i < count; i++) workers_.emplace_back([this] { work(); });
}

void Threads::stop() {
    {
        std::lock_guard<std::mutex> guard(lock_);
        stopping_ = true;
    }
    opened_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    std::lock_guard<std::mutex> guard(lock_);
    stopping_ = false;
}

// Iterations take a tenth of a millisecond or more, so that one lock for all loops is no burden.
void Threads::run_one(Loop& loop, std::unique_lock<std::mutex>& guard) {
    const int i = loop.next++;
    if (loop.next == loop.count) open_.erase(std::find(open_.begin(), open_.end(), &loop));
    running_++;
    guard.unlock();
    std::exception_ptr error;
    try {
        loop.body(i);
    } catch (...) {
        error = std::current_exception();
    }
    guard.lock();
    running_--;
    if (error && !loop.error) loop.error = error;
    if (++loop.finished == loop.count) finished_.notify_all();
}

void Threads::work() {
    std::unique_lock<std::mutex> guard(lock_);
    while (true) {
        opened_.wait(guard, [this] { return stopping_ || (!open_.empty() && running_ < count_); });
        if (stopping_) return;
        run_one(*open_[turn_++ % open_.size()], guard);
    }
}

void Threads::loop(int count, const std::function<void(int)>& body) {
    if (count_ == 1 || count == 1) {
        for (int i = 0; i < count; i++) body(i);
        return;
    }
    if (count == 0) return;
    Loop mine{body, count, 0, 0, nullptr};
    std::unique_lock<std::mutex> guard(lock_);
    open_.push_back(&mine);
    opened_.notify_all();
    while (mine.next < count) run_one(mine, guard);
    if (!open_.empty()) opened_.notify_one();  // a worker may take the place of this thread
    finished_.wait(guard, [&] { return mine.finished == count; });
    if (mine.error) std::rethrow_exception(mine.error);
}

}  // namespace polynext
