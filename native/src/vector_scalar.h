// One word at a time: for any machine.
#pragma once
#include "kernels.h"

namespace polynext {

struct Scalar {
    using Vec = u64;
    static constexpr int WIDTH = 1;
    static constexpr int LAZY = 2;           // products are below LAZY q
    static constexpr int CAPACITY = 16;      // sums below CAPACITY q fit a word
    static constexpr int QUOTIENT_BITS = 64;
    static constexpr int LONGEST_PRIME = 60;
    static constexpr int SUM_LIMIT = 128;    // products that fit a Sum

    static Vec load(const u64* p) { return *p; }
    static Vec load_short(const std::int32_t* p) { return u64(std::int64_t(*p)); }  // with its sign
    static void store(u64* p, Vec v) { *p = v; }
    static Vec set(u64 x) { return x; }
    static Vec add(Vec a, Vec b) { return a + b; }
    static Vec subtract(Vec a, Vec b) { return a - b; }
    static Vec reduce(Vec x, Vec m) { return x >= m ? x - m : x; }
    static Vec multiply_low(Vec a, Vec b) { return a * b; }

    struct Constant {
        Vec w, quotient;
    };
    static Constant constant(u64 w, u64 quotient) { return {w, quotient}; }
    static Vec multiply(Vec y, const Constant& c, Vec q) { return y * c.w - high_word(multiply_wide(y, c.quotient)) * q; }

    static Vec prepare(Vec x) { return x; }
    static Vec restore(Vec x) { return x; }
    struct Sum {
        Wide total;
    };
    static Sum zero() { return {Wide{}}; }
    static void accumulate(Sum& s, Vec a, Vec prepared) { s.total = add_wide(s.total, multiply_wide(a, prepared)); }
    // The words of a sum and what they count: the sum is that of word[i] * 2^weight[i].
    static constexpr int PARTS = 2;
    static constexpr int WEIGHTS[2] = {0, 64};
    static void parts(const Sum& s, Vec* words) {
        words[0] = low_word(s.total);
        words[1] = high_word(s.total);
    }
    // Lane i of the result is lane numbers[i] of x.
    static Vec lanes(const u64* numbers) { return *numbers; }
    static Vec arrange(Vec x, Vec) { return x; }
    static Vec gather(const u64* base, const std::int32_t* index) { return base[*index]; }
};

}  // namespace polynext
