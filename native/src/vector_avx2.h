// Four words at a time, on x86-64 with AVX2.
#pragma once
#include <immintrin.h>

#include "kernels.h"

namespace polynext {

struct Avx2 {
    using Vec = __m256i;
    static constexpr int WIDTH = 4;
    static constexpr int LAZY = 4;
    static constexpr int CAPACITY = 16;
    static constexpr int QUOTIENT_BITS = 64;
    static constexpr int LONGEST_PRIME = 60;
    static constexpr int SUM_LIMIT = 8;

    static Vec load(const u64* p) { return _mm256_loadu_si256(reinterpret_cast<const Vec*>(p)); }
    static Vec load_short(const std::int32_t* p) {
        return _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static void store(u64* p, Vec v) { _mm256_storeu_si256(reinterpret_cast<Vec*>(p), v); }
    static Vec set(u64 x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
    static Vec add(Vec a, Vec b) { return _mm256_add_epi64(a, b); }
    static Vec subtract(Vec a, Vec b) { return _mm256_sub_epi64(a, b); }
    // Both x and x - m are within 2^63 of zero, so that the sign tells which one is meant.
    static Vec reduce(Vec x, Vec m) {
        const Vec less = subtract(x, m);
        return _mm256_castpd_si256(
            _mm256_blendv_pd(_mm256_castsi256_pd(less), _mm256_castsi256_pd(x), _mm256_castsi256_pd(less)));
    }
    static Vec multiply_low(Vec a, Vec b) {
        const Vec cross = _mm256_mullo_epi32(a, _mm256_shuffle_epi32(b, 0xB1));
        const Vec high = _mm256_slli_epi64(_mm256_add_epi32(cross, _mm256_srli_epi64(cross, 32)), 32);
        return add(_mm256_mul_epu32(a, b), high);
    }

    struct Constant {
        Vec w, quotient, quotient_high;
    };
    static Constant constant(u64 w, u64 quotient) { return {set(w), set(quotient), set(quotient >> 32)}; }
    static Constant constants(const u64* w, const u64* quotient) {
        const Vec p = load(quotient);
        return {load(w), p, _mm256_srli_epi64(p, 32)};
    }
    // The high word of y * quotient without its lowest partial product is at most 2 too small.
    static Vec multiply(Vec y, const Constant& c, Vec q) {
        const Vec y_high = _mm256_srli_epi64(y, 32);
        const Vec middle = add(_mm256_srli_epi64(_mm256_mul_epu32(y_high, c.quotient), 32),
                               _mm256_srli_epi64(_mm256_mul_epu32(y, c.quotient_high), 32));
        const Vec high = add(_mm256_mul_epu32(y_high, c.quotient_high), middle);
        return subtract(multiply_low(y, c.w), multiply_low(high, q));
    }

    // Prepared words are two halves of 30 bits, in the low 32 bits and in the high ones.
    static Vec prepare(Vec x) {
        return _mm256_or_si256(_mm256_and_si256(x, set(0x3fffffff)), _mm256_slli_epi64(_mm256_srli_epi64(x, 30), 32));
    }
    static Vec restore(Vec x) {
        return _mm256_or_si256(_mm256_and_si256(x, set(0x3fffffff)), _mm256_slli_epi64(_mm256_srli_epi64(x, 32), 30));
    }
    struct Sum {
        Vec low, middle, high;
    };
    static Sum zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static void accumulate(Sum& s, Vec a, Vec prepared) {
        const Vec a_low = _mm256_and_si256(a, set(0x3fffffff)), a_high = _mm256_srli_epi64(a, 30);
        const Vec b_high = _mm256_srli_epi64(prepared, 32);
        s.low = add(s.low, _mm256_mul_epu32(a_low, prepared));
        s.middle = add(s.middle, add(_mm256_mul_epu32(a_low, b_high), _mm256_mul_epu32(a_high, prepared)));
        s.high = add(s.high, _mm256_mul_epu32(a_high, b_high));
    }
    static constexpr int PARTS = 3;
    static constexpr int WEIGHTS[3] = {0, 30, 60};
    static void parts(const Sum& s, Vec* words) {
        words[0] = s.low;
        words[1] = s.middle;
        words[2] = s.high;
    }

    static void transpose(Vec* v) {
        const Vec a = _mm256_unpacklo_epi64(v[0], v[1]), b = _mm256_unpackhi_epi64(v[0], v[1]);
        const Vec c = _mm256_unpacklo_epi64(v[2], v[3]), d = _mm256_unpackhi_epi64(v[2], v[3]);
        v[0] = _mm256_permute2x128_si256(a, c, 0x20);
        v[1] = _mm256_permute2x128_si256(b, d, 0x20);
        v[2] = _mm256_permute2x128_si256(a, c, 0x31);
        v[3] = _mm256_permute2x128_si256(b, d, 0x31);
    }
    static Vec lanes(const u64* numbers) {  // of 32-bit halves, which is what AVX2 can arrange
        const Vec low = _mm256_slli_epi64(load(numbers), 1);
        return _mm256_or_si256(low, _mm256_slli_epi64(add(low, set(1)), 32));
    }
    static Vec arrange(Vec x, Vec lanes) { return _mm256_permutevar8x32_epi32(x, lanes); }
    static Vec gather(const u64* base, const std::int32_t* index) {
        const __m128i places = _mm_loadu_si128(reinterpret_cast<const __m128i*>(index));
        return _mm256_i32gather_epi64(reinterpret_cast<const long long*>(base), places, 8);
    }
};

}  // namespace polynext
