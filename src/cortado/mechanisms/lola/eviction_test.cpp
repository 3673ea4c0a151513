#include <gtest/gtest.h>

#include "cortado/mechanisms/lola/memory.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/kernels.h"

namespace cortado::lola_eviction_test {
namespace {

constexpr int64_t kRows = 2, kKeyHeads = 2, kHeads = 4;

struct Sizes {
  int64_t cached, leaving, kept, keys, values;
};

// φ(k) = [k², |k|] per head, so that no pair has zero features.
Tensor squares(const Tensor& k) { return at::cat({k * k, k.abs()}, -1); }

struct Inputs {
  LolaCache cache;
  LolaPairs leaving;

  explicit Inputs(const Sizes& sizes) {
    at::manual_seed(sizes.cached + sizes.leaving);
    const auto pairs = [](int64_t count, int64_t heads, int64_t width) {
      return expand_heads(at::randn({kRows, count, heads, width}), kHeads);
    };
    const auto some = [&](int64_t count, int64_t heads) {
      return LolaPairs{pairs(count, heads, sizes.keys), pairs(count, heads, sizes.values), {}};
    };
    cache = {some(sizes.cached, kHeads), at::rand({kRows, kHeads, 2 * sizes.keys, sizes.values + 1})};
    leaving = some(sizes.leaving, kKeyHeads);
    cache.sums[0].zero_();  // the first row's state is empty, so it answers 0
  }

  LolaCache evicted(int64_t kept, at::ScalarType type) const {
    const auto as = [&](const LolaPairs& x, int64_t how) {
      return LolaPairs{testing::awkward(x.k.to(type), how), testing::awkward(x.v.to(type), (how + 1) % 3), {}};
    };
    LolaRule rule;
    rule.cache = kept;
    return evict({as(cache.pairs, 1), cache.sums.to(type)}, as(leaving, 2), rule, squares);
  }
};

// The kernel keeps and adds what the tensor form does in float64. The mechanism's reference tests the tensor form.
TEST(LolaEviction, KernelEqualsTensors) {
  const at::NoGradGuard inference;
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  for (const std::string& isa : available_isas()) {
    select_isa(isa);
    for (const Sizes& sizes : {Sizes{0, 8, 3, 8, 8},
                               {20, 16, 20, 64, 64},
                               {7, 30, 9, 5, 11},
                               {9, 1, 9, 3, 1},
                               {0, 5, 0, 4, 4},
                               {100, 64, 100, 21, 16}}) {
      SCOPED_TRACE(concat(isa, ", ", sizes.cached, " cached, ", sizes.leaving, " leaving"));
      const Inputs inputs(sizes);
      const LolaCache got = inputs.evicted(sizes.kept, at::kFloat), right = inputs.evicted(sizes.kept, at::kDouble);
      ASSERT_EQ(got.pairs.k.size(1), sizes.kept);
      EXPECT_TRUE(at::equal(got.pairs.k.to(at::kDouble), right.pairs.k));
      EXPECT_TRUE(at::equal(got.pairs.v.to(at::kDouble), right.pairs.v));
      EXPECT_CLOSE(got.sums, right.sums, 1e-5);
    }
  }
}

// Among equal scores the older pair stays. A pair with NaN is kept in the cache, so that the sums stay finite.
TEST(LolaEviction, KeepsTheOlderOfEqualsAndWhatIsNotANumber) {
  const at::NoGradGuard inference;
  const testing::AnyIsa restore;
  for (const std::string& isa : available_isas()) {
    SCOPED_TRACE(isa);
    select_isa(isa);
    Inputs inputs({4, 4, 3, 8, 8});
    for (LolaPairs* pairs : {&inputs.cache.pairs, &inputs.leaving}) {
      pairs->k.fill_(1);
      pairs->v.fill_(1);
    }
    const auto number = [](const LolaPairs& pairs, int64_t i, double value) { pairs.k.select(1, i).fill_(value); };
    number(inputs.cache.pairs, 0, 2);
    number(inputs.cache.pairs, 1, 2);
    inputs.cache.sums.fill_(1);  // the state answers every pair equally well, whatever its key
    inputs.leaving.v.select(1, 3).fill_(NAN);
    const LolaCache got = inputs.evicted(3, at::kFloat);
    const Tensor keys = got.pairs.k.select(3, 0).select(2, 0), values = got.pairs.v.select(3, 0);
    EXPECT_TRUE(at::equal(keys, at::tensor({2.0f, 2.0f, 1.0f}).expand({kRows, 3}))) << keys;
    EXPECT_TRUE(values.select(1, 2).isnan().all().item<bool>()) << values;
    EXPECT_TRUE(got.sums.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace cortado::lola_eviction_test
