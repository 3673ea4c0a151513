#include "cortado/nn/rotary.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "cortado/base/error.h"
#include "cortado/nn/fused/ops.h"
#include "cortado/nn/wide.h"
#include "cortado/primitives/window_attention/rotary_on_gpu.h"

namespace cortado {
namespace {

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const Tensor wide = x.to(cos.scalar_type());
  const auto halves = wide.chunk(2, -1);
  const Tensor first = (halves[0] * cos).addcmul_(halves[1], sin, -1);
  const Tensor second = (halves[1] * cos).addcmul_(halves[0], sin);
  return at::cat({first, second}, -1).to(x.scalar_type());
}

// A rotation's adjoint is the rotation back: no intermediate needs to be kept.
class Rotate : public torch::autograd::Function<Rotate> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& cos,
                        const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return turn(x, cos, sin);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {turn(gradients[0], saved[0], -saved[1]), Tensor(), Tensor()};
  }
};

constexpr size_t kMostFrequencies = 64;                // kinds of frequencies that a thread keeps
constexpr int64_t kMostKeptAngles = int64_t{1} << 22;  // in the table that it keeps: 32 MiB in float32

// theta^(-2i/channels), scaled, float64.
Tensor make_frequencies(int64_t channels, const Rotary& rotary, const at::TensorOptions& options) {
  const Tensor plain =
      at::arange(0, channels, 2, options).mul_(-std::log(rotary.theta) / static_cast<double>(channels)).exp_();
  const RotaryScaling& scaling = rotary.scaling;
  if (scaling.type == RotaryScaling::Type::kNone) return plain;
  if (scaling.type == RotaryScaling::Type::kLinear) return plain / scaling.factor;
  if (scaling.type == RotaryScaling::Type::kFactors) {
    fail_input_if(static_cast<int64_t>(scaling.factors.size()) != channels / 2, "[rotary] ", channels,
                  " channels need ", channels / 2, " factors, got ", scaling.factors.size());
    return plain / at::tensor(scaling.factors, at::kDouble).to(options.device());
  }
  const Tensor turns = plain * (static_cast<double>(scaling.original_context) / (2 * M_PI));  // in the old context
  const Tensor kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp_(0, 1);
  return plain * (kept + (1 - kept) / scaling.factor);
}

// Of K/2 pairs of channels, float64. A model asks for the same ones once a layer and token: kept.
Tensor frequencies(int64_t channels, const Rotary& rotary, const at::TensorOptions& options) {
  thread_local std::map<std::tuple<int64_t, double, std::string, std::string>, Tensor> known;
  const bool scaled = rotary.scaling.type != RotaryScaling::Type::kNone;
  const std::tuple key(channels, rotary.theta, options.device().str(), scaled ? rotary.scaling.to_json().dump() : "");
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (known.size() >= kMostFrequencies) known.clear();
  const c10::InferenceMode ordinary(false);  // kept for callers in any mode
  return known[key] = make_frequencies(channels, rotary, options);
}

constexpr double kLargestFactor = 1e9;

// A dense batch from zero has the same positions in every row: one row of a table serves all. float64.
Tensor different_rows(const Tensor& positions) {
  const bool same = positions.size(0) > 1 && positions.stride(0) == 0;
  return same ? positions.narrow(0, 0, 1) : positions;
}

RotaryTable make_table(const Tensor& positions, int64_t head_dim, const Rotary& rotary, at::ScalarType type) {
  const Tensor rows = different_rows(positions);
  const auto wide = rows.options().dtype(at::kDouble);
  const Tensor angles = rows.unsqueeze(-1).unsqueeze(-1) * frequencies(head_dim, rotary, wide);
  const auto narrowed = [&](Tensor& (*function)(Tensor&, const Tensor&)) {  // in one kernel
    Tensor result = at::empty(angles.sizes(), wide.dtype(type));
    return function(result, angles);
  };
  return {narrowed(at::cos_out), narrowed(at::sin_out)};
}

// All layers of a model turn by the same angles: a thread keeps its last table. On other devices a look at the
// positions would wait for all work before.
struct LastTable {
  Tensor positions;
  int64_t head_dim = 0;
  at::ScalarType type = at::kFloat;
  Rotary rotary = 1e4;
  RotaryTable table;

  bool serves(const Tensor& wanted, int64_t size, const Rotary& angles, at::ScalarType kind) const {
    return positions.defined() && size == head_dim && kind == type && angles == rotary &&
           positions.sizes() == wanted.sizes() && at::equal(positions, wanted);
  }
};

}  // namespace

RotaryScaling RotaryScaling::from_json(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  RotaryScaling read;
  const std::string type = reader.choice("type", {"linear", "llama3", "factors"});
  if (type == "factors") {
    read.type = Type::kFactors;
    const Json list = reader.any("factors");
    if (!list.is_array() || list.empty()) reader.fail("key \"factors\": expected a list of numbers");
    for (const Json& number : list) {
      const double value = number.is_number() ? number.get<double>() : 0.0;
      if (!(value > 0 && value <= kLargestFactor)) reader.fail("key \"factors\": expected positive numbers");
      read.factors.push_back(value);
    }
  } else {
    read.type = type == "linear" ? Type::kLinear : Type::kLlama3;
    read.factor = reader.number("factor", 1.0 / kLargestFactor, kLargestFactor);
  }
  if (read.type == Type::kLlama3) {
    read.low = reader.number("low_freq_factor", 0.0, kLargestFactor, read.low);
    read.high = reader.number("high_freq_factor", 0.0, kLargestFactor, read.high);
    read.original_context = reader.integer("original_context", 1, int64_t{1} << 40, read.original_context);
    reader.fail_if(read.high <= read.low, "high_freq_factor (", read.high, ") must be above low_freq_factor (",
                   read.low, ")");
  }
  reader.finish();
  return read;
}

Json RotaryScaling::to_json() const {
  if (type == Type::kNone) return Json::object();
  if (type == Type::kLinear) return {{"type", "linear"}, {"factor", factor}};
  if (type == Type::kFactors) return {{"type", "factors"}, {"factors", factors}};
  return {{"type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", low},
          {"high_freq_factor", high},
          {"original_context", original_context}};
}

RotaryTable rotary_table(const Tensor& positions, int64_t head_dim, const Rotary& rotary, at::ScalarType type) {
  fail_input_if(head_dim < 2 || head_dim % 2 != 0, "[rotary] the head size must be even, got ", head_dim);
  const bool kept = positions.is_cpu() && positions.stride(0) != 0 &&
                    positions.numel() <= kMostKeptAngles / (head_dim / 2);  // all layers then form a longer one anew
  if (!kept) return make_table(positions, head_dim, rotary, type);
  thread_local LastTable last;
  if (!last.serves(positions, head_dim, rotary, type)) {
    const c10::InferenceMode ordinary(false);  // the table may be asked for in any mode
    const at::NoGradGuard no_grad;
    last = {positions.clone(), head_dim, type, rotary, make_table(positions, head_dim, rotary, type)};
  }
  return last.table;
}

Tensor rotate(const Tensor& x, const RotaryTable& table) {
  const int64_t turned = 2 * table.cos.size(3);
  fail_input_if(x.dim() != 4 || x.size(3) < turned, "[rotary] expected [B, T, H, ", turned, " or more], got ",
                x.sizes());
  const bool each = table.cos.size(1) == x.size(1);  // else one angle for all tokens
  if (each && fused::takes({x, table.cos})) return fused::rotary(x, table.cos, table.sin);
  if (each && window::gpu_turns(x, table.cos)) return window::turn(x, table.cos, table.sin);
  if (x.size(3) > turned) {
    return at::cat({rotate(x.narrow(3, 0, turned), table), x.narrow(3, turned, x.size(3) - turned)}, 3);
  }
  if (at::GradMode::is_enabled() && x.requires_grad()) return Rotate::apply(x, table.cos, table.sin);
  return turn(x, table.cos, table.sin);
}

std::optional<RotaryScaling> llama3_scaling(const std::vector<double>& factors, double theta) {
  const auto usual = [](double factor) { return factor > 0 && factor <= kLargestFactor; };
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
  // A frequency that is neither kept nor stretched whole says how long it was.
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
    return frequencies(2 * static_cast<int64_t>(factors.size()), Rotary(theta, one), at::TensorOptions(at::kDouble));
  };
  return at::allclose(all(scaling), all(given), 1e-4, 0) ? std::optional(scaling) : std::nullopt;
}

Tensor apply_rotary(const Tensor& x, const Tensor& positions, const Rotary& rotary) {
  return rotate(x, rotary_table(positions, x.size(-1), rotary, wide_type(x)));
}

void rotate_queries_and_keys(Tensor& q, Tensor& k, const Tensor& positions, const std::optional<Rotary>& rotary,
                             std::optional<int64_t> channels) {
  if (!rotary) return;
  const int64_t turned = channels.value_or(q.size(-1));
  if (q.is_cuda() && turned % 2 == 0 && window::gpu_turns_token(q, k, turned / 2)) {
    const auto both =
        window::turn_token(q, k, positions, frequencies(turned, *rotary, positions.options().dtype(at::kDouble)));
    q = both.q;
    k = both.k;
    return;
  }
  const RotaryTable table = rotary_table(positions, turned, *rotary, wide_type(q));
  q = rotate(q, table);
  k = rotate(k, table);
}

Tensor sinusoidal_positions(const Tensor& positions, int64_t dim, at::ScalarType type) {
  const Tensor rows = different_rows(positions).to(at::kDouble);
  const Tensor exponent = at::arange(0, dim, 2, rows.options()).mul_(-std::log(1e4) / static_cast<double>(dim));
  const Tensor angles = rows.unsqueeze(-1) * exponent.exp_();
  const Tensor pairs = at::stack({angles.sin(), angles.cos()}, -1).flatten(-2);
  return pairs.narrow(-1, 0, dim).to(type);
}

}  // namespace cortado
