#include "memory.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace polynext {

namespace {

constexpr std::size_t PAGE = 4096, HUGE_PAGE = std::size_t(1) << 21;

// Large buffers start at different offsets within their pages. Kernels read the same place of dozens of buffers side by
// side; at equal offsets these places would compete for the same lines of the cache.
constexpr std::size_t OFFSETS = 64, OFFSET_WORDS = 72;

struct Block {
    void* start;
    u64* words;
};

std::mutex lock;
std::map<std::size_t, std::vector<Block>> unused;
std::map<u64*, void*> starts;
std::atomic<std::size_t> in_use{0};
std::size_t next_offset = 0;

// Sizes are rounded up, so that buffers of one level serve the next.
std::size_t capacity(std::size_t count) {
    std::size_t rounded = 64;
    while (rounded < count) rounded += (rounded / 4 + 63) & ~std::size_t(63);
    return rounded;
}

void* aligned(std::size_t bytes, std::size_t alignment) {
#if defined(_WIN32)
    return _aligned_malloc(bytes, alignment);
#else
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#endif
}

void give_back(void* start) {
#if defined(_WIN32)
    _aligned_free(start);
#else
    std::free(start);
#endif
}

}  // namespace

u64* allocate_words(std::size_t count) {
    const std::size_t size = capacity(count);
    std::lock_guard<std::mutex> guard(lock);
    in_use += size * sizeof(u64);
    auto& same_size = unused[size];
    if (!same_size.empty()) {
        const Block block = same_size.back();
        same_size.pop_back();
        starts[block.words] = block.start;
        return block.words;
    }
    const std::size_t offset = size >= 4096 ? next_offset++ % OFFSETS * OFFSET_WORDS : 0;
    const std::size_t bytes = (size + offset) * sizeof(u64);
    const std::size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    void* start = aligned(bytes, alignment);
    if (!start) {
        in_use -= size * sizeof(u64);
        throw std::bad_alloc();
    }
#if defined(__linux__)
    if (alignment == HUGE_PAGE) madvise(start, bytes, MADV_HUGEPAGE);
#endif
    u64* words = static_cast<u64*>(start) + offset;
    starts[words] = start;
    return words;
}

void free_words(u64* words, std::size_t count) {
    const std::size_t size = capacity(count);
    std::lock_guard<std::mutex> guard(lock);
    in_use -= size * sizeof(u64);
    const auto found = starts.find(words);
    unused[size].push_back({found->second, words});
    starts.erase(found);
}

void release_memory() {
    std::lock_guard<std::mutex> guard(lock);
    for (auto& [size, blocks] : unused)
        for (const Block& block : blocks) give_back(block.start);
    unused.clear();
}

std::size_t memory_in_use() { return in_use; }

}  // namespace polynext
