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
    const std::size_t width = kernels->width, block = width * width;
    const u64 root = smallest_primitive_root(q, n), roots[2] = {root, inverse_mod(root, q)};
    Twiddles* const tables[2] = {&forward, &inverse};
    for (int direction = 0; direction < 2; direction++) {
        Words &w = tables_[direction][0], &quotient = tables_[direction][1];
        Words &tail_w = tables_[direction][2], &tail_quotient = tables_[direction][3];
        w = Words(n);
        quotient = Words(n);
        u64 power = 1;
        for (std::size_t i = 0; i < n; i++, power = multiply_mod(power, roots[direction], q)) {
            const std::size_t at = reverse_bits(unsigned(i), log_n);
            w[at] = power;
            quotient[at] = shoup_quotient(power, q) >> (64 - kernels->quotient_bits);
        }
        // Stage s within vectors has s factors for each lane.
        tail_w = Words(n / block * width * (width - 1));
        tail_quotient = Words(n / block * width * (width - 1));
        std::size_t next = 0;
        for (std::size_t b = 0; b < n / block; b++)
            for (std::size_t s = 1; s < width; s *= 2)
                for (std::size_t k = 0; k < s; k++)
                    for (std::size_t lane = 0; lane < width; lane++, next++) {
                        const std::size_t from = n / width * s + (b * width + lane) * s + k;
                        tail_w[next] = w[from];
                        tail_quotient[next] = quotient[from];
                    }
        *tables[direction] = {w.data(), quotient.data(), tail_w.data(), tail_quotient.data()};
    }
    n_inverse = inverse_mod(n, q);
    n_inverse_last = multiply_mod(n_inverse, inverse.w[1], q);
}

}  // namespace polynext
