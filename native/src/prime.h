// A prime with the tables of its number-theoretic transform.
//
// The transform is SEAL's: psi is the smallest primitive 2n-th root of unity, twiddle factor i is psi^bitreverse(i), input
// in natural order, output in bit-reversed order. Arrays of the two libraries are therefore equal word for word.
#pragma once
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "modulus.h"

namespace polynext {

constexpr std::size_t LEAST_DEGREE = 256;

struct Prime : Transform {
    Prime(u64 q, int log_n, const Kernels* kernels);
    u64 multiply(u64 a, u64 b) const { return multiply_mod(a, b, q); }
    u64 inverse_of(u64 a) const { return inverse_mod(a, q); }
    // The forward transform of polynomials in x^(2^shift), as polynomials with n >> shift coefficients. Its words are those
    // of the whole transform, of which 2^shift neighbours each are equal. It has no inverse.
    const Transform& reduced(int shift) const { return shift ? reduced_[shift - 1] : *this; }

  private:
    void make_tail(Twiddles& tables, std::size_t length, std::size_t width);

    Words tables_[2][2];
    std::vector<Words> tails_;
    std::vector<Transform> reduced_;
};

}  // namespace polynext
