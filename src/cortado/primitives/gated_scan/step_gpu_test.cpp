// The GPU's kernel of one token, on the host (cuda/emulate.h), against the definitions in float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>

#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/gated_scan/kernel_step.cu"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/gated_scan/step_on_gpu.h"
#include "cortado/primitives/slot_scan/op.h"
#include "cortado/testing/kernels.h"

namespace cortado::step_gpu_test {
namespace {

using testing::alone, testing::before_the_end;
using namespace gated;

struct Case {
  int64_t batch = 3, heads = 4, state_heads = 2, keys = 64, values = 64;
  int64_t gate = 3;  // dimensions: 0 none, 3 per head, 4 per key
  bool read_values = false, bonus = false, delta = false, factors = false, short_numbers = false, state = true;
};

void check(const Case& c) {
  at::manual_seed(11);
  const auto type = c.short_numbers ? at::kBFloat16 : at::kFloat;
  const auto numbers = [&](int64_t heads, int64_t width) {
    return alone(at::randn({c.batch, 1, heads, width}).to(type));
  };
  const Tensor q = numbers(c.heads, c.read_values ? c.values : c.keys), k = numbers(c.state_heads, c.keys) * 0.2,
               v = numbers(c.state_heads, c.values);
  Tensor g, beta, bonus;
  if (c.gate) g = c.gate == 4 ? at::rand({c.batch, 1, c.state_heads, c.keys}) : at::rand({c.batch, 1, c.state_heads});
  if (c.gate && !c.factors) g = g.log();
  if (c.gate) g = alone(g);
  if (c.delta) beta = at::rand({c.batch, 1, c.state_heads});
  if (c.bonus) bonus = at::randn({c.heads, c.keys});
  const OptionalTensor start =
      c.state ? OptionalTensor(before_the_end(at::randn({c.batch, c.state_heads, c.keys, c.values}))) : std::nullopt;
  const auto wide = [](const Tensor& x) { return x.defined() ? OptionalTensor(x.to(at::kDouble)) : std::nullopt; };
  const OptionalTensor wide_start = start ? wide(*start) : std::nullopt;
  const double factor = 0.3;
  const auto right =
      c.delta     ? delta_scan_reference(*wide(q), *wide(k), *wide(v), *wide(beta), wide(g), factor, wide_start)
      : c.factors ? slot_scan_reference(*wide(q), *wide(k), *wide(v), *wide(g), c.read_values ? "channel" : "slot",
                                        factor, wide_start)
                  : gated_scan_reference(*wide(q), *wide(k), *wide(v), wide(g), c.read_values ? "value" : "key", factor,
                                         wide(bonus), wide_start);
  const OptionalTensor none;
  const Sizes sizes("test", none,
                    {{"k", k, "BThK"},
                     {"v", v, "BThV"},
                     {"q", q, c.read_values ? "BTqV" : "BTqK"},
                     {"initial_state", start, "NSKV"}});
  const ScanCall call{.name = "test",
                      .q = q,
                      .k = k,
                      .v = v,
                      .read_keys = !c.read_values,
                      .factor = factor,
                      .type = at::kFloat,
                      .heads = sizes.number('H'),
                      .state_heads = sizes.number('S'),
                      .initial_state = start,
                      .cu_seqlens = none,
                      .g = g,
                      .beta = beta,
                      .bonus = bonus,
                      .decay = c.factors ? DecayKind::kFactors : DecayKind::kLogs};
  cuda::EmulatedMachine machine({{"scan_step", cuda::kernel_of<GpuStep>([](const GpuStep& in) { Step(in).run(); })}});
  const FormOutputs out = step_on_gpu(call, machine);
  const Tensor &o = c.read_values ? out.y : out.w, &last = out.final_state;
  const auto near = [](const Tensor& found, const Tensor& other, double most) {
    ASSERT_EQ(found.sizes(), other.sizes());
    EXPECT_LT((found.to(at::kDouble) - other).norm().item<double>(), most * other.norm().item<double>());
  };
  near(o, std::get<0>(right), c.short_numbers ? 4e-3 : 1e-5);
  near(last, std::get<1>(right), 1e-5);
}

TEST(ScanStepOnGpu, IsTheDefinition) {
  for (const int64_t gate : {0, 3, 4}) {
    check({.gate = gate});
    check({.gate = gate, .read_values = true});
    check({.gate = gate, .delta = true});
  }
  check({.bonus = true});
  check({.gate = 4, .bonus = true, .state = false});
  check({.gate = 4, .factors = true});
  check({.gate = 4, .read_values = true, .factors = true});
}

TEST(ScanStepOnGpu, SizesAndTypes) {
  check({.keys = 128, .values = 200, .gate = 4});
  check({.keys = 200, .values = 128, .read_values = true});
  check({.heads = 2, .keys = 5, .values = 7, .gate = 4});
  check({.gate = 4, .short_numbers = true});
  check({.state = false});
}

}  // namespace
}  // namespace cortado::step_gpu_test
