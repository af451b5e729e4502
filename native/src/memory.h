// Aligned buffers of words. Freed memory is kept for buffers of any size: touching fresh pages costs more than the arithmetic.
#pragma once
#include <cstddef>
#include <utility>

#include "wide.h"

namespace polynext {

u64* allocate_words(std::size_t count);
void free_words(u64* words, std::size_t count);
std::size_t memory_in_use();  // bytes of all buffers

// A buffer that owns its memory. Its content is not initialised.
class Words {
  public:
    Words() = default;
    explicit Words(std::size_t count) : data_(count ? allocate_words(count) : nullptr), count_(count) {}
    Words(Words&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    Words& operator=(Words&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }
    ~Words() {
        if (data_) free_words(data_, count_);
    }

    u64* data() { return data_; }
    const u64* data() const { return data_; }
    std::size_t size() const { return count_; }
    u64& operator[](std::size_t i) { return data_[i]; }
    const u64& operator[](std::size_t i) const { return data_[i]; }

  private:
    u64* data_ = nullptr;
    std::size_t count_ = 0;
};

}  // namespace polynext
