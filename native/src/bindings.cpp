// The Python module `polynext_native`. Arrays are checked here; computing releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "evaluator.h"

namespace nb = nanobind;
using namespace polynext;

namespace {

using Array = nb::ndarray<const u64, nb::c_contig, nb::device::cpu>;
using Coefficients = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require_shape(const Array& array, const std::vector<std::size_t>& shape) {
    bool same = array.ndim() == shape.size();
    for (std::size_t i = 0; same && i < shape.size(); i++) same = array.shape(i) == shape[i];
    if (!same) throw std::invalid_argument("an array has another shape than the ring degree and primes ask for");
}

// Kernels rely on words being reduced.
void require_reduced(const Array& array, const Evaluator& evaluator, int primes, int rows_per_prime) {
    const std::size_t n = evaluator.ring().n;
    const u64* words = array.data();
    for (int poly = 0; poly < rows_per_prime; poly++)
        for (int i = 0; i < primes; i++, words += n) {
            const u64 q = evaluator.ring().prime(i).q;
            u64 largest = 0;
            for (std::size_t k = 0; k < n; k++) largest = words[k] > largest ? words[k] : largest;
            if (largest >= q) throw std::invalid_argument("an array has words that are not reduced modulo its primes");
        }
}

int primes_of(const Array& array, std::size_t axis, const Evaluator& evaluator) {
    if (array.ndim() <= axis || array.shape(axis) < 1 || array.shape(axis) > std::size_t(evaluator.ring().data))
        throw std::invalid_argument("an array has more primes than the ring");
    return int(array.shape(axis));
}

nb::object to_array(const Words& words, std::vector<std::size_t> shape) {
    u64* copy = new u64[words.size()];
    std::memcpy(copy, words.data(), words.size() * sizeof(u64));
    nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<u64*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, u64>(copy, shape.size(), shape.data(), owner));
}

void require_threads(int count) {
    if (count < 1) throw std::invalid_argument("there must be at least one thread");
}

void set_threads(const Evaluator& evaluator, int count) {
    require_threads(count);
    nb::gil_scoped_release release;
    evaluator.ring().threads.resize(count);
}

std::shared_ptr<Evaluator> make_evaluator(int ring_degree, const std::vector<u64>& data_primes,
                                          const std::vector<u64>& special_primes, int threads,
                                          const std::string& instruction_set, bool exact) {
    int log_n = 0;
    while (log_n < 30 && (1 << log_n) < ring_degree) log_n++;
    if (1 << log_n != ring_degree) throw std::invalid_argument("the ring degree must be a power of two");
    require_threads(threads);
    if (exact && special_primes.size() != 1) throw std::invalid_argument("exact results take one special prime");
    nb::gil_scoped_release release;
    return std::make_shared<Evaluator>(
        std::make_shared<Ring>(log_n, data_primes, special_primes, threads, instruction_set), exact);
}

Ciphertext load(const Evaluator& evaluator, const Array& array) {
    const int primes = primes_of(array, 1, evaluator);
    require_shape(array, {2, std::size_t(primes), evaluator.ring().n});
    require_reduced(array, evaluator, primes, 2);
    return evaluator.load(array.data(), primes);
}

Plaintext load_plaintext(const Evaluator& evaluator, const Array& array) {
    const int primes = primes_of(array, 0, evaluator);
    require_shape(array, {std::size_t(primes), evaluator.ring().n});
    require_reduced(array, evaluator, primes, 1);
    return evaluator.load_plaintext(array.data(), primes);
}

Plaintext encode(const Evaluator& evaluator, const Coefficients& coefficients, int primes, bool compact) {
    if (coefficients.shape(0) != evaluator.ring().n) throw std::invalid_argument("there must be n coefficients");
    if (primes < 1 || primes > evaluator.ring().data) throw std::invalid_argument("there are not that many primes");
    const double* data = coefficients.data();
    nb::gil_scoped_release release;
    return evaluator.encode(data, primes, compact);
}

Key load_key(const Evaluator& evaluator, u64 element, const std::vector<Array>& digits) {
    const int primes = evaluator.ring().data + evaluator.ring().special;
    if (element % 2 == 0 || element >= 2 * evaluator.ring().n)
        throw std::invalid_argument("an automorphism's element must be odd and below twice the ring degree");
    if (digits.empty()) throw std::invalid_argument("a key needs at least one digit");
    std::vector<const u64*> bodies;
    for (const Array& digit : digits) {
        require_shape(digit, {2, std::size_t(primes), evaluator.ring().n});
        require_reduced(digit, evaluator, primes, 2);
        bodies.push_back(digit.data());
    }
    nb::gil_scoped_release release;
    return evaluator.load_key(element, bodies);
}

std::vector<Ciphertext> sums(const Evaluator& evaluator, const nb::list& given) {
    std::vector<Terms> all;
    for (nb::handle terms : given) {
        Terms made;
        for (nb::handle term : nb::cast<nb::list>(terms)) {
            const auto pair = nb::cast<nb::tuple>(term);
            made.emplace_back(nb::cast<const Ciphertext*>(pair[0]), nb::cast<const Plaintext*>(pair[1]));
        }
        all.push_back(std::move(made));
    }
    nb::gil_scoped_release release;
    return evaluator.sums(all);
}

}  // namespace

NB_MODULE(polynext_native, m) {
    m.doc() = "Arithmetic on SEAL's CKKS ciphertexts, with evaluation keys only.";
    m.attr("__version__") = POLYNEXT_NATIVE_VERSION;
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const char* name : {"avx512ifma", "avx512", "avx2", "scalar"})
            if (select_kernels(name, 0)) names.emplace_back(name);
        return names;
    }, "The instruction sets of this machine that there are kernels for, the fastest first.");
    m.def("memory_in_use", &memory_in_use, "Bytes of all live ciphertexts, plaintexts, keys and tables.");

    nb::class_<Ciphertext>(m, "Ciphertext", "Two polynomials over the first primes of the ring.")
        .def_ro("primes", &Ciphertext::primes)
        .def("array", [](const Ciphertext& c) {
            return to_array(c.words, {2, std::size_t(c.primes), c.words.size() / (2 * c.primes)});
        }, "SEAL's array: (2, primes, ring degree).");
    nb::class_<Plaintext>(m, "Plaintext", "One polynomial, for products.")
        .def_ro("primes", &Plaintext::primes)
        .def_prop_ro("compact", &Plaintext::compact)
        .def_prop_ro("nbytes", [](const Plaintext& p) { return p.words.size() * sizeof(u64); });
    nb::class_<Key>(m, "Key", "A key for products or for one rotation.")
        .def_ro("element", &Key::element)
        .def_ro("digits", &Key::digits);

    using Release = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Evaluator>(m, "Evaluator", "Operations on ciphertexts of one ring.")
        .def_prop_ro("instruction_set", [](const Evaluator& e) { return std::string(e.ring().kernels->name); })
        .def_prop_rw("threads", [](const Evaluator& e) { return e.ring().threads.count(); }, &set_threads,
                     "Threads that compute, of all callers together. Set it to 1 before a fork.")
        .def("load", &load, nb::arg("array"), "A ciphertext from SEAL's array.")
        .def("load_plaintext", &load_plaintext, nb::arg("array"), "A plaintext from SEAL's array.")
        .def("encode", &encode, nb::arg("coefficients"), nb::arg("primes"), nb::arg("compact") = false,
             "A plaintext from integer coefficients, given as doubles. A compact one is transformed each time it is used.")
        .def("load_key", &load_key, nb::arg("element"), nb::arg("digits"), "A key from the arrays of its digits.")
        .def("add", &Evaluator::add, Release())
        .def("add_plain", &Evaluator::add_plain, Release())
        .def("multiply", &Evaluator::multiply, Release(), "The product, relinearised.")
        .def("sums", &sums, nb::arg("sums"), "For each list of (ciphertext, plaintext) pairs the sum of its products.")
        .def("rotate", &Evaluator::rotate, Release())
        .def("rotate_many", &Evaluator::rotate_many, Release(), "Several rotations of one ciphertext, which share work.")
        .def("rescale", &Evaluator::rescale, Release(), "Divide by the last prime and drop it.")
        .def("drop", &Evaluator::drop, Release(), "Keep the first primes only.");
    m.def("evaluator", &make_evaluator, nb::arg("ring_degree"), nb::arg("data_primes"), nb::arg("special_primes"),
          nb::arg("threads") = 1, nb::arg("instruction_set") = "", nb::arg("exact") = false,
          "An evaluator for a ring. With `exact` results equal SEAL's word for word.");
}
