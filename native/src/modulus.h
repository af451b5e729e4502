// Arithmetic modulo one prime, for set-up. The fast loops over polynomials are in kernels.inl. Functions are static: files
// compiled for different instruction sets must not share them.
#pragma once
#include "wide.h"

namespace polynext {

static inline u64 multiply_mod(u64 a, u64 b, u64 q) {
    const Wide product = multiply_wide(a % q, b % q);
    u64 remainder;
    divide_wide(high_word(product), low_word(product), q, &remainder);
    return remainder;
}

static inline u64 power_mod(u64 base, u64 exponent, u64 q) {
    u64 result = 1;
    for (; exponent; exponent >>= 1, base = multiply_mod(base, base, q))
        if (exponent & 1) result = multiply_mod(result, base, q);
    return result;
}

// q is prime.
static inline u64 inverse_mod(u64 a, u64 q) { return power_mod(a, q - 2, q); }

// floor(w 2^64 / q): with it, a product with the constant w needs no division (Shoup).
static inline u64 shoup_quotient(u64 w, u64 q) {
    u64 remainder;
    return divide_wide(w, 0, q, &remainder);
}

static inline unsigned reverse_bits(unsigned i, int bits) {
    unsigned reversed = 0;
    for (int k = 0; k < bits; k++) reversed |= (i >> k & 1u) << (bits - 1 - k);
    return reversed;
}

}  // namespace polynext
