#include "kernels.inl"
#include "vector_avx512ifma.h"

namespace polynext {
extern const Kernels avx512ifma_kernels;
const Kernels avx512ifma_kernels = Loops<Avx512Ifma>::table("avx512ifma");
}  // namespace polynext
