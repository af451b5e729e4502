#include "kernels.inl"
#include "vector_scalar.h"

namespace polynext {
extern const Kernels scalar_kernels;
const Kernels scalar_kernels = Loops<Scalar>::table("scalar");
}  // namespace polynext
