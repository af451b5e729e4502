// Chooses kernels by what the processor can do.
#include "kernels.h"

#include <cstring>

#if defined(POLYNEXT_X86) && defined(_MSC_VER)
#include <intrin.h>
#endif

namespace polynext {

extern const Kernels scalar_kernels;
#if defined(POLYNEXT_X86)
extern const Kernels avx2_kernels, avx512_kernels, avx512ifma_kernels;
#endif

namespace {

#if defined(POLYNEXT_X86)
struct Processor {
    bool avx2 = false, avx512 = false, ifma = false;
};

Processor detect() {
    Processor found;
#if defined(_MSC_VER)
    int leaf[4];
    __cpuid(leaf, 1);
    const bool saved_by_system = leaf[2] >> 27 & 1;
    const unsigned long long state = saved_by_system ? _xgetbv(0) : 0;
    __cpuidex(leaf, 7, 0);
    found.avx2 = (state & 6) == 6 && leaf[1] >> 5 & 1;
    found.avx512 = (state & 0xe6) == 0xe6 && leaf[1] >> 16 & 1 && leaf[1] >> 17 & 1;
    found.ifma = found.avx512 && leaf[1] >> 21 & 1;
#else
    __builtin_cpu_init();
    found.avx2 = __builtin_cpu_supports("avx2");
    found.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
    found.ifma = found.avx512 && __builtin_cpu_supports("avx512ifma");
#endif
    return found;
}
#endif

}  // namespace

const Kernels* select_kernels(const char* name, int prime_bits) {
    const Kernels* candidates[4];
    int count = 0;
#if defined(POLYNEXT_X86)
    static const Processor processor = detect();
    if (processor.ifma) candidates[count++] = &avx512ifma_kernels;
    if (processor.avx512) candidates[count++] = &avx512_kernels;
    if (processor.avx2) candidates[count++] = &avx2_kernels;
#endif
    candidates[count++] = &scalar_kernels;
    for (int i = 0; i < count; i++)
        if (prime_bits <= candidates[i]->longest_prime && (!name || !std::strcmp(name, candidates[i]->name)))
            return candidates[i];
    return nullptr;
}

}  // namespace polynext
