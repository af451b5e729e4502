// Arithmetic on CKKS ciphertexts. Nothing here needs or has a secret key.
//
// A ciphertext is two polynomials with a row of n words for each prime, in NTT form: SEAL's own arrays. An evaluation key is
// a list of digits, each an encryption over all primes. With one special prime the keys are SEAL's: digit j is the residue
// modulo prime j. With several, digit g stands for `special` neighbouring data primes ("hybrid" key switching).
#pragma once
#include <memory>
#include <vector>

#include "ring.h"

namespace polynext {

struct Ciphertext {
    int primes;   // rows of a polynomial
    Words words;  // [2][primes][n]
};

// A plaintext is stored without repetitions. If its slots have a period, it is a polynomial in x^(2^shift), and 2^shift
// neighbouring words of its transform are equal. If its slots are real, word n - 1 - i equals word i ("mirrored").
//
// A compact plaintext has coefficients instead of a row for each prime, and is transformed each time it is used.
struct Plaintext {
    int primes;
    int shift = 0;
    bool mirrored = false;
    int bytes = 0;       // of a coefficient, if compact
    double largest = 0;  // size of a coefficient, if compact
    Words words;         // [primes][row_words(n)] and EXPAND_MORE, prepared for products; if compact, n >> shift coefficients
    bool compact() const { return bytes; }
    bool repeats() const { return shift || mirrored; }
    std::size_t row_words(std::size_t n) const { return n >> shift >> mirrored; }
};

struct Key {
    u64 element;  // of the automorphism; 1 for relinearisation
    int digits;
    Words words;  // [primes][n / KEY_BLOCK][digits][2][KEY_BLOCK], prepared for products
    const u64* row(int prime, std::size_t n) const { return words.data() + 2 * std::size_t(prime) * digits * n; }
};

// A sum of products: pairs of a ciphertext and a plaintext.
using Terms = std::vector<std::pair<const Ciphertext*, const Plaintext*>>;

class Evaluator {
  public:
    // With `exact`, results equal SEAL's word for word (one special prime only). Otherwise digits are centred, which makes
    // the noise of rotations smaller, and rotations of one value share work.
    Evaluator(std::shared_ptr<Ring> ring, bool exact) : ring_(std::move(ring)), exact_(exact) {}

    Ring& ring() const { return *ring_; }
    bool exact() const { return exact_; }

    Ciphertext load(const u64* words, int primes) const;
    Plaintext load_plaintext(const u64* words, int primes) const;
    // A plaintext from the coefficients of its polynomial, which are integers. It is compact if this is asked for and all
    // of them have at most 62 bits.
    Plaintext encode(const double* coefficients, int primes, bool compact) const;
    // Digits are arrays [2][data + special][n].
    Key load_key(u64 element, const std::vector<const u64*>& digits) const;

    Ciphertext add(const Ciphertext& a, const Ciphertext& b) const;
    Ciphertext add_plain(const Ciphertext& a, const Plaintext& b) const;
    Ciphertext multiply(const Ciphertext& a, const Ciphertext& b, const Key& relinearisation) const;
    std::vector<Ciphertext> sums(const std::vector<Terms>& sums) const;
    Ciphertext rotate(const Ciphertext& a, const Key& key) const;
    std::vector<Ciphertext> rotate_many(const Ciphertext& a, const std::vector<const Key*>& keys) const;
    Ciphertext rescale(const Ciphertext& a) const;           // divides by the last prime
    Ciphertext drop(const Ciphertext& a, int primes) const;  // forgets the last primes

  private:
    int digit_count(int primes) const { return (primes + ring_->special - 1) / ring_->special; }
    int prime_of_row(int row, int primes) const { return row < primes ? row : ring_->data + row - primes; }
    std::size_t tile_words() const;
    void transform(u64* row, const Plaintext& compact, int prime) const;
    const u64* row_of(const Plaintext& plain, int prime, Words& scratch) const;
    void expand(u64* out, const Plaintext& plain, const u64* row, std::size_t at, std::size_t length) const;
    // What a task needs for a tile of the longest sum, allocated once. `repeated_words` of a term are 0 if none repeats.
    struct TileScratch {
        TileScratch(std::size_t terms, std::size_t repeated_words)
            : repeated(terms * repeated_words), c0(terms), c1(terms), plain(terms) {}
        Words repeated;
        std::vector<const u64*> c0, c1, plain;
    };
    void sum_tiles(Ciphertext& made, const Terms& terms, const std::vector<const u64*>& rows, int prime, std::size_t start,
                   std::size_t end, TileScratch& scratch) const;
    const BaseConversion& digit(int g, int primes) const;
    Words digits_of(const u64* polynomial, int primes) const;
    void digits_modulo(u64* out, const u64* digits, const u64* polynomial, int primes, int prime) const;
    void switch_key(Ciphertext& out, const u64* polynomial, const Key& key, const u64* more0, const u64* more1,
                    const std::int32_t* table) const;
    void divide(Ciphertext& out, const u64* in, int rows, const BaseConversion& by, const u64* more0, const u64* more1,
                const std::int32_t* table) const;
    void require_same_level(int a, int b) const;
    Ciphertext fresh(int primes) const { return {primes, Words(2 * std::size_t(primes) * ring_->n)}; }

    std::shared_ptr<Ring> ring_;
    bool exact_;
};

}  // namespace polynext
