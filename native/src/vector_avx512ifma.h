// Eight words at a time with 52-bit multiplication, for primes below 2^50.
#pragma once
#include "vector_avx512.h"

namespace polynext {

struct Avx512Ifma : Avx512 {
    static constexpr int LAZY = 2;
    static constexpr int CAPACITY = 4;
    static constexpr int QUOTIENT_BITS = 52;
    static constexpr int LONGEST_PRIME = 50;
    static constexpr int SUM_LIMIT = 8;

    struct Constant {
        Vec w, quotient;
    };
    static Constant constant(u64 w, u64 quotient) { return {set(w), set(quotient)}; }
    static Constant constants(const u64* w, const u64* quotient) { return {load(w), load(quotient)}; }
    static Vec low52(Vec x) { return _mm512_and_si512(x, set((u64(1) << 52) - 1)); }
    // Words below 2^52.
    static Vec multiply(Vec y, const Constant& c, Vec q) {
        const Vec zero = _mm512_setzero_si512(), high = _mm512_madd52hi_epu64(zero, y, c.quotient);
        return low52(subtract(_mm512_madd52lo_epu64(zero, y, c.w), _mm512_madd52lo_epu64(zero, high, q)));
    }

    static Vec prepare(Vec x) { return x; }
    static Vec restore(Vec x) { return x; }
    struct Sum {
        Vec low, high;
    };
    static Sum zero() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
    static void accumulate(Sum& s, Vec a, Vec prepared) {
        s.low = _mm512_madd52lo_epu64(s.low, a, prepared);
        s.high = _mm512_madd52hi_epu64(s.high, a, prepared);
    }
    static constexpr int PARTS = 2;
    static constexpr int WEIGHTS[2] = {0, 52};
    static void parts(const Sum& s, Vec* words) {
        words[0] = low52(s.low);
        words[1] = add(s.high, _mm512_srli_epi64(s.low, 52));
    }
};

}  // namespace polynext
