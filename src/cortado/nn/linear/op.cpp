#include "cortado/nn/linear/op.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "cortado/nn/matmul.h"
#include "cortado/nn/token/on_gpu.h"
#include "cortado/primitives/choice.h"

namespace cortado {
namespace {

constexpr int64_t kWorthAChoice = 256;  // rows

bool autocasts(const Tensor& x) { return at::autocast::is_autocast_enabled(x.device().type()); }

// Whether the product is large and in float32; then the faster library computes it.
bool is_large(const Tensor& x, const Tensor& weight) {
  return x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat && x.dim() >= 2 &&
         x.numel() >= kWorthAChoice * weight.size(1) && !autocasts(x);
}

bool has_16_bits(const Tensor& weight) {
  return weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kHalf;
}

std::vector<token::Map> few(const std::vector<const Linear*>& maps) {
  std::vector<token::Map> found;
  for (const Linear* map : maps) found.push_back({map->weight, map->bias});
  return found;
}

std::vector<Tensor> multiply_packed(const Tensor& x, const std::vector<const Linear*>& maps) {
  std::vector<const NarrowWeight*> packed;
  std::vector<OptionalTensor> biases;
  for (const Linear* map : maps) {
    packed.push_back(map->packed().get());
    biases.push_back(map->bias);
  }
  return NarrowWeight::multiply(x, packed, biases);
}

}  // namespace

Tensor linear_map(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return choose(
      "linear map", x,
      on_gpu(
          "kernel of few rows", [&] { return token::gpu_multiplies(x, {{weight, bias}}); },
          [&] { return token::linear(x, {{weight, bias}})[0]; }),
      on_cpu(
          "kernel of few rows", [&] { return !autocasts(x) && few_rows_linear_takes(x, weight, bias); },
          [&] { return few_rows_linear(x, weight, bias); }),
      anywhere(
          "16-bit weight", [&] { return has_16_bits(weight) && x.scalar_type() == at::kFloat && !autocasts(x); },
          [&] { return short_linear(x, weight, bias); }),
      on_cpu(
          "oneDNN", [&] { return is_large(x, weight) && onednn_is_faster(); },
          [&] { return onednn_linear(x, weight, bias); }),
      otherwise("torch", [&] { return at::linear(x, weight, bias); }));
}

std::vector<Tensor> forward_all(const Tensor& x, const std::vector<const Linear*>& maps) {
  const auto all = [&](auto property) { return std::all_of(maps.begin(), maps.end(), property); };
  const auto plain = [&] { return all([](const Linear* map) { return map->plain(); }); };
  return choose(
      "linear maps", x,
      on_gpu(
          "kernel of few rows", [&] { return plain() && token::gpu_multiplies(x, few(maps)); },
          [&] { return token::linear(x, few(maps)); }),
      anywhere(
          "8 or 4 bits", [&] { return plain() && all([](const Linear* map) { return map->packed() != nullptr; }); },
          [&] { return multiply_packed(x, maps); }),
      otherwise("one by one", [&] {
        std::vector<Tensor> results;
        for (const Linear* map : maps) results.push_back(map->forward(x));
        return results;
      }));
}

Tensor linear_onto(const Tensor& stream, const Tensor& x, const Linear& map) {
  const auto added = [&]() -> token::Map { return {map.weight, map.bias, stream}; };
  return choose("linear onto", x,
                on_gpu(
                    "kernel of few rows", [&] { return map.plain() && token::gpu_multiplies(x, {added()}); },
                    [&] { return token::linear(x, {added()})[0]; }),
                otherwise("linear, sum", [&] { return stream + map.forward(x); }));
}

}  // namespace cortado
