// The GPU kernels for a single token's layers, run on the host (cuda/emulate.h), against float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>

#include "cortado/nn/token/kernel.cu"
#include "cortado/nn/token/on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::token_gpu_test {
namespace {

using testing::alone, testing::expect_near;
using token::Map;

cuda::EmulatedMachine machine_in(gpu::Order order) {
  return cuda::EmulatedMachine(
      {{"linear_of_8_rows",
        cuda::kernel_of<token::GpuLinear>([](const auto& in) { token::LinearOfFewRows<1>(in).run(); })},
       {"linear_of_16_rows",
        cuda::kernel_of<token::GpuLinear>([](const auto& in) { token::LinearOfFewRows<2>(in).run(); })},
       {"linear_of_32_rows",
        cuda::kernel_of<token::GpuLinear>([](const auto& in) { token::LinearOfFewRows<4>(in).run(); })},
       {"linear_of_64_rows",
        cuda::kernel_of<token::GpuLinear>([](const auto& in) { token::LinearOfFewRows<8>(in).run(); })},
       {"rms_norm", cuda::kernel_of<token::GpuNorm>([](const auto& in) { token::rms_norm(in); })}},
      order);
}

const std::vector<gpu::Order> kOrders = {{}, {.backwards = true}, {.warps_alone = true}};

Tensor numbers(at::IntArrayRef sizes) { return alone(at::randn(sizes).to(at::kBFloat16)); }
Tensor wide(const Tensor& x) { return x.to(at::kDouble); }

Map map_of(int64_t out, int64_t in, bool bias) {
  return {numbers({out, in}), bias ? OptionalTensor(numbers({out})) : std::nullopt};
}
Tensor right(const Tensor& x, const Map& map) {
  const Tensor y = at::matmul(wide(x), wide(map.weight).t());
  return map.bias ? y + wide(*map.bias) : y;
}

void check_linear(int64_t rows, int64_t in, const std::vector<int64_t>& outs, gpu::Order order) {
  at::manual_seed(3);
  auto machine = machine_in(order);
  const Tensor x = numbers({rows, 1, in});
  std::vector<Map> maps;
  for (const int64_t out : outs) maps.push_back(map_of(out, in, maps.size() % 2 == 1));
  const auto found = token::linear_on_gpu(x, maps, machine);
  ASSERT_EQ(found.size(), outs.size());
  for (size_t i = 0; i < outs.size(); ++i) expect_near(found[i], right(x, maps[i]), "y", 3e-3);
}

TEST(TokenOnGpu, LinearMapsAreTheDefinition) {
  for (const gpu::Order order : kOrders) {
    check_linear(1, 768, {48, 16, 33}, order);
    check_linear(8, 40, {7}, order);
    check_linear(9, 1032, {16, 1, 50, 17}, order);
    check_linear(16, 8, {20, 24}, order);
    check_linear(27, 520, {18}, order);
    check_linear(64, 1032, {31, 9}, order);
  }
}

TEST(TokenOnGpu, GatedMapsAreTheDefinition) {
  for (const gpu::Order order : kOrders) {
    for (const auto& [rows, in, out] : {std::tuple{1, 320, 20}, {3, 2048, 8}, {13, 24, 3}, {64, 272, 11}}) {
      auto machine = machine_in(order);
      const Tensor x = numbers({rows, in}) * 0.3;
      const Map gate = map_of(out, in, true), up = map_of(out, in, rows > 1);
      expect_near(token::gated_silu_on_gpu(x, gate, up, machine), at::silu(right(x, gate)) * right(x, up), "y", 8e-3);
    }
  }
}

TEST(TokenOnGpu, AMapIsAddedToTheStreamThatItBelongsTo) {
  auto machine = machine_in({});
  const Tensor x = numbers({5, 1, 72}), stream = numbers({5, 1, 24});
  Map map = map_of(24, 72, true);
  const Tensor y = token::linear_on_gpu(x, {map}, machine)[0];
  map.onto = stream;
  EXPECT_TRUE(at::equal(token::linear_on_gpu(x, {map}, machine)[0], stream + y));
}

// A row's result does not depend on the other rows.
TEST(TokenOnGpu, ARowIsTheSameAlone) {
  auto machine = machine_in({});
  const Tensor x = numbers({11, 264});
  const std::vector<Map> maps = {map_of(40, 264, true)};
  const Tensor all = token::linear_on_gpu(x, maps, machine)[0];
  EXPECT_TRUE(at::equal(all.narrow(0, 10, 1), token::linear_on_gpu(x.narrow(0, 10, 1), maps, machine)[0]));
}

void check_norm(int64_t rows, int64_t groups, int64_t width, bool branch, gpu::Order order) {
  auto machine = machine_in(order);
  const Tensor x = numbers({rows, groups * width}), weight = numbers({groups * width});
  const OptionalTensor more = branch ? OptionalTensor(numbers(x.sizes())) : std::nullopt;
  const auto found = token::rms_norm_on_gpu(x, more, weight, 1e-3, groups, machine);
  const Tensor sum = branch ? x + *more : x;
  EXPECT_TRUE(at::equal(found.sum, sum));
  const Tensor parts = wide(sum).unflatten(1, {groups, width});
  const Tensor y = parts * (parts.square().mean(-1, true) + 1e-3).rsqrt();
  expect_near(found.y, y.flatten(1) * wide(weight), "y", 4e-3);
  // Rounded before the multiplication by the weight, as in ATen.
  const Tensor same = (y.flatten(1).to(at::kBFloat16) * weight).to(at::kDouble);
  EXPECT_LT((found.y.to(at::kDouble) - same).abs().gt(same.abs() * 1e-5).to(at::kDouble).mean().item<double>(), 0.02);
}

TEST(TokenOnGpu, NormsAreTheDefinition) {
  for (const gpu::Order order : kOrders) {
    check_norm(1, 1, 768, false, order);
    check_norm(3, 1, 2056, true, order);
    check_norm(2, 4, 8, false, order);
    check_norm(2, 3, 40, true, order);
  }
}

}  // namespace
}  // namespace cortado::token_gpu_test
