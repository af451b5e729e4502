// A prime with the tables of its number-theoretic transform.
//
// The transform is SEAL's: psi is the smallest primitive 2n-th root of unity, twiddle factor i is psi^bitreverse(i), input
// in natural order, output in bit-reversed order. Arrays of the two libraries are therefore equal word for word.
#pragma once
#include "kernels.h"
#include "memory.h"
#include "modulus.h"

namespace polynext {

struct Prime : Transform {
    Prime(u64 q, int log_n, const Kernels* kernels);
    u64 multiply(u64 a, u64 b) const { return multiply_mod(a, b, q); }
    u64 inverse_of(u64 a) const { return inverse_mod(a, q); }

  private:
    Words tables_[2][4];
};

}  // namespace polynext
