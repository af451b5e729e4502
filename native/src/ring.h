// The ring of CKKS: its primes, how residues go from some primes to others, and how rotations permute words.
//
// Primes are in SEAL's order: data primes first, of which the first one is dropped last, then the special primes, which only
// keys have.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "prime.h"
#include "threads.h"

namespace polynext {

// Takes a number from its residues modulo `count` primes, whose product is Q, to its residue modulo another prime: the
// representative closest to zero, which is
//
//     sum over j of y[j] Q / q[j]  -  u Q     with y[j] = residue[j] (Q / q[j])^-1 mod q[j],  u = round(sum of y[j] / q[j])
struct BaseConversion {
    int first, count;
    std::vector<u64> inverse;               // (Q / q[j])^-1 mod q[j]
    std::vector<double> reciprocals;        // 1 / q[j]
    std::vector<std::vector<u64>> factors;  // of each prime: Q / q[j] for all j, then -Q
    std::vector<u64> product_inverse;       // of each prime outside: Q^-1
    int rows() const { return count > 1 ? count + 1 : 1; }  // y, and u if there is one
};

class Ring {
  public:
    Ring(int log_n, const std::vector<u64>& data_primes, const std::vector<u64>& special_primes, int threads,
         const std::string& instruction_set);

    const std::size_t n;
    const int log_n, data, special;  // numbers of primes
    const Kernels* const kernels;
    Threads threads;

    const Prime& prime(int i) const { return primes_[i]; }
    const BaseConversion& conversion(int first, int count) const { return conversions_.at({first, count}); }
    // Word i of a polynomial after the automorphism x -> x^element is word table[i] before it.
    const std::int32_t* permutation(u64 element);

    // The residues in `rows` (NTT form, consecutive) become what `convert` takes. If `centred` is false, a single prime's
    // representative is in [0, q), as in SEAL's key switching.
    void prepare_conversion(u64* rows, const BaseConversion& from, bool centred) const;
    void convert(u64* out, const u64* rows, const BaseConversion& from, int to, bool centred) const;

  private:
    void add_conversion(int first, int count);

    std::vector<Prime> primes_;
    std::map<std::pair<int, int>, BaseConversion> conversions_;
    std::mutex lock_;
    std::map<u64, std::vector<std::int32_t>> permutations_;
};

}  // namespace polynext
