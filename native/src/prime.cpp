#include "prime.h"

#include <algorithm>
#include <stdexcept>

namespace polynext {

namespace {

u64 smallest_primitive_root(u64 q, std::size_t n) {
    if ((q - 1) % (2 * n)) throw std::invalid_argument("a prime must be 1 modulo twice the ring degree");
    u64 root = 0;
    for (u64 base = 2; base < 1000; base++) {
        root = power_mod(base, (q - 1) / (2 * n), q);
        if (power_mod(root, n, q) == q - 1) break;
        root = 0;
    }
    if (!root) throw std::invalid_argument("a modulus is not a prime");
    // The primitive roots are its odd powers.
    const u64 square = multiply_mod(root, root, q);
    u64 smallest = root;
    for (std::size_t i = 0; i < n; i++, root = multiply_mod(root, square, q)) smallest = std::min(smallest, root);
    return smallest;
}

}  // namespace

Prime::Prime(u64 prime, int log_n, const Kernels* kernels) {
    q = prime;
    n = std::size_t(1) << log_n;
    const u64 root = smallest_primitive_root(q, n), roots[2] = {root, inverse_mod(root, q)};
    Twiddles* const tables[2] = {&forward, &inverse};
    for (int direction = 0; direction < 2; direction++) {
        Words &w = tables_[direction][0], &quotient = tables_[direction][1];
        w = Words(n);
        quotient = Words(n);
        u64 power = 1;
        for (std::size_t i = 0; i < n; i++, power = multiply_mod(power, roots[direction], q)) {
            const std::size_t at = reverse_bits(unsigned(i), log_n);
            w[at] = power;
            quotient[at] = shoup_quotient(power, q) >> (64 - kernels->quotient_bits);
        }
        *tables[direction] = {w.data(), quotient.data(), nullptr, nullptr};
        make_tail(*tables[direction], n, kernels->width);
    }
    n_inverse = inverse_mod(n, q);
    n_inverse_last = multiply_mod(n_inverse, inverse.w[1], q);
    // A smaller ring's root of unity is a power of this one's: its factors are the first ones here.
    for (std::size_t length = n / 2; length >= LEAST_DEGREE; length /= 2) {
        Transform smaller = *this;
        smaller.n = length;
        make_tail(smaller.forward, length, kernels->width);
        reduced_.push_back(smaller);
    }
}

// Stage s within vectors has s factors for each lane.
void Prime::make_tail(Twiddles& tables, std::size_t length, std::size_t width) {
    const std::size_t block = width * width, count = length / block * width * (width - 1);
    Words tail_w(count), tail_quotient(count);
    std::size_t next = 0;
    for (std::size_t b = 0; b < length / block; b++)
        for (std::size_t s = 1; s < width; s *= 2)
            for (std::size_t k = 0; k < s; k++)
                for (std::size_t lane = 0; lane < width; lane++, next++) {
                    const std::size_t from = length / width * s + (b * width + lane) * s + k;
                    tail_w[next] = tables.w[from];
                    tail_quotient[next] = tables.quotient[from];
                }
    tables.tail_w = tail_w.data();
    tables.tail_quotient = tail_quotient.data();
    tails_.push_back(std::move(tail_w));
    tails_.push_back(std::move(tail_quotient));
}

}  // namespace polynext
