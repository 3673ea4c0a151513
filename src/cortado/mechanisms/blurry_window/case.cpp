// What is measured of blurry_window's operator.
#include "cortado/mechanisms/blurry_window/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

// Odd, and each slot for two tokens.
BlurrySizes blurry_sizes(int64_t size) { return {.slots = size | 1, .period = 2 * (size | 1)}; }

}  // namespace

OperatorCase blurry_case() {
  OperatorCase c{.name = "blurry_window", .operation = "blurry_window", .note = "size + 1 slots of two tokens each"};
  c.inputs = qkv;
  c.call = [](const Tensors& in, const Tensors& carried) {
    BlurryOptions options{.sizes = blurry_sizes(in[0].size(3))};
    options.key_state = part(carried, 0);
    options.value_state = part(carried, 1);
    if (!carried.empty()) options.position = at::full({1}, kCheckedTokens, at::kLong);
    return blurry_window(in[0], in[1], in[2], options).tensors();
  };
  c.reference = [](const Tensors& in) {
    const int64_t size = in[0].size(3);
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    return Tensors{blurry_window_reference(in[0], in[1], in[2], blurry_sizes(size), true, scale)};
  };
  c.work = [](const OperatorSizes& s) {
    const auto slots = static_cast<double>(s.heads * blurry_sizes(s.size).slots);
    return Work{8 * slots * static_cast<double>(s.size), slots};
  };
  return c;
}

}  // namespace cortado
