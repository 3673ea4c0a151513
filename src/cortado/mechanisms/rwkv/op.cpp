#include "cortado/mechanisms/rwkv/op.h"

#include "cortado/mechanisms/rwkv/fused.h"
#include "cortado/primitives/choice.h"

namespace cortado::rwkv7 {

Tensor compute(const char* layer, const Tensor& x, const Batch& batch, const std::function<Tensor()>& by_kernel,
               const std::function<Tensor()>& by_operators) {
  return choose(layer, x,
                on_cpu("kernel", [&] { return takes(x, batch); }, by_kernel), otherwise("operators", by_operators));
}

}  // namespace cortado::rwkv7
