#include "cortado/mechanisms/shared/part_scan.h"

#include <gtest/gtest.h>

#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/testing/parts.h"

namespace cortado::part_scan_test {
namespace {

using testing::expect_same;
using testing::MadeOfStart;

Tensor draw(at::IntArrayRef sizes, double scale = 1) {
  return (at::randn(sizes, at::kDouble) * scale).requires_grad_();
}

constexpr int64_t kTokens = 67;  // a piece has 64

// Numbers per token, so many that pieces have the minimum length.
constexpr int64_t kHeads = 16, kKeys = 1024, kValues = 2;

TEST(PartScan, ComposesWhatAGatedScanLeaves) {
  at::manual_seed(1);
  const Tensor k = draw({1, kTokens, kHeads, kKeys}), v = draw({1, kTokens, kHeads, kValues});
  const Tensor start = draw({1, kHeads, kKeys, kValues});
  const std::vector<std::vector<int64_t>> shapes = {
      {}, {kHeads}, {kHeads, kKeys}, {1, kTokens, kHeads}, {1, kTokens, kHeads, kKeys}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << "gates of " << shape.size() << " dimensions");
    OptionalTensor g;
    Tensors inputs = {k, v, start};
    if (!shape.empty()) inputs.push_back(*(g = (-at::rand(shape, at::kDouble) / 20).requires_grad_()));
    const Tensor last = std::get<1>(gated_scan(k, k, v, g, "key", {}, {}, start));
    expect_same({state_before_part(k, v, g, start, MadeOfStart())}, {last}, inputs);
  }
}

TEST(PartScan, AGateOfNothingForgetsAll) {
  const Tensor k = draw({2, 5, 1, 3}), v = draw({2, 5, 1, 2}), start = draw({2, 1, 3, 2});
  Tensor g = at::full({2, 5, 1}, -0.5, at::kDouble);
  g.select(1, 2).fill_(-std::numeric_limits<double>::infinity());
  const Tensor last = std::get<1>(gated_scan(k, k, v, g, "key", {}, {}, start));
  expect_same({state_before_part(k, v, g, start, MadeOfStart())}, {last}, {k, v, start});
}

TEST(PartScan, ComposesWhatADeltaScanLeaves) {
  at::manual_seed(2);
  const int64_t heads = 256, keys = 64;
  const Tensor k = draw({1, kTokens, heads, keys}, 0.1), v = draw({1, kTokens, heads, kValues});
  const Tensor beta = at::rand({1, kTokens, heads}, at::kDouble).requires_grad_();
  const Tensor start = draw({1, heads, keys, kValues});
  const Tensor g = (-at::rand({1, kTokens, heads, keys}, at::kDouble) / 20).requires_grad_();
  for (const OptionalTensor& gates : {OptionalTensor(), OptionalTensor(g)}) {
    Tensors inputs = {k, v, beta, start};
    if (gates) inputs.push_back(g);
    const Tensor last = std::get<1>(delta_scan(k, k, v, beta, gates, {}, start));
    expect_same({delta_state_before_part(k, v, beta, gates, start, MadeOfStart())}, {last}, inputs);
  }
}

}  // namespace
}  // namespace cortado::part_scan_test
