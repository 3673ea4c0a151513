// _running_max: the running maximum that keeps Latte's, ABC's and (decayed) RWKV-4's exponentials at most 1.
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/elementwise_scan/scan.h"
#include "cortado/primitives/operator.h"

namespace cortado {
namespace {

using Maxima = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char* kRunningMax = "_running_max";

Sizes check(const Tensor& x, const OptionalTensor& initial, const OptionalTensor& cu_seqlens,
            const OptionalTensor& decay) {
  return Sizes(kRunningMax, cu_seqlens, {{"x", x, "BTGL"}, {"decay", decay, "GL"}, {"initial", initial, "NGL"}},
               Types::kAny);
}

// Dense: (m, m one token before, m after the last token). timed: x; rows: m_0; decay [H·L] or undefined.
PackedResult dense_maxima(const std::vector<Tensor>& timed, const std::vector<Tensor>& rows, const Tensor& decay) {
  const Tensor x = timed[0].flatten(2);
  const Tensor start = rows[0].flatten(1);
  const int64_t tokens = x.size(1);
  const Tensor m = running_max_dense(x, start, decay);
  const Tensor chain = at::cat({start.unsqueeze(1), m}, 1);
  auto heads = [&](const Tensor& flat, int64_t dim) {
    return flat.unflatten(dim, {timed[0].size(2), timed[0].size(3)});
  };
  return {{heads(m, 2), heads(chain.narrow(1, 0, tokens), 2)}, {heads(chain.select(1, tokens), 1).clone()}};
}

Maxima kernel(const Tensor& x, const OptionalTensor& initial, const OptionalTensor& cu_seqlens,
              const OptionalTensor& decay) {
  const int64_t rows = check(x, initial, cu_seqlens, decay).number('N');
  const auto type = accumulation_type({x, initial, decay});
  const Tensor start =
      initial ? initial->to(type) : at::full({rows, x.size(2), x.size(3)}, -kInfinity, x.options().dtype(type));
  const Tensor loss = decay ? decay->to(type).flatten() : Tensor();
  const auto dense = [&loss](const std::vector<Tensor>& timed_parts, const std::vector<Tensor>& row_parts) {
    return dense_maxima(timed_parts, row_parts, loss);
  };
  const PackedResult result = Bounds(kRunningMax, cu_seqlens, x.size(1)).run({x.to(type)}, {start}, dense);
  return {result.timed[0].contiguous(), result.timed[1].contiguous(), result.rows[0]};
}

Maxima meta(const Tensor& x, const OptionalTensor& initial, const OptionalTensor& cu_seqlens,
            const OptionalTensor& decay) {
  const Sizes sizes = check(x, initial, cu_seqlens, decay);
  const auto options = x.options().dtype(accumulation_type({x, initial, decay}));
  return {sizes.empty("BTGL", options), sizes.empty("BTGL", options), sizes.empty("NGL", options)};
}

}  // namespace

Maxima running_max(const Tensor& x, const OptionalTensor& initial, const OptionalTensor& cu_seqlens,
                   const OptionalTensor& decay) {
  const auto detached = [](const OptionalTensor& y) { return y ? OptionalTensor(y->detach()) : y; };
  static const auto op = find_operator<decltype(kernel)>("cortado::_running_max");
  return op.call(x.detach(), detached(initial), cu_seqlens, detached(decay));
}

// No gradient: the results that use a maximum do not depend on it.
TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m,
                  "_running_max(Tensor x, Tensor? initial=None, Tensor? cu_seqlens=None, Tensor? decay=None) -> "
                  "(Tensor maximum, Tensor before, Tensor final_maximum)",
                  kernel, meta, torch::CppFunction::makeFallthrough());
}

}  // namespace cortado
