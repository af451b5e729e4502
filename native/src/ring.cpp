#include "ring.h"

#include <algorithm>
#include <stdexcept>

namespace polynext {

namespace {

int longest(const std::vector<u64>& a, const std::vector<u64>& b) {
    int bits = 0;
    for (const auto* primes : {&a, &b})
        for (u64 q : *primes)
            while (bits < 64 && q >> bits) bits++;
    return bits;
}

const Kernels* kernels_for(const std::string& name, int bits) {
    const Kernels* found = select_kernels(name.empty() ? nullptr : name.c_str(), bits);
    if (!found)
        throw std::invalid_argument("this machine has no kernels '" + name + "' for primes of " + std::to_string(bits) +
                                    " bits");
    return found;
}

}  // namespace

Ring::Ring(int log_n, const std::vector<u64>& data_primes, const std::vector<u64>& special_primes, int thread_count,
           const std::string& instruction_set)
    : n(std::size_t(1) << log_n),
      log_n(log_n),
      data(int(data_primes.size())),
      special(int(special_primes.size())),
      kernels(kernels_for(instruction_set, longest(data_primes, special_primes))),
      threads(thread_count) {
    if (n < LEAST_DEGREE || log_n > 17) throw std::invalid_argument("the ring degree must be 2^8 to 2^17");
    if (data < 1 || special < 1 || special >= MOST_TERMS)
        throw std::invalid_argument("there must be at least one data prime and 1 to 15 special primes");
    for (const auto* primes : {&data_primes, &special_primes})
        for (u64 q : *primes) primes_.emplace_back(q, log_n, kernels);
    for (int i = 0; i < data + special; i++) add_conversion(i, 1);
    for (int count = 2; count <= special; count++)
        for (int first = 0; first + count <= data; first += special) add_conversion(first, count);
    if (special > 1) add_conversion(data, special);
}

void Ring::add_conversion(int first, int count) {
    BaseConversion made{first, count, {}, {}, {}, {}};
    const auto product = [&](int skip, u64 q) {
        u64 result = 1;
        for (int j = first; j < first + count; j++)
            if (j != skip) result = multiply_mod(result, primes_[j].q, q);
        return result;
    };
    for (int j = first; j < first + count; j++) {
        made.inverse.push_back(inverse_mod(product(j, primes_[j].q), primes_[j].q));
        made.reciprocals.push_back(1.0 / double(primes_[j].q));
    }
    for (const Prime& to : primes_) {
        std::vector<u64> factors;
        for (int j = first; j < first + count; j++) factors.push_back(product(j, to.q));
        const u64 whole = product(-1, to.q);
        factors.push_back(whole ? to.q - whole : 0);
        made.factors.push_back(factors);
        made.product_inverse.push_back(whole ? inverse_mod(whole, to.q) : 0);
    }
    conversions_.emplace(std::make_pair(first, count), std::move(made));
}

const std::int32_t* Ring::permutation(u64 element) {
    std::lock_guard<std::mutex> guard(lock_);
    auto& table = permutations_[element];
    if (table.empty()) {
        table.resize(n);
        for (std::size_t i = 0; i < n; i++) {
            // Word i is the value at psi^(2 bitreverse(i) + 1).
            const u64 exponent = 2 * u64(reverse_bits(unsigned(i), log_n)) + 1;
            const u64 source = (exponent * element & (2 * n - 1)) >> 1;
            table[i] = std::int32_t(reverse_bits(unsigned(source), log_n));
        }
    }
    return table.data();
}

void Ring::prepare_conversion(u64* rows, const BaseConversion& from, bool centred) const {
    const u64* y[MOST_TERMS];
    for (int j = 0; j < from.count; j++) {
        const Prime& p = primes_[from.first + j];
        u64* row = rows + j * n;
        kernels->inverse(row, p);
        if (from.count > 1) kernels->multiply(row, row, from.inverse[j], p);
        y[j] = row;
    }
    if (from.count > 1) {
        kernels->rounded_sum(rows + from.count * n, y, from.reciprocals.data(), from.count, n);
    } else if (centred) {  // of one prime: add q / 2 modulo q here, subtract it in `convert`
        const u64 q = primes_[from.first].q, half = q >> 1;
        for (std::size_t k = 0; k < n; k++) {
            const u64 x = rows[k] + half;
            rows[k] = std::min(x, x - q);
        }
    }
}

void Ring::convert(u64* out, const u64* rows, const BaseConversion& from, int to, bool centred) const {
    const Prime& p = primes_[to];
    if (from.count > 1) {
        const u64* in[MOST_TERMS];
        for (int j = 0; j <= from.count; j++) in[j] = rows + j * n;
        kernels->forward_sum(out, in, from.factors[to].data(), from.count + 1, 0, p);
        return;
    }
    const u64 q = primes_[from.first].q, offset = centred ? p.q - (q >> 1) % p.q : 0;
    if (q / 3 >= p.q) {  // `forward` takes words below 4 q only
        kernels->multiply(out, rows, 1, p);
        rows = out;
    }
    kernels->forward(out, rows, offset, p);
}

}  // namespace polynext
