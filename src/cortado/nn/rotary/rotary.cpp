#include "cortado/nn/rotary/rotary.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "cortado/base/error.h"

namespace cortado {
namespace {

constexpr size_t kMostFrequencies = 64;                // sets of frequencies that a thread keeps
constexpr int64_t kMostKeptAngles = int64_t{1} << 22;  // of the table that a thread keeps: 32 MiB in float32

const std::vector<double>& listed_factors(const RotaryScaling& scaling) {
  if (scaling.type == RotaryScaling::Type::kFactors) return scaling.factors;
  return scaling.context > scaling.original_context ? scaling.long_factors : scaling.short_factors;
}

// What yarn multiplies each frequency by: from 1 to 1/factor, float64.
Tensor yarn_shares(int64_t channels, const Rotary& rotary) {
  const RotaryScaling& scaling = rotary.scaling;
  fail_input_if(rotary.theta <= 1, "[rotary] yarn needs a theta above 1, got ", rotary.theta);
  // The number i of a frequency that turns so often in the original context.
  const auto number = [&](double turns) {
    return static_cast<double>(channels) *
           std::log(static_cast<double>(scaling.original_context) / (turns * 2 * M_PI)) / (2 * std::log(rotary.theta));
  };
  double first = number(scaling.beta_fast), last = number(scaling.beta_slow);
  if (scaling.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(channels - 1));
  if (first == last) last += 0.001;  // as transformers
  const Tensor stretched = ((at::arange(channels / 2, at::kDouble) - first) / (last - first)).clamp_(0, 1);
  return 1 - stretched * (1 - 1 / scaling.factor);
}

// theta^(-2i/channels), scaled, float64.
Tensor make_frequencies(int64_t channels, const Rotary& rotary, const at::TensorOptions& options) {
  Tensor plain =
      at::arange(0, channels, 2, options).mul_(-std::log(rotary.theta) / static_cast<double>(channels)).exp_();
  const RotaryScaling& scaling = rotary.scaling;
  if (scaling.type == RotaryScaling::Type::kNone) return plain;
  if (scaling.type == RotaryScaling::Type::kLinear) return plain / scaling.factor;
  if (scaling.type == RotaryScaling::Type::kYarn) return plain * yarn_shares(channels, rotary).to(options.device());
  if (const int64_t listed = scaling.listed()) {
    fail_input_if(listed != channels / 2, "[rotary] ", channels, " channels need ", channels / 2, " factors, got ",
                  listed);
    return plain / at::tensor(listed_factors(scaling), at::kDouble).to(options.device());
  }
  const Tensor turns = plain * (static_cast<double>(scaling.original_context) / (2 * M_PI));  // per original context
  const Tensor kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp_(0, 1);
  return plain * (kept + (1 - kept) / scaling.factor);
}

// Returns one row of positions if all rows are equal (a dense batch from zero), so that one table row serves all.
Tensor different_rows(const Tensor& positions) {
  const bool same = positions.size(0) > 1 && positions.stride(0) == 0;
  return same ? positions.narrow(0, 0, 1) : positions;
}

RotaryTable make_table(const Tensor& positions, int64_t channels, const Rotary& rotary, at::ScalarType type) {
  const Tensor rows = different_rows(positions);
  const auto wide = rows.options().dtype(at::kDouble);
  const Tensor angles = rows.unsqueeze(-1).unsqueeze(-1) * rotary_frequencies(channels, rotary, rows.device());
  const double factor = rotary.scaling.attention_factor;
  const auto narrowed = [&](Tensor& (*function)(Tensor&, const Tensor&)) {  // in one kernel
    Tensor result = at::empty(angles.sizes(), wide.dtype(type));
    function(result, angles);
    return factor == 1 ? result : result.mul_(factor);
  };
  return {narrowed(at::cos_out), narrowed(at::sin_out)};
}

// All layers of a model use the same angles, so each thread keeps its last table. On other devices comparing positions
// would wait for all work in progress.
struct LastTable {
  Tensor positions;
  int64_t channels = 0;
  at::ScalarType type = at::kFloat;
  Rotary rotary = 1e4;
  RotaryTable table;

  bool serves(const Tensor& wanted, int64_t size, const Rotary& angles, at::ScalarType kind) const {
    return positions.defined() && size == channels && kind == type && angles == rotary &&
           positions.sizes() == wanted.sizes() && at::equal(positions, wanted);
  }
};

}  // namespace

Tensor rotary_frequencies(int64_t channels, const Rotary& rotary, at::Device device) {
  struct Known {
    int64_t channels;
    at::Device device;
    Rotary rotary;
    Tensor frequencies;
  };
  thread_local std::vector<Known> known;  // every layer asks for them at every token
  for (const Known& one : known) {
    if (one.channels == channels && one.device == device && one.rotary == rotary) return one.frequencies;
  }
  if (known.size() >= kMostFrequencies) known.clear();
  const c10::InferenceMode ordinary(false);  // usable by callers in any mode
  const Tensor made = make_frequencies(channels, rotary, at::TensorOptions(at::kDouble).device(device));
  return known.emplace_back(channels, device, rotary, made).frequencies;
}

RotaryTable rotary_table(const Tensor& positions, int64_t head_dim, const Rotary& rotary, at::ScalarType type) {
  const int64_t channels = rotary.channels_of(head_dim);
  fail_input_if(channels < 2 || channels % 2 != 0, "[rotary] the head size must be even, got ", channels);
  const bool kept = positions.is_cpu() && positions.stride(0) != 0 &&
                    positions.numel() <= kMostKeptAngles / (channels / 2);  // else every layer computes it
  if (!kept) return make_table(positions, channels, rotary, type);
  thread_local LastTable last;
  if (!last.serves(positions, channels, rotary, type)) {
    const c10::InferenceMode ordinary(false);  // usable by callers in any mode
    const at::NoGradGuard no_grad;
    last = {positions.clone(), channels, type, rotary, make_table(positions, channels, rotary, type)};
  }
  return last.table;
}

std::optional<RotaryScaling> llama3_scaling(const std::vector<double>& factors, double theta) {
  const auto usual = [](double factor) { return factor > 0 && factor <= 1e9; };
  if (!std::all_of(factors.begin(), factors.end(), usual)) return std::nullopt;
  RotaryScaling scaling;
  scaling.type = RotaryScaling::Type::kLlama3;
  scaling.factor = factors.empty() ? 1.0 : *std::max_element(factors.begin(), factors.end());
  if (scaling.factor <= 1) return std::nullopt;
  const auto frequency = [&](size_t i) {
    return std::pow(theta, -static_cast<double>(i) / static_cast<double>(factors.size()));
  };
  const auto kept = [&](size_t i) { return (1 / factors[i] - 1 / scaling.factor) / (1 - 1 / scaling.factor); };
  scaling.original_context = 0;
  // A frequency between the two limits determines the original context.
  for (size_t i = 0; i < factors.size() && scaling.original_context == 0; ++i) {
    if (kept(i) < 0.01 || kept(i) > 0.99) continue;
    const double turns = scaling.low + kept(i) * (scaling.high - scaling.low);
    scaling.original_context = std::llround(turns * 2 * M_PI / frequency(i));
  }
  if (scaling.original_context == 0) return std::nullopt;
  RotaryScaling given;
  given.type = RotaryScaling::Type::kFactors;
  given.factors = factors;
  const auto all = [&](const RotaryScaling& one) {
    return rotary_frequencies(2 * static_cast<int64_t>(factors.size()), Rotary(theta, one), at::kCPU);
  };
  return at::allclose(all(scaling), all(given), 1e-4, 0) ? std::optional(scaling) : std::nullopt;
}

Tensor sinusoidal_positions(const Tensor& positions, int64_t dim, at::ScalarType type) {
  const Tensor rows = different_rows(positions).to(at::kDouble);
  const Tensor exponent = at::arange(0, dim, 2, rows.options()).mul_(-std::log(1e4) / static_cast<double>(dim));
  const Tensor angles = rows.unsqueeze(-1) * exponent.exp_();
  const Tensor pairs = at::stack({angles.sin(), angles.cos()}, -1).flatten(-2);
  return pairs.narrow(-1, 0, dim).to(type);
}

}  // namespace cortado
