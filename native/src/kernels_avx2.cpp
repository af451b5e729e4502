#include "kernels.inl"
#include "vector_avx2.h"

namespace polynext {
extern const Kernels avx2_kernels;
const Kernels avx2_kernels = Loops<Avx2>::table("avx2");
}  // namespace polynext
