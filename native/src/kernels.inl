// The kernels, written once for any vector type V (see vector_scalar.h for what V must offer). Each instruction set
// compiles this file in a translation unit of its own, with its own compiler flags.
//
// Lazy reduction: a product with a constant is below LAZY q, and sums stay below CAPACITY q without being reduced.
#include "kernels.h"
#include "modulus.h"

namespace polynext {
namespace {

template <class V>
struct Loops {
    using Vec = typename V::Vec;
    using Constant = typename V::Constant;
    using Sum = typename V::Sum;

    static constexpr int W = V::WIDTH;
    static constexpr std::size_t TAIL = std::size_t(W) * W;  // words of the last stages, which stay in registers
    static constexpr std::size_t SCALAR_BLOCK = 64;
    static constexpr bool ALWAYS = V::CAPACITY < 4 * V::LAZY;  // whether each stage has to reduce

    static u64 quotient(u64 w, u64 q) { return shoup_quotient(w, q) >> (64 - V::QUOTIENT_BITS); }
    static Constant constant(u64 w, u64 q) { return V::constant(w, quotient(w, q)); }

    // Multiples of q.
    struct Bounds {
        Vec q, lazy, half;
        explicit Bounds(u64 prime)
            : q(V::set(prime)), lazy(V::set(V::LAZY * prime)), half(V::set(V::CAPACITY / 2 * prime)) {}
    };

    // From below CAPACITY q to below q.
    static Vec reduce_fully(Vec x, u64 q) {
        for (u64 k = V::CAPACITY / 2; k; k /= 2) x = V::reduce(x, V::set(k * q));
        return x;
    }

    // ---- Forward transform: Cooley-Tukey butterflies, from the whole polynomial down to single words.

    template <bool REDUCE>
    static void butterfly(Vec& x, Vec& y, const Constant& c, const Bounds& b) {
        if (REDUCE || ALWAYS) x = V::reduce(x, b.half);
        const Vec product = V::multiply(y, c, b.q);
        y = V::add(V::subtract(x, product), b.lazy);
        x = V::add(x, product);
    }

    // Two stages over four quarters, of group i out of m; `source(k)` are the words at k.
    template <class Source>
    static void forward_quarters(u64* x, std::size_t quarter, std::size_t m, std::size_t i, const Transform& p,
                                 const Bounds& b, const Source& source) {
        const Twiddles& t = p.forward;
        const std::size_t at = m + i;
        const Constant first = V::constant(t.w[at], t.quotient[at]);
        const Constant left = V::constant(t.w[2 * at], t.quotient[2 * at]);
        const Constant right = V::constant(t.w[2 * at + 1], t.quotient[2 * at + 1]);
        for (std::size_t k = 0; k < quarter; k += W) {
            Vec v0 = source(k), v1 = source(k + quarter), v2 = source(k + 2 * quarter), v3 = source(k + 3 * quarter);
            butterfly<true>(v0, v2, first, b);
            butterfly<true>(v1, v3, first, b);
            butterfly<false>(v0, v1, left, b);
            butterfly<false>(v2, v3, right, b);
            V::store(x + k, v0);
            V::store(x + k + quarter, v1);
            V::store(x + k + 2 * quarter, v2);
            V::store(x + k + 3 * quarter, v3);
        }
    }

    static void forward_halves(u64* x, std::size_t half, std::size_t m, std::size_t i, const Transform& p,
                               const Bounds& b) {
        const Constant c = V::constant(p.forward.w[m + i], p.forward.quotient[m + i]);
        for (std::size_t k = 0; k < half; k += W) {
            Vec left = V::load(x + k), right = V::load(x + k + half);
            butterfly<true>(left, right, c, b);
            V::store(x + k, left);
            V::store(x + k + half, right);
        }
    }

    // Stages between the vectors of a tail, HALF of them apart; stage STAGE of the tail.
    template <int HALF, int STAGE>
    static void forward_between(Vec* v, std::size_t at, const Transform& p, const Bounds& b) {
        if constexpr (HALF > 0) {
            for (int group = 0; group < W / (2 * HALF); group++) {
                const Constant c = V::constant(p.forward.w[at + group], p.forward.quotient[at + group]);
                for (int k = 0; k < HALF; k++)
                    butterfly<STAGE % 2 == 0>(v[2 * HALF * group + k], v[2 * HALF * group + k + HALF], c, b);
            }
            forward_between<HALF / 2, STAGE + 1>(v, 2 * at, p, b);
        }
    }

    // Stages within groups of W words, which lie in one lane after a transposition.
    template <int HALF, int STAGE>
    static void forward_within(Vec* v, const u64* w, const u64* quotients, const Bounds& b) {
        if constexpr (HALF > 0) {
            constexpr int GROUPS = W / (2 * HALF);
            for (int group = 0; group < GROUPS; group++) {
                const Constant c = V::constants(w + W * group, quotients + W * group);
                for (int k = 0; k < HALF; k++)
                    butterfly<STAGE % 2 == 0>(v[2 * HALF * group + k], v[2 * HALF * group + k + HALF], c, b);
            }
            forward_within<HALF / 2, STAGE + 1>(v, w + W * GROUPS, quotients + W * GROUPS, b);
        }
    }

    static constexpr int log2(int x) { return x > 1 ? 1 + log2(x / 2) : 0; }

    static void forward_tail(u64* x, std::size_t m, std::size_t i, const Transform& p, const Bounds& b) {
        Vec v[W];
        for (int k = 0; k < W; k++) v[k] = V::load(x + W * k);
        forward_between<W / 2, 0>(v, m + i, p, b);
        V::transpose(v);
        const std::size_t at = i * W * (W - 1);
        forward_within<W / 2, log2(W)>(v, p.forward.tail_w + at, p.forward.tail_quotient + at, b);
        V::transpose(v);
        for (int k = 0; k < W; k++) V::store(x + W * k, reduce_fully(v[k], p.q));
    }

    // Group i out of m, `length` words. Depth first, so that blocks stay in the cache.
    static void forward_block(u64* x, std::size_t length, std::size_t m, std::size_t i, const Transform& p,
                              const Bounds& b) {
        if constexpr (W == 1) {
            if (length <= SCALAR_BLOCK) {
                for (std::size_t half = length / 2, groups = 1; half; half /= 2, groups *= 2)
                    for (std::size_t g = 0; g < groups; g++)
                        forward_halves(x + 2 * half * g, half, m * groups, i * groups + g, p, b);
                for (std::size_t k = 0; k < length; k++) x[k] = reduce_fully(x[k], p.q);
                return;
            }
        } else {
            if (length == TAIL) return forward_tail(x, m, i, p, b);
            if (length == 2 * TAIL) {
                forward_halves(x, TAIL, m, i, p, b);
                forward_tail(x, 2 * m, 2 * i, p, b);
                forward_tail(x + TAIL, 2 * m, 2 * i + 1, p, b);
                return;
            }
        }
        const std::size_t quarter = length / 4;
        forward_quarters(x, quarter, m, i, p, b, [x](std::size_t k) { return V::load(x + k); });
        for (int k = 0; k < 4; k++) forward_block(x + k * quarter, quarter, 4 * m, 4 * i + k, p, b);
    }

    template <class Source>
    static void forward_from(u64* out, const Transform& p, const Source& source) {
        const Bounds b(p.q);
        const std::size_t quarter = p.n / 4;
        forward_quarters(out, quarter, 1, 0, p, b, source);
        for (int k = 0; k < 4; k++) forward_block(out + k * quarter, quarter, 4, k, p, b);
    }

    static void forward(u64* out, const u64* in, u64 offset, const Transform& p) {
        const Vec more = V::set(offset);
        forward_from(out, p, [=](std::size_t k) { return V::add(V::load(in + k), more); });
    }

    static void forward_sum(u64* out, const u64* const* in, const u64* factors, int count, u64 offset,
                            const Transform& p) {
        Constant c[MOST_TERMS];
        for (int i = 0; i < count; i++) c[i] = constant(factors[i], p.q);
        const Bounds b(p.q);
        const Vec start = V::set(offset);
        forward_from(out, p, [&](std::size_t k) {
            Vec total = start;
            for (int i = 0; i < count; i++)
                total = V::reduce(V::add(total, V::multiply(V::load(in[i] + k), c[i], b.q)), b.half);
            return total;
        });
    }

    // The first half of a transform, whose words depend on the sums of the first butterflies only.
    template <class Source>
    static void forward_half_from(u64* out, const Transform& p, const Source& source) {
        const Bounds b(p.q);
        const std::size_t half = p.n / 2;
        const Constant c = V::constant(p.forward.w[1], p.forward.quotient[1]);
        for (std::size_t k = 0; k < half; k += W) {
            Vec left = source(k), right = source(k + half);
            butterfly<true>(left, right, c, b);
            V::store(out + k, left);
        }
        forward_block(out, half, 2, 0, p, b);
    }

    static void forward_integers(u64* out, const void* in, int bytes, bool half, const Transform& p) {
        const Vec q = V::set(p.q);
        const auto transform = [&](const auto& source) {
            half ? forward_half_from(out, p, source) : forward_from(out, p, source);
        };
        if (bytes == 4)
            transform([=](std::size_t k) { return V::add(V::load_short(static_cast<const std::int32_t*>(in) + k), q); });
        else
            transform([=](std::size_t k) { return V::add(V::load(static_cast<const u64*>(in) + k), q); });
        for (std::size_t k = 0; k < p.n >> half; k += W) V::store(out + k, V::prepare(V::load(out + k)));
    }

    // ---- Inverse transform: Gentleman-Sande butterflies on words below LAZY q.

    static void inverse_butterfly(Vec& x, Vec& y, const Constant& c, const Bounds& b) {
        const Vec difference = V::add(V::subtract(x, y), b.lazy);
        x = V::reduce(V::add(x, y), b.lazy);
        y = V::multiply(difference, c, b.q);
    }

    static void inverse_halves(u64* x, std::size_t half, std::size_t m, std::size_t i, const Transform& p,
                               const Bounds& b) {
        const Constant c = V::constant(p.inverse.w[m + i], p.inverse.quotient[m + i]);
        for (std::size_t k = 0; k < half; k += W) {
            Vec left = V::load(x + k), right = V::load(x + k + half);
            inverse_butterfly(left, right, c, b);
            V::store(x + k, left);
            V::store(x + k + half, right);
        }
    }

    // The last stage of all also divides by n.
    template <bool LAST>
    static void inverse_quarters(u64* x, std::size_t quarter, std::size_t m, std::size_t i, const Transform& p,
                                 const Bounds& b) {
        const Twiddles& t = p.inverse;
        const std::size_t at = m + i;
        const Constant last = V::constant(t.w[at], t.quotient[at]);
        const Constant left = V::constant(t.w[2 * at], t.quotient[2 * at]);
        const Constant right = V::constant(t.w[2 * at + 1], t.quotient[2 * at + 1]);
        const Constant scale = constant(p.n_inverse, p.q), scale_last = constant(p.n_inverse_last, p.q);
        for (std::size_t k = 0; k < quarter; k += W) {
            Vec v[4];
            for (int j = 0; j < 4; j++) v[j] = V::load(x + k + j * quarter);
            inverse_butterfly(v[0], v[1], left, b);
            inverse_butterfly(v[2], v[3], right, b);
            if (LAST) {
                for (int j = 0; j < 2; j++) {
                    const Vec difference = V::add(V::subtract(v[j], v[j + 2]), b.lazy);
                    v[j] = reduce_fully(V::multiply(V::add(v[j], v[j + 2]), scale, b.q), p.q);
                    v[j + 2] = reduce_fully(V::multiply(difference, scale_last, b.q), p.q);
                }
            } else {
                inverse_butterfly(v[0], v[2], last, b);
                inverse_butterfly(v[1], v[3], last, b);
            }
            for (int j = 0; j < 4; j++) V::store(x + k + j * quarter, v[j]);
        }
    }

    template <int HALF>
    static void inverse_between(Vec* v, std::size_t at, const Transform& p, const Bounds& b) {
        if constexpr (HALF < W) {
            for (int group = 0; group < W / (2 * HALF); group++) {
                const std::size_t place = W / (2 * HALF) * at + group;
                const Constant c = V::constant(p.inverse.w[place], p.inverse.quotient[place]);
                for (int k = 0; k < HALF; k++)
                    inverse_butterfly(v[2 * HALF * group + k], v[2 * HALF * group + k + HALF], c, b);
            }
            inverse_between<2 * HALF>(v, at, p, b);
        }
    }

    template <int HALF>
    static void inverse_within(Vec* v, const u64* w, const u64* quotients, const Bounds& b) {
        if constexpr (HALF < W) {
            constexpr int GROUPS = W / (2 * HALF);
            const std::size_t at = std::size_t(W) * (GROUPS - 1);  // after the stages with fewer groups
            for (int group = 0; group < GROUPS; group++) {
                const Constant c = V::constants(w + at + W * group, quotients + at + W * group);
                for (int k = 0; k < HALF; k++)
                    inverse_butterfly(v[2 * HALF * group + k], v[2 * HALF * group + k + HALF], c, b);
            }
            inverse_within<2 * HALF>(v, w, quotients, b);
        }
    }

    static void inverse_tail(u64* x, std::size_t m, std::size_t i, const Transform& p, const Bounds& b) {
        Vec v[W];
        for (int k = 0; k < W; k++) v[k] = V::load(x + W * k);
        V::transpose(v);
        const std::size_t at = i * W * (W - 1);
        inverse_within<1>(v, p.inverse.tail_w + at, p.inverse.tail_quotient + at, b);
        V::transpose(v);
        inverse_between<1>(v, m + i, p, b);
        for (int k = 0; k < W; k++) V::store(x + W * k, v[k]);
    }

    static void inverse_block(u64* x, std::size_t length, std::size_t m, std::size_t i, const Transform& p,
                              const Bounds& b) {
        if constexpr (W == 1) {
            if (length <= SCALAR_BLOCK) {
                for (std::size_t half = 1, groups = length / 2; groups; half *= 2, groups /= 2)
                    for (std::size_t g = 0; g < groups; g++)
                        inverse_halves(x + 2 * half * g, half, m * groups, i * groups + g, p, b);
                return;
            }
        } else {
            if (length == TAIL) return inverse_tail(x, m, i, p, b);
            if (length == 2 * TAIL) {
                inverse_tail(x, 2 * m, 2 * i, p, b);
                inverse_tail(x + TAIL, 2 * m, 2 * i + 1, p, b);
                inverse_halves(x, TAIL, m, i, p, b);
                return;
            }
        }
        const std::size_t quarter = length / 4;
        for (int k = 0; k < 4; k++) inverse_block(x + k * quarter, quarter, 4 * m, 4 * i + k, p, b);
        if (m == 1)
            inverse_quarters<true>(x, quarter, m, i, p, b);
        else
            inverse_quarters<false>(x, quarter, m, i, p, b);
    }

    static void inverse(u64* x, const Transform& p) { inverse_block(x, p.n, 1, 0, p, Bounds(p.q)); }

    // ---- Products.

    // A sum of products modulo q.
    struct Reducer {
        Vec q;
        u64 prime;
        Constant weights[V::PARTS];
        explicit Reducer(u64 prime) : q(V::set(prime)), prime(prime) {
            for (int i = 0; i < V::PARTS; i++) weights[i] = constant(power_mod(2, V::WEIGHTS[i], prime), prime);
        }
        Vec operator()(const Sum& sum) const {
            Vec words[V::PARTS], total = V::set(0);
            V::parts(sum, words);
            for (int i = 0; i < V::PARTS; i++) total = V::add(total, V::multiply(words[i], weights[i], q));
            return reduce_fully(total, prime);
        }
        // Makes room for SUM_LIMIT more products.
        void fold(Sum& sum) const {
            const Vec total = (*this)(sum);
            sum = V::zero();
            V::accumulate(sum, total, V::prepare(V::set(1)));
        }
    };

    static constexpr int ROOM = V::SUM_LIMIT - 1;  // a folded sum takes the place of one product

    static void key_products(u64* out0, u64* out1, const u64* digits, std::size_t stride, const u64* key,
                             int key_digits, int count, const Transform& p) {
        const Reducer reduce(p.q);
        const std::size_t chunk = 2 * KEY_BLOCK * key_digits;
        for (std::size_t k = 0; k < p.n; k += W) {
            const u64* at = key + k / KEY_BLOCK * chunk + k % KEY_BLOCK;
            Sum left = V::zero(), right = V::zero();
            for (int i = 0; i < count; i++) {
                if (i && i % ROOM == 0) reduce.fold(left), reduce.fold(right);
                const Vec digit = V::load(digits + i * stride + k);
                V::accumulate(left, digit, V::load(at + 2 * KEY_BLOCK * i));
                V::accumulate(right, digit, V::load(at + 2 * KEY_BLOCK * i + KEY_BLOCK));
            }
            V::store(out0 + k, reduce(left));
            V::store(out1 + k, reduce(right));
        }
    }

    static void plain_products(u64* out0, u64* out1, const u64* const* c0, const u64* const* c1,
                               const u64* const* plain, int count, std::size_t length, const Transform& p) {
        const Reducer reduce(p.q);
        for (std::size_t k = 0; k < length; k += W) {
            Sum left = V::zero(), right = V::zero();
            for (int i = 0; i < count; i++) {
                if (i && i % ROOM == 0) reduce.fold(left), reduce.fold(right);
                const Vec factor = V::load(plain[i] + k);
                V::accumulate(left, V::load(c0[i] + k), factor);
                V::accumulate(right, V::load(c1[i] + k), factor);
            }
            V::store(out0 + k, reduce(left));
            V::store(out1 + k, reduce(right));
        }
    }

    static void tensor(u64* out0, u64* out1, u64* out2, const u64* a0, const u64* a1, const u64* b0, const u64* b1,
                       const Transform& p) {
        const Reducer reduce(p.q);
        for (std::size_t k = 0; k < p.n; k += W) {
            const Vec x0 = V::load(a0 + k), x1 = V::load(a1 + k);
            const Vec y0 = V::prepare(V::load(b0 + k)), y1 = V::prepare(V::load(b1 + k));
            Sum s0 = V::zero(), s1 = V::zero(), s2 = V::zero();
            V::accumulate(s0, x0, y0);
            V::accumulate(s1, x0, y1);
            V::accumulate(s1, x1, y0);
            V::accumulate(s2, x1, y1);
            V::store(out0 + k, reduce(s0));
            V::store(out1 + k, reduce(s1));
            V::store(out2 + k, reduce(s2));
        }
    }

    // ---- One word in, one word out.

    static void subtract_multiply(u64* out, const u64* a, const u64* b, u64 factor, const u64* c, const Transform& p) {
        const Constant f = constant(factor, p.q);
        const Vec q = V::set(p.q);
        for (std::size_t k = 0; k < p.n; k += W) {
            const Vec difference = V::add(V::subtract(V::load(a + k), V::load(b + k)), q);
            Vec result = V::multiply(difference, f, q);
            if (c) result = V::add(result, V::load(c + k));
            V::store(out + k, reduce_fully(result, p.q));
        }
    }

    static void multiply(u64* out, const u64* in, u64 factor, const Transform& p) {
        const Constant f = constant(factor, p.q);
        const Vec q = V::set(p.q);
        for (std::size_t k = 0; k < p.n; k += W)
            V::store(out + k, reduce_fully(V::multiply(V::load(in + k), f, q), p.q));
    }

    static void add(u64* out, const u64* a, const u64* b, const Transform& p) {
        const Vec q = V::set(p.q);
        for (std::size_t k = 0; k < p.n; k += W)
            V::store(out + k, V::reduce(V::add(V::load(a + k), V::load(b + k)), q));
    }

    static void prepare(u64* out, const u64* in, const Transform& p) {
        for (std::size_t k = 0; k < p.n; k += W) V::store(out + k, V::prepare(V::load(in + k)));
    }

    static void restore(u64* out, const u64* in, const Transform& p) {
        for (std::size_t k = 0; k < p.n; k += W) V::store(out + k, V::restore(V::load(in + k)));
    }

    static void rounded_sum(u64* out, const u64* const* in, const double* reciprocals, int count, std::size_t n) {
        for (std::size_t k = 0; k < n; k++) {
            double total = 0.5;
            for (int i = 0; i < count; i++) total += double(in[i][k]) * reciprocals[i];
            out[k] = u64(total);
        }
    }

    static void expand(u64* out, const u64* row, std::size_t at, std::size_t length, int shift, bool backwards,
                       std::size_t n) {
        const int words = W >> shift ? W >> shift : 1;  // of the row, for each vector
        u64 numbers[W];
        for (int i = 0; i < W; i++) numbers[i] = backwards ? words - 1 - (i >> shift) : i >> shift;
        const Vec lanes = V::lanes(numbers);
        for (std::size_t k = 0; k < length; k += W) {
            const std::size_t first = (at + k) >> shift;
            V::store(out + k, V::arrange(V::load(row + (backwards ? n - first - words : first)), lanes));
        }
    }

    static void permute(u64* out, const u64* in, const std::int32_t* table, std::size_t n) {
        for (std::size_t k = 0; k < n; k += W) V::store(out + k, V::gather(in, table + k));
    }

    static constexpr Kernels table(const char* name) {
        return {name,        W,       V::QUOTIENT_BITS,  V::LONGEST_PRIME, forward,           forward_sum,
                forward_integers, inverse, prepare,      restore,          key_products,      plain_products,
                tensor,      subtract_multiply, multiply, add,             rounded_sum,       expand,
                permute};
    }
};

}  // namespace
}  // namespace polynext
