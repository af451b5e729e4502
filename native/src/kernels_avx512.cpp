#include "kernels.inl"
#include "vector_avx512.h"

namespace polynext {
extern const Kernels avx512_kernels;
const Kernels avx512_kernels = Loops<Avx512>::table("avx512");
}  // namespace polynext
