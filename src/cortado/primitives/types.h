// The types in the operators' signatures.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace cortado {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;

// std::tuple<Tensor, ..., Tensor>
template <size_t count>
using TensorTuple = decltype(std::tuple_cat(std::array<Tensor, count>()));

}  // namespace cortado
