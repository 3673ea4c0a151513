#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/time_softmax/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/kernels.h"

namespace cortado::time_softmax_test {
namespace {

struct Case {
  int64_t batch, tokens, heads, latents;
  bool initial;
  double size = 3;                   // of the logits
  std::vector<int64_t> bounds = {};  // packed when not empty

  std::string text() const {
    return concat("T=", tokens, " H=", heads, " L=", latents, initial ? " initial" : "", " size ", size,
                  bounds.empty() ? "" : " packed");
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t latents : {1, 7, 8, 16, 17, 31, 64, 65, 128}) {
    const int64_t tokens = 1 + latents * 13 % 150;
    all.push_back({2, tokens, 1 + latents % 3, latents, latents % 2 == 0});
    all.push_back({1, 100, 1, latents, latents % 2 == 1, 40, {0, 0, 1, 40, 79, 79, 100}});
  }
  all.push_back({1, 300, 1, 5, true, 1e4});
  all.push_back({1, 1, 4, 64, true});
  all.push_back({2, 0, 2, 3, true});
  return all;
}

// theta with runs of -inf at the start and in between, and a trend that makes new maxima throughout; the states.
struct Inputs {
  Tensor theta;
  OptionalTensor normalizer, maximum, bounds;

  std::vector<Tensor> leaves() const {
    return normalizer ? std::vector<Tensor>{theta, *normalizer} : std::vector<Tensor>{theta};
  }
};

Inputs make_inputs(const Case& c) {
  Inputs in;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Tensor trend = at::linspace(0, c.size, c.tokens, options).view({1, -1, 1, 1});
  Tensor theta = at::randn({c.batch, c.tokens, c.heads, c.latents}, options) * c.size + trend;
  theta = theta.masked_fill(at::rand_like(theta) < 0.1, -kInfinity);
  if (c.tokens > 8) theta.narrow(1, 0, 4).masked_fill_(at::rand({c.latents}) < 0.5, -kInfinity);
  in.theta = theta.to(at::kFloat).to(at::kDouble);
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  if (c.initial) {
    const Tensor m = at::randn({rows, c.heads, c.latents}, options).to(at::kFloat).to(at::kDouble);
    const Tensor nothing = at::rand_like(m) < 0.3;
    in.maximum = m.masked_fill(nothing, -kInfinity);
    in.normalizer = (at::rand_like(m) + 1).to(at::kFloat).to(at::kDouble).masked_fill(nothing, 0);
  }
  if (!c.bounds.empty()) in.bounds = at::tensor(c.bounds, at::kLong);
  return in;
}

// Leaves of the type; theta has an unusual layout if `layout` names one.
Inputs as(const Inputs& in, at::ScalarType type, int64_t layout = -1) {
  const auto leaf = [&](const Tensor& x) { return x.detach().to(type).clone().requires_grad_(); };
  Inputs out = in;
  out.theta = leaf(in.theta);
  if (layout >= 0) out.theta = testing::awkward(out.theta.detach(), layout).detach().requires_grad_();
  if (in.normalizer) out.normalizer = leaf(*in.normalizer);
  if (in.maximum) out.maximum = in.maximum->to(type);
  return out;
}

std::vector<Tensor> parts(const TimeSoftmax& p) {
  return {p.keys, p.normalizer, p.last_normalizer, p.gate, p.maximum, p.last_maximum};
}

template <typename Softmax>
std::vector<Tensor> run(Softmax softmax, const Inputs& in) {
  return parts(softmax(in.theta, in.normalizer, in.maximum, in.bounds));
}

const char* const kParts[] = {"keys", "normalizer", "last_normalizer", "gate", "maximum", "last_maximum"};

// The first three have gradients.
void compare(const std::vector<Tensor>& got, const Inputs& in, const std::vector<Tensor>& wanted, const Inputs& exact,
             double tolerance) {
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_CLOSE(got[i], wanted[i], tolerance) << kParts[i];
  const std::vector<Tensor> left(got.begin(), got.begin() + 3), right(wanted.begin(), wanted.begin() + 3);
  at::manual_seed(4);
  const auto weights = testing::weights_like(right);
  testing::expect_gradients_close(testing::gradients(left, weights, in.leaves()),
                                  testing::gradients(right, weights, exact.leaves()), 3 * tolerance);
}

TEST(TimeSoftmax, EqualsItsDefinition) {
  at::manual_seed(1);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const Inputs in = make_inputs(c), a = as(in, at::kDouble), b = as(in, at::kDouble);
    compare(run(time_softmax, a), a, run(time_softmax_reference, b), b, 1e-12);
  }
}

TEST(TimeSoftmax, KernelEqualsTheDefinition) {
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  at::manual_seed(2);
  int64_t layout = 0;
  for (const Case& c : cases()) {
    const Inputs in = make_inputs(c), exact = as(in, at::kDouble);
    const auto wanted = run(time_softmax_reference, exact);
    for (const auto& isa : available_isas()) {
      SCOPED_TRACE(concat(isa, " ", c.text()));
      select_isa(isa);
      const Inputs floats = as(in, at::kFloat, layout++ % testing::kAwkward);
      compare(run(time_softmax, floats), floats, wanted, exact, 2e-6);
    }
  }
}

// Logits that rise a little at every token: the decays' errors must not add up over time.
TEST(TimeSoftmax, DoesNotDrift) {
  const testing::AnyIsa restore;
  const Tensor theta = at::arange(20000, at::kDouble).mul(1e-4).to(at::kFloat).view({1, -1, 1, 1});
  const auto wanted = time_softmax_reference(theta.to(at::kDouble)).normalizer;
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    EXPECT_CLOSE(time_softmax(theta).normalizer, wanted, 1e-5) << isa;
  }
}

TEST(TimeSoftmax, ContinuesFromItsStates) {
  at::manual_seed(3);
  const Tensor theta = at::randn({2, 100, 3, 20});
  const auto whole = time_softmax(theta);
  for (const int64_t cut : {1, 37, 64, 99}) {
    const auto a = time_softmax(theta.narrow(1, 0, cut));
    const auto b = time_softmax(theta.narrow(1, cut, 100 - cut), a.last_normalizer, a.last_maximum);
    EXPECT_CLOSE(at::cat({a.normalizer, b.normalizer}, 1), whole.normalizer, 1e-6);
    EXPECT_TRUE(at::equal(b.last_maximum, whole.last_maximum));
  }
}

TEST(TimeSoftmax, TheNumberOfThreadsChangesNothing) {
  const Tensor theta = at::randn({1, 1000, 2, 33});
  testing::expect_any_threads_the_same([&] { return parts(time_softmax(theta)); });
}

}  // namespace
}  // namespace cortado::time_softmax_test
