// Eight words at a time, on x86-64 with AVX-512 (F and DQ).
#pragma once
#include <immintrin.h>

#include "kernels.h"

namespace polynext {

struct Avx512 {
    using Vec = __m512i;
    static constexpr int WIDTH = 8;
    static constexpr int LAZY = 4;
    static constexpr int CAPACITY = 16;
    static constexpr int QUOTIENT_BITS = 64;
    static constexpr int LONGEST_PRIME = 60;
    static constexpr int SUM_LIMIT = 8;

    static Vec load(const u64* p) { return _mm512_loadu_si512(p); }
    static Vec load_short(const std::int32_t* p) {
        return _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static void store(u64* p, Vec v) { _mm512_storeu_si512(p, v); }
    static Vec set(u64 x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
    static Vec add(Vec a, Vec b) { return _mm512_add_epi64(a, b); }
    static Vec subtract(Vec a, Vec b) { return _mm512_sub_epi64(a, b); }
    // If x is below m, x - m wraps around and is the larger one.
    static Vec reduce(Vec x, Vec m) { return _mm512_min_epu64(x, subtract(x, m)); }
    static Vec multiply_low(Vec a, Vec b) { return _mm512_mullo_epi64(a, b); }

    struct Constant {
        Vec w, quotient, quotient_high;
    };
    static Constant constant(u64 w, u64 quotient) { return {set(w), set(quotient), set(quotient >> 32)}; }
    static Constant constants(const u64* w, const u64* quotient) {
        const Vec p = load(quotient);
        return {load(w), p, _mm512_srli_epi64(p, 32)};
    }
    // The high word of y * quotient without its lowest partial product is at most 2 too small.
    static Vec multiply(Vec y, const Constant& c, Vec q) {
        const Vec y_high = _mm512_srli_epi64(y, 32);
        const Vec middle = add(_mm512_srli_epi64(_mm512_mul_epu32(y_high, c.quotient), 32),
                               _mm512_srli_epi64(_mm512_mul_epu32(y, c.quotient_high), 32));
        const Vec high = add(_mm512_mul_epu32(y_high, c.quotient_high), middle);
        return subtract(multiply_low(y, c.w), multiply_low(high, q));
    }

    // Prepared words are two halves of 30 bits, in the low 32 bits and in the high ones.
    static Vec prepare(Vec x) {
        return _mm512_or_si512(_mm512_and_si512(x, set(0x3fffffff)), _mm512_slli_epi64(_mm512_srli_epi64(x, 30), 32));
    }
    static Vec restore(Vec x) {
        return _mm512_or_si512(_mm512_and_si512(x, set(0x3fffffff)), _mm512_slli_epi64(_mm512_srli_epi64(x, 32), 30));
    }
    struct Sum {
        Vec low, middle, high;
    };
    static Sum zero() { return {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()}; }
    static void accumulate(Sum& s, Vec a, Vec prepared) {
        const Vec a_low = _mm512_and_si512(a, set(0x3fffffff)), a_high = _mm512_srli_epi64(a, 30);
        const Vec b_high = _mm512_srli_epi64(prepared, 32);
        s.low = add(s.low, _mm512_mul_epu32(a_low, prepared));
        s.middle = add(s.middle, add(_mm512_mul_epu32(a_low, b_high), _mm512_mul_epu32(a_high, prepared)));
        s.high = add(s.high, _mm512_mul_epu32(a_high, b_high));
    }
    static constexpr int PARTS = 3;
    static constexpr int WEIGHTS[3] = {0, 30, 60};
    static void parts(const Sum& s, Vec* words) {
        words[0] = s.low;
        words[1] = s.middle;
        words[2] = s.high;
    }

    static void transpose(Vec* v) {
        Vec a[8], b[8];
        for (int i = 0; i < 8; i += 2) {
            a[i] = _mm512_unpacklo_epi64(v[i], v[i + 1]);
            a[i + 1] = _mm512_unpackhi_epi64(v[i], v[i + 1]);
        }
        for (int i = 0; i < 8; i += 4)
            for (int k = 0; k < 2; k++) {
                b[i + k] = _mm512_shuffle_i64x2(a[i + k], a[i + k + 2], 0x88);
                b[i + k + 2] = _mm512_shuffle_i64x2(a[i + k], a[i + k + 2], 0xDD);
            }
        for (int k = 0; k < 4; k++) {
            v[k] = _mm512_shuffle_i64x2(b[k], b[k + 4], 0x88);
            v[k + 4] = _mm512_shuffle_i64x2(b[k], b[k + 4], 0xDD);
        }
    }
    static Vec lanes(const u64* numbers) { return load(numbers); }
    static Vec arrange(Vec x, Vec lanes) { return _mm512_permutexvar_epi64(lanes, x); }
    static Vec gather(const u64* base, const std::int32_t* index) {
        const __m256i places = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index));
        return _mm512_i32gather_epi64(places, reinterpret_cast<const long long*>(base), 8);
    }
};

}  // namespace polynext
