#include "evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace polynext {

namespace {

// Rows of digits lie a little more than n words apart: at multiples of a power of two they would compete for the same lines
// of the cache.
constexpr std::size_t PADDING = 72;
// Words of a row that stay in the first cache while several sums use them. A tile is on one side of a row's middle.
constexpr std::size_t TILE = 512;

// The residue of an integer of any size: the 53 bits of a double, times a power of two.
u64 residue(double integer, u64 q) {
    int exponent;
    const u64 mantissa = u64(std::ldexp(std::frexp(std::fabs(integer), &exponent), 53));
    const u64 size = exponent < 53 ? (mantissa >> (53 - exponent)) % q
                                   : multiply_mod(mantissa, power_mod(2, exponent - 53, q), q);
    return integer < 0 && size ? q - size : size;
}

void copy(u64* out, const u64* in, std::size_t count) { std::memcpy(out, in, count * sizeof(u64)); }

}  // namespace

void Evaluator::require_same_level(int a, int b) const {
    if (a != b)
        throw std::invalid_argument("the operands have " + std::to_string(a) + " and " + std::to_string(b) +
                                    " primes: bring them to one level first");
}

std::size_t Evaluator::tile_words() const { return std::min(TILE, ring_->n / 2); }

Ciphertext Evaluator::load(const u64* words, int primes) const {
    Ciphertext made = fresh(primes);
    copy(made.words.data(), words, made.words.size());
    return made;
}

Plaintext Evaluator::load_plaintext(const u64* words, int primes) const {
    const std::size_t n = ring_->n;
    Plaintext made;
    made.primes = primes;
    made.words = Words(primes * n + EXPAND_MORE);
    ring_->threads.loop(primes, [&](int i) {
        ring_->kernels->prepare(made.words.data() + i * n, words + i * n, ring_->prime(i));
    });
    return made;
}

Plaintext Evaluator::encode(const double* coefficients, int primes, bool compact) const {
    const std::size_t n = ring_->n;
    Plaintext made;
    made.primes = primes;
    std::size_t places = n / LEAST_DEGREE;  // bits of the places of coefficients that are not zero
    made.mirrored = true;
    for (std::size_t k = 0; k < n; k++) {
        made.largest = std::max(made.largest, std::fabs(coefficients[k]));
        if (coefficients[k] != 0) places |= k;
        if (k && coefficients[k] != -coefficients[n - k]) made.mirrored = false;
    }
    while (!(places >> made.shift & 1)) made.shift++;
    const std::size_t count = n >> made.shift, length = made.row_words(n);
    const bool is_long = made.largest >= 0x1p62;
    if (!is_long) {
        made.bytes = made.largest < 0x1p31 ? 4 : 8;
        made.words = Words(count * made.bytes / 8);
        for (std::size_t k = 0; k < count; k++) {
            const auto coefficient = std::int64_t(coefficients[k << made.shift]);
            if (made.bytes == 4)
                reinterpret_cast<std::int32_t*>(made.words.data())[k] = std::int32_t(coefficient);
            else
                made.words[k] = u64(coefficient);
        }
        if (compact) return made;
    }
    Plaintext whole;
    whole.primes = primes;
    whole.shift = made.shift;
    whole.mirrored = made.mirrored;
    whole.words = Words(primes * length + EXPAND_MORE);
    ring_->threads.loop(primes, [&](int i) {
        u64* row = whole.words.data() + i * length;
        if (!is_long) {
            transform(row, made, i);
            return;
        }
        const Prime& p = ring_->prime(i);
        Words residues(count);
        for (std::size_t k = 0; k < count; k++) residues[k] = residue(coefficients[k << made.shift], p.q);
        ring_->kernels->forward_integers(row, residues.data(), 8, made.mirrored, p.reduced(made.shift));
    });
    return whole;
}

// A row of a compact plaintext, prepared for products.
void Evaluator::transform(u64* row, const Plaintext& compact, int prime) const {
    const Prime& p = ring_->prime(prime);
    const Transform& reduced = p.reduced(compact.shift);
    if (compact.largest < double(p.q)) {
        ring_->kernels->forward_integers(row, compact.words.data(), compact.bytes, compact.mirrored, reduced);
        return;
    }
    Words residues(reduced.n);
    const auto* shorts = reinterpret_cast<const std::int32_t*>(compact.words.data());
    for (std::size_t k = 0; k < reduced.n; k++)
        residues[k] = residue(double(compact.bytes == 4 ? shorts[k] : std::int64_t(compact.words[k])), p.q);
    ring_->kernels->forward_integers(row, residues.data(), 8, compact.mirrored, reduced);
}

// A row of a plaintext as it is stored, prepared for products. A compact one is transformed into the scratch memory.
const u64* Evaluator::row_of(const Plaintext& plain, int prime, Words& scratch) const {
    const std::size_t length = plain.row_words(ring_->n);
    if (!plain.compact()) return plain.words.data() + prime * length;
    scratch = Words(length + EXPAND_MORE);
    transform(scratch.data(), plain, prime);
    return scratch.data();
}

// Words of a row of a plaintext that repeats, with their repetitions. They must not be on both sides of the middle.
void Evaluator::expand(u64* out, const Plaintext& plain, const u64* row, std::size_t at, std::size_t length) const {
    const bool backwards = plain.mirrored && at >= ring_->n / 2;
    ring_->kernels->expand(out, row, at, length, plain.shift, backwards, ring_->n >> plain.shift);
}

// Except in exact mode, keys are permuted backwards here: digits can then be made before it is known by how much to rotate,
// and only the result has to be permuted.
Key Evaluator::load_key(u64 element, const std::vector<const u64*>& digits) const {
    const std::size_t n = ring_->n;
    const int primes = ring_->data + ring_->special, count = int(digits.size());
    Key made{element, count, Words(2 * std::size_t(primes) * count * n)};
    std::vector<std::int32_t> back(n);
    const std::int32_t* table = ring_->permutation(exact_ ? 1 : element);
    for (std::size_t k = 0; k < n; k++) back[table[k]] = std::int32_t(k);
    ring_->threads.loop(primes, [&](int i) {
        Words permuted(n);
        u64* to = made.words.data() + 2 * std::size_t(i) * count * n;
        for (int g = 0; g < count; g++)
            for (int poly = 0; poly < 2; poly++) {
                const u64* row = digits[g] + (std::size_t(poly) * primes + i) * n;
                ring_->kernels->permute(permuted.data(), row, back.data(), n);
                ring_->kernels->prepare(permuted.data(), permuted.data(), ring_->prime(i));
                for (std::size_t block = 0; block < n / KEY_BLOCK; block++)
                    copy(to + ((block * count + g) * 2 + poly) * KEY_BLOCK, permuted.data() + block * KEY_BLOCK, KEY_BLOCK);
            }
    });
    return made;
}

Ciphertext Evaluator::add(const Ciphertext& a, const Ciphertext& b) const {
    require_same_level(a.primes, b.primes);
    const std::size_t n = ring_->n;
    Ciphertext sum = fresh(a.primes);
    ring_->threads.loop(2 * a.primes, [&](int row) {
        const std::size_t at = row * n;
        ring_->kernels->add(sum.words.data() + at, a.words.data() + at, b.words.data() + at,
                            ring_->prime(row % a.primes));
    });
    return sum;
}

Ciphertext Evaluator::add_plain(const Ciphertext& a, const Plaintext& b) const {
    require_same_level(a.primes, b.primes);
    const std::size_t n = ring_->n;
    Ciphertext sum = fresh(a.primes);
    ring_->threads.loop(a.primes, [&](int i) {
        u64* to = sum.words.data() + i * n;
        Words scratch;
        const u64* row = row_of(b, i, scratch);
        if (b.repeats()) {
            for (std::size_t at : {std::size_t(0), n / 2}) expand(to + at, b, row, at, n / 2);
            row = to;
        }
        ring_->kernels->restore(to, row, ring_->prime(i));
        ring_->kernels->add(to, to, a.words.data() + i * n, ring_->prime(i));
    });
    const std::size_t half = a.primes * n;
    copy(sum.words.data() + half, a.words.data() + half, half);
    return sum;
}

std::vector<Ciphertext> Evaluator::sums(const std::vector<Terms>& sums) const {
    std::vector<Ciphertext> made;
    int primes = 0;
    bool compact = false, repeats = false;
    std::size_t most = 0;  // terms of a sum
    for (const Terms& terms : sums) {
        if (terms.empty()) throw std::invalid_argument("a sum has no terms");
        if (!primes) primes = terms[0].first->primes;
        for (const auto& [factor, plain] : terms) {
            require_same_level(primes, factor->primes);
            require_same_level(primes, plain->primes);
            compact |= plain->compact();
            repeats |= plain->repeats();
        }
        most = std::max(most, terms.size());
        made.push_back(fresh(primes));
    }
    // A few tasks for each thread, whatever the number of primes; but each compact plaintext is transformed once.
    const std::size_t tile = tile_words(), tiles = ring_->n / tile;
    const int parts = compact ? 1 : std::max(1, 2 * ring_->threads.count() / std::max(primes, 1));
    ring_->threads.loop(primes * parts, [&](int task) {
        const int i = task / parts;
        const std::size_t start = task % parts * tiles / parts * tile, end = (task % parts + 1) * tiles / parts * tile;
        TileScratch tiled(most, repeats ? tile : 0);
        std::vector<Words> scratch;  // of compact plaintexts
        const auto rows_of = [&](const Terms& terms) {
            std::vector<const u64*> rows;
            for (const auto& term : terms) rows.push_back(row_of(*term.second, i, scratch.emplace_back()));
            return rows;
        };
        if (compact) {  // one sum at a time, to have few rows in memory
            for (std::size_t s = 0; s < sums.size(); s++, scratch.clear())
                sum_tiles(made[s], sums[s], rows_of(sums[s]), i, start, end, tiled);
            return;
        }
        std::vector<std::vector<const u64*>> rows;
        for (const Terms& terms : sums) rows.push_back(rows_of(terms));
        // All sums go through a tile of the ciphertexts before the next tile is read: from memory come only the plaintexts.
        for (std::size_t at = start; at < end; at += tile)
            for (std::size_t s = 0; s < sums.size(); s++) sum_tiles(made[s], sums[s], rows[s], i, at, at + tile, tiled);
    });
    return made;
}

// One sum modulo one prime. `rows` are those of its plaintexts.
void Evaluator::sum_tiles(Ciphertext& made, const Terms& terms, const std::vector<const u64*>& rows, int prime,
                          std::size_t start, std::size_t end, TileScratch& scratch) const {
    const std::size_t n = ring_->n, tile = tile_words(), count = terms.size();
    const std::size_t first = prime * n, second = (made.primes + prime) * n;
    auto& [repeated, c0, c1, plain] = scratch;
    for (std::size_t at = start; at < end; at += tile) {
        for (std::size_t t = 0; t < count; t++) {
            c0[t] = terms[t].first->words.data() + first + at;
            c1[t] = terms[t].first->words.data() + second + at;
            const Plaintext& factor = *terms[t].second;
            plain[t] = rows[t] + at;
            if (!factor.repeats()) continue;
            expand(repeated.data() + t * tile, factor, rows[t], at, tile);
            plain[t] = repeated.data() + t * tile;
        }
        ring_->kernels->plain_products(made.words.data() + first + at, made.words.data() + second + at, c0.data(), c1.data(),
                                       plain.data(), int(count), tile, ring_->prime(prime));
    }
}

const BaseConversion& Evaluator::digit(int g, int primes) const {
    const int first = g * ring_->special;
    return ring_->conversion(first, std::min(ring_->special, primes - first));
}

// What the digits of a polynomial are converted from: special + 1 rows for each digit.
Words Evaluator::digits_of(const u64* polynomial, int primes) const {
    const std::size_t n = ring_->n;
    const int count = digit_count(primes), rows = ring_->special > 1 ? ring_->special + 1 : 1;
    Words made(std::size_t(count) * rows * n);
    ring_->threads.loop(count, [&](int g) {
        const BaseConversion& from = digit(g, primes);
        u64* to = made.data() + g * rows * n;
        copy(to, polynomial + from.first * n, from.count * n);
        ring_->prepare_conversion(to, from, !exact_);
    });
    return made;
}

// All digits modulo one prime, in NTT form, n + PADDING words apart.
void Evaluator::digits_modulo(u64* out, const u64* digits, const u64* polynomial, int primes, int prime) const {
    const std::size_t n = ring_->n;
    const int rows = ring_->special > 1 ? ring_->special + 1 : 1;
    for (int g = 0; g < digit_count(primes); g++, out += n + PADDING) {
        const BaseConversion& from = digit(g, primes);
        if (prime >= from.first && prime < from.first + from.count)
            copy(out, polynomial + prime * n, n);
        else
            ring_->convert(out, digits + g * rows * n, from, prime, !exact_);
    }
}

// out = polynomial * key / P + (more0, more1), each permuted by `table` at the end; `more` and `table` may be null.
void Evaluator::switch_key(Ciphertext& out, const u64* polynomial, const Key& key, const u64* more0, const u64* more1,
                           const std::int32_t* table) const {
    const std::size_t n = ring_->n;
    const int primes = out.primes, count = digit_count(primes), rows = primes + ring_->special;
    if (count > key.digits) throw std::invalid_argument("the key has too few digits");
    const Words digits = digits_of(polynomial, primes);
    Words products(2 * std::size_t(rows) * n);
    ring_->threads.loop(rows, [&](int row) {
        const int i = prime_of_row(row, primes);
        Words modulo(count * (n + PADDING));
        digits_modulo(modulo.data(), digits.data(), polynomial, primes, i);
        ring_->kernels->key_products(products.data() + row * n, products.data() + (rows + row) * n, modulo.data(),
                                     n + PADDING, key.row(i, n), key.digits, count, ring_->prime(i));
    });
    divide(out, products.data(), rows, ring_->conversion(ring_->data, ring_->special), more0, more1, table);
}

// out = in / Q + more with rounding, for the product Q of the primes of the last rows of `in`.
void Evaluator::divide(Ciphertext& out, const u64* in, int rows, const BaseConversion& by, const u64* more0,
                       const u64* more1, const std::int32_t* table) const {
    const std::size_t n = ring_->n;
    const int primes = out.primes;
    Words last(2 * std::size_t(by.rows()) * n);
    ring_->threads.loop(2, [&](int poly) {
        u64* to = last.data() + poly * by.rows() * n;
        copy(to, in + (poly * rows + primes) * n, by.count * n);
        ring_->prepare_conversion(to, by, true);
    });
    ring_->threads.loop(2 * primes, [&](int task) {
        const int poly = task / primes, i = task % primes;
        const u64* more = poly ? more1 : more0;
        u64* to = out.words.data() + (poly * primes + i) * n;
        Words remainder(n);
        ring_->convert(remainder.data(), last.data() + poly * by.rows() * n, by, i, true);
        u64* quotient = table ? remainder.data() : to;
        ring_->kernels->subtract_multiply(quotient, in + (poly * rows + i) * n, remainder.data(), by.product_inverse[i],
                                          more ? more + i * n : nullptr, ring_->prime(i));
        if (table) ring_->kernels->permute(to, quotient, table, n);
    });
}

Ciphertext Evaluator::multiply(const Ciphertext& a, const Ciphertext& b, const Key& relinearisation) const {
    require_same_level(a.primes, b.primes);
    const std::size_t n = ring_->n, half = a.primes * n;
    Ciphertext product = fresh(a.primes);
    Words third(half);
    ring_->threads.loop(a.primes, [&](int i) {
        const std::size_t at = i * n;
        ring_->kernels->tensor(product.words.data() + at, product.words.data() + half + at, third.data() + at,
                               a.words.data() + at, a.words.data() + half + at, b.words.data() + at,
                               b.words.data() + half + at, ring_->prime(i));
    });
    switch_key(product, third.data(), relinearisation, product.words.data(), product.words.data() + half, nullptr);
    return product;
}

Ciphertext Evaluator::rotate(const Ciphertext& a, const Key& key) const {
    const std::size_t n = ring_->n, half = a.primes * n;
    const std::int32_t* table = ring_->permutation(key.element);
    Ciphertext rotated = fresh(a.primes);
    if (!exact_) {
        switch_key(rotated, a.words.data() + half, key, a.words.data(), nullptr, table);
        return rotated;
    }
    Words second(half);
    ring_->threads.loop(2 * a.primes, [&](int row) {
        u64* to = row < a.primes ? rotated.words.data() + row * n : second.data() + (row - a.primes) * n;
        ring_->kernels->permute(to, a.words.data() + row * n, table, n);
    });
    switch_key(rotated, second.data(), key, rotated.words.data(), nullptr, nullptr);
    return rotated;
}

// The digits are the same for all rotations of a value: they are made once ("hoisting").
std::vector<Ciphertext> Evaluator::rotate_many(const Ciphertext& a, const std::vector<const Key*>& keys) const {
    std::vector<Ciphertext> made;
    if (exact_ || keys.size() < 2) {
        for (const Key* key : keys) made.push_back(rotate(a, *key));
        return made;
    }
    const std::size_t n = ring_->n, half = a.primes * n;
    const int count = digit_count(a.primes), rows = a.primes + ring_->special;
    const std::size_t stride = count * (n + PADDING);
    const Words digits = digits_of(a.words.data() + half, a.primes);
    Words modulo(rows * stride), products(2 * std::size_t(rows) * n);
    ring_->threads.loop(rows, [&](int row) {
        digits_modulo(modulo.data() + row * stride, digits.data(), a.words.data() + half, a.primes,
                      prime_of_row(row, a.primes));
    });
    for (const Key* key : keys) {
        if (count > key->digits) throw std::invalid_argument("the key has too few digits");
        ring_->threads.loop(rows, [&](int row) {
            const int i = prime_of_row(row, a.primes);
            ring_->kernels->key_products(products.data() + row * n, products.data() + (rows + row) * n,
                                         modulo.data() + row * stride, n + PADDING, key->row(i, n), key->digits,
                                         count, ring_->prime(i));
        });
        made.push_back(fresh(a.primes));
        divide(made.back(), products.data(), rows, ring_->conversion(ring_->data, ring_->special), a.words.data(),
               nullptr, ring_->permutation(key->element));
    }
    return made;
}

Ciphertext Evaluator::rescale(const Ciphertext& a) const {
    if (a.primes < 2) throw std::invalid_argument("the last prime cannot be dropped");
    Ciphertext quotient = fresh(a.primes - 1);
    divide(quotient, a.words.data(), a.primes, ring_->conversion(a.primes - 1, 1), nullptr, nullptr, nullptr);
    return quotient;
}

Ciphertext Evaluator::drop(const Ciphertext& a, int primes) const {
    if (primes < 1 || primes > a.primes) throw std::invalid_argument("there are fewer primes than asked for");
    const std::size_t n = ring_->n;
    Ciphertext dropped = fresh(primes);
    for (int poly = 0; poly < 2; poly++)
        copy(dropped.words.data() + poly * primes * n, a.words.data() + poly * a.primes * n, primes * n);
    return dropped;
}

}  // namespace polynext
