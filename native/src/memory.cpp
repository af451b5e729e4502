#include "memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace polynext {

namespace {

constexpr std::size_t LINE = 8;                              // words of a cache line
constexpr std::size_t HUGE_PAGE = std::size_t(1) << 21;      // bytes
constexpr std::size_t ARENA = std::size_t(1) << 25;          // words: 256 MB, of which only touched pages take memory
constexpr std::size_t SMALL = 4096;                          // words; smaller buffers are the C library's

// Kernels read the same place of dozens of buffers side by side. At equal offsets within their pages these places would
// compete for the same lines of the cache; with this many words between them, neighbours have different offsets.
constexpr std::size_t GAP = 9 * LINE;

std::mutex lock;
std::map<u64*, std::size_t> free_spans;  // neighbours are merged, so that buffers of any size can follow
std::atomic<std::size_t> in_use{0};

void* aligned(std::size_t bytes, std::size_t alignment) {
#if defined(_WIN32)
    void* made = _aligned_malloc(bytes, alignment);
#else
    void* made = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#endif
    if (!made) throw std::bad_alloc();
    return made;
}

void give_back(void* start) {
#if defined(_WIN32)
    _aligned_free(start);
#else
    std::free(start);
#endif
}

// Address sanitizers see overflows only between blocks of the C library.
#if defined(__SANITIZE_ADDRESS__)
bool has_span(std::size_t) { return false; }
#else
bool has_span(std::size_t count) { return count >= SMALL; }
#endif

std::size_t span_of(std::size_t count) { return (count + LINE - 1) / LINE * LINE + GAP; }

void add_arena(std::size_t count) {
    const std::size_t size = std::max(count, ARENA), bytes = size * sizeof(u64);
    u64* start = static_cast<u64*>(aligned(bytes, HUGE_PAGE));
#if defined(__linux__)
    madvise(start, bytes, MADV_HUGEPAGE);
#endif
    free_spans[start] = size;
}

// The first span that is large enough: low addresses are reused first, so that few pages are touched.
u64* take_span(std::size_t size) {
    for (auto at = free_spans.begin(); at != free_spans.end(); ++at)
        if (at->second >= size) {
            u64* start = at->first;
            const std::size_t rest = at->second - size;
            free_spans.erase(at);
            if (rest) free_spans[start + size] = rest;
            return start;
        }
    return nullptr;
}

void return_span(u64* start, std::size_t size) {
    auto next = free_spans.lower_bound(start);
    if (next != free_spans.end() && start + size == next->first) {
        size += next->second;
        next = free_spans.erase(next);
    }
    if (next != free_spans.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == start) {
            before->second += size;
            return;
        }
    }
    free_spans[start] = size;
}

}  // namespace

u64* allocate_words(std::size_t count) {
    u64* made;
    if (!has_span(count)) {
        made = static_cast<u64*>(aligned(count * sizeof(u64), LINE * sizeof(u64)));
    } else {
        const std::size_t size = span_of(count);
        std::lock_guard<std::mutex> guard(lock);
        made = take_span(size);
        if (!made) {
            add_arena(size);
            made = take_span(size);
        }
    }
    in_use += count * sizeof(u64);
    return made;
}

void free_words(u64* words, std::size_t count) {
    in_use -= count * sizeof(u64);
    if (!has_span(count)) {
        give_back(words);
        return;
    }
    std::lock_guard<std::mutex> guard(lock);
    return_span(words, span_of(count));
}

std::size_t memory_in_use() { return in_use; }

}  // namespace polynext
