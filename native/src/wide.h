// Products of 64-bit words, on compilers with and without a 128-bit integer type.
#pragma once
#include <cstdint>

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#endif

namespace polynext {

using u64 = std::uint64_t;

#if defined(_MSC_VER) && !defined(__clang__)

struct Wide {
    u64 low, high;
};

static inline Wide multiply_wide(u64 a, u64 b) {
    Wide w;
    w.low = _umul128(a, b, &w.high);
    return w;
}

static inline Wide add_wide(Wide a, Wide b) {
    Wide w;
    unsigned char carry = _addcarry_u64(0, a.low, b.low, &w.low);
    _addcarry_u64(carry, a.high, b.high, &w.high);
    return w;
}

static inline u64 high_word(Wide w) { return w.high; }
static inline u64 low_word(Wide w) { return w.low; }

// The quotient must fit into one word: `high` is below `divisor`.
static inline u64 divide_wide(u64 high, u64 low, u64 divisor, u64* remainder) {
    return _udiv128(high, low, divisor, remainder);
}

#else

using Wide = unsigned __int128;

static inline Wide multiply_wide(u64 a, u64 b) { return static_cast<Wide>(a) * b; }
static inline Wide add_wide(Wide a, Wide b) { return a + b; }
static inline u64 high_word(Wide w) { return static_cast<u64>(w >> 64); }
static inline u64 low_word(Wide w) { return static_cast<u64>(w); }

// The quotient must fit into one word: `high` is below `divisor`.
static inline u64 divide_wide(u64 high, u64 low, u64 divisor, u64* remainder) {
    const Wide dividend = static_cast<Wide>(high) << 64 | low;
    *remainder = static_cast<u64>(dividend % divisor);
    return static_cast<u64>(dividend / divisor);
}

#endif

}  // namespace polynext
