// Loops over the words of one polynomial modulo one prime. Each instruction set has its own table of functions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "wide.h"

namespace polynext {

// Twiddle factors w with floor(w 2^quotient_bits / q), in the order in which a transform reads them. The last stages, which
// take place within vectors, read `tail`: for each block of width * width words the factors of all lanes.
struct Twiddles {
    const u64 *w, *quotient, *tail_w, *tail_quotient;
};

// What kernels know of a prime. Plain data, because code that is compiled for an instruction set must not share inline
// functions with the rest.
struct Transform {
    u64 q;
    std::size_t n;
    Twiddles forward, inverse;
    u64 n_inverse;       // 1 / n
    u64 n_inverse_last;  // 1 / n times the last twiddle factor of the inverse transform
};

// Keys are stored in blocks of this many words, so that all digits of a position lie together in memory.
constexpr std::size_t KEY_BLOCK = 64;

// The words that must be readable after a row that `expand` reads: it loads whole vectors, of up to 8 words, even if it needs
// only the first word of the last one.
constexpr std::size_t EXPAND_MORE = 8;

// The most terms of `forward_sum`.
constexpr int MOST_TERMS = 16;

// Words are below q unless a comment says otherwise. "Prepared" words are stored in the form in which a kernel
// multiplies them: plaintexts and keys.
struct Kernels {
    const char* name;
    int width;           // words in a vector
    int quotient_bits;   // constants w are stored with floor(w 2^quotient_bits / q)
    int longest_prime;   // in bits

    // The number-theoretic transform of in + offset, for words in + offset below 4 q.
    void (*forward)(u64* out, const u64* in, u64 offset, const Transform&);
    // The transform of offset + sum of in[i] * factors[i]: a base conversion on the way.
    void (*forward_sum)(u64* out, const u64* const* in, const u64* factors, int count, u64 offset,
                        const Transform&);
    // The transform of integers between -q and q, which have 4 or 8 bytes each, prepared for products. With `half`, only the
    // first half of the transform.
    void (*forward_integers)(u64* out, const void* in, int bytes, bool half, const Transform&);
    void (*inverse)(u64* data, const Transform&);

    void (*prepare)(u64* out, const u64* in, const Transform&);
    void (*restore)(u64* out, const u64* in, const Transform&);
    // Sums over digits of digit * key, for the two polynomials of a key. Digits are `stride` words apart.
    void (*key_products)(u64* out0, u64* out1, const u64* digits, std::size_t stride, const u64* key, int key_digits,
                         int count, const Transform&);
    // Sums of ciphertext * plaintext for the two polynomials of ciphertexts, over `length` words.
    void (*plain_products)(u64* out0, u64* out1, const u64* const* c0, const u64* const* c1, const u64* const* plain,
                           int count, std::size_t length, const Transform&);
    // (a0 b0, a0 b1 + a1 b0, a1 b1): the product of two ciphertexts.
    void (*tensor)(u64* out0, u64* out1, u64* out2, const u64* a0, const u64* a1, const u64* b0, const u64* b1,
                   const Transform&);
    // (a - b) * factor + c; c may be null.
    void (*subtract_multiply)(u64* out, const u64* a, const u64* b, u64 factor, const u64* c, const Transform&);
    // in * factor, for any words.
    void (*multiply)(u64* out, const u64* in, u64 factor, const Transform&);
    void (*add)(u64* out, const u64* a, const u64* b, const Transform&);
    // round(sum of in[i] / q[i]), for words below q[i].
    void (*rounded_sum)(u64* out, const u64* const* in, const double* reciprocals, int count, std::size_t n);
    // Words `at` to `at` + `length` of a row whose words come in groups of 2^shift equal ones, of which `row` has one each;
    // `backwards` from row[n - 1] on. Reads up to EXPAND_MORE words after the row.
    void (*expand)(u64* out, const u64* row, std::size_t at, std::size_t length, int shift, bool backwards, std::size_t n);
    void (*permute)(u64* out, const u64* in, const std::int32_t* table, std::size_t n);
};

// The fastest kernels of this machine for primes of so many bits; `name` restricts the choice ("scalar", "avx2",
// "avx512", "avx512ifma"; null for any). Null if there are none of that name here.
const Kernels* select_kernels(const char* name, int prime_bits);

}  // namespace polynext
