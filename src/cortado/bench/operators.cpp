#include "cortado/bench/operators.h"

#include <torch/csrc/autograd/autograd.h>

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/base/words.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/dplr_scan/op.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/short_conv/op.h"
#include "cortado/primitives/slot_scan/op.h"
#include "cortado/primitives/window_attention/op.h"

namespace cortado {
namespace {

constexpr int64_t kTaps = 4;

Tensor unit(const Tensor& x) { return x / x.norm(2, -1, true); }

// Returns gates of that kind; nothing for "none".
Tensors gates_of(const std::string& gate, const OperatorSizes& s) {
  if (gate == "none") return {};
  return {gate == "channel" ? gates({1, s.tokens, s.heads, s.size})
          : gate == "head"  ? gates({1, s.tokens, s.heads})
                            : gates({s.heads})};
}

// Work per token and head: `products` flops per number of the state, and the exponentials of the gates.
std::function<Work(const OperatorSizes&)> scan_work(const std::string& gate, double products) {
  return [=](const OperatorSizes& s) {
    const double exps = gate == "channel" ? channels(s) : gate == "head" ? static_cast<double>(s.heads) : 0;
    return Work{products * state_elements(s), exps};
  };
}

OperatorCase gated_case(const std::string& gate, const std::string& read) {
  OperatorCase c{.name = "gated_scan/" + (read == "key" ? gate : read), .operation = "gated_scan"};
  c.note = concat(gate == "none"       ? "no"
                  : gate == "constant" ? "a constant"
                                       : "a " + gate,
                  " gate, read along the ", read, "s");
  c.inputs = [gate](const OperatorSizes& s) { return join(qkv(s), gates_of(gate, s)); };
  c.call = [read](const Tensors& in, const Tensors& carried) {
    return results(gated_scan(in[0], in[1], in[2], part(in, 3), read, {}, {}, part(carried, 0)));
  };
  c.reference = [read](const Tensors& in) {
    return results(gated_scan_reference(in[0], in[1], in[2], part(in, 3), read));
  };
  c.work = scan_work(gate, 4);
  return c;
}

OperatorCase slot_case(const std::string& read) {
  OperatorCase c{.name = "slot_scan/" + read, .operation = "slot_scan", .note = "read along the " + read + "s"};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {gates({1, s.tokens, s.heads, s.size}).exp()}); };
  c.call = [read](const Tensors& in, const Tensors& carried) {
    return results(slot_scan(in[0], in[1], in[2], in[3], read, {}, part(carried, 0)));
  };
  c.reference = [read](const Tensors& in) { return results(slot_scan_reference(in[0], in[1], in[2], in[3], read)); };
  c.work = scan_work("none", 4);
  return c;
}

OperatorCase delta_case(const std::string& gate) {
  OperatorCase c{.name = "delta_scan/" + gate, .operation = "delta_scan"};
  c.note = gate == "none" ? "no gate" : "a " + gate + " gate";
  c.inputs = [gate](const OperatorSizes& s) {
    const Tensors in{heads_of(s, s.size), unit(heads_of(s, s.size)), heads_of(s, s.size),
                     at::rand({1, s.tokens, s.heads})};
    return join(in, gates_of(gate, s));
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return results(delta_scan(in[0], in[1], in[2], in[3], part(in, 4), {}, part(carried, 0)));
  };
  c.reference = [](const Tensors& in) {
    return results(delta_scan_reference(in[0], in[1], in[2], in[3], part(in, 4)));
  };
  c.work = scan_work(gate, 6);
  return c;
}

OperatorCase dplr_case() {
  OperatorCase c{.name = "dplr_scan", .operation = "dplr_scan", .note = "a decay per channel, plus low rank"};
  c.inputs = [](const OperatorSizes& s) {
    const Tensor a = unit(heads_of(s, s.size)), rate = at::rand({1, s.tokens, s.heads, s.size});
    return join(qkv(s), {-a, a * rate, gates({1, s.tokens, s.heads, s.size})});
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return results(dplr_scan(in[0], in[1], in[2], in[3], in[4], in[5], {}, part(carried, 0)));
  };
  c.reference = [](const Tensors& in) {
    return results(dplr_scan_reference(in[0], in[1], in[2], in[3], in[4], in[5]));
  };
  c.work = scan_work("channel", 8);
  return c;
}

// A step is one query over the keys of a full window.
OperatorCase window_case(int64_t window) {
  const std::string size = window ? std::to_string(window) : "full";
  OperatorCase c{.name = "window_attention/" + size, .operation = "window_attention"};
  c.note = window ? concat("a window of ", window, " keys") : std::string("all keys before");
  WindowAttentionOptions options;
  if (window) options.window = window;
  c.inputs = qkv;
  c.call = [options](const Tensors& in, const Tensors& carried) {
    const Tensor &k = carried.empty() ? in[1] : carried[0], &v = carried.empty() ? in[2] : carried[1];
    return Tensors{std::get<0>(window_attention(in[0], k, v, options)), k, v};
  };
  c.reference = [options](const Tensors& in) {
    return Tensors{std::get<0>(window_attention_reference(in[0], in[1], in[2], options))};
  };
  c.work = [window](const OperatorSizes& s) { return window_work(s, window ? window : s.tokens); };
  c.most_tokens = window ? 0 : 16384;
  return c;
}

OperatorCase elementwise_case() {
  OperatorCase c{.name = "elementwise_scan", .operation = "elementwise_scan", .note = "D = heads x size channels"};
  c.inputs = [](const OperatorSizes& s) {
    const int64_t width = s.heads * s.size;
    return Tensors{gates({1, s.tokens, width}), at::randn({1, s.tokens, width})};
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return results(elementwise_scan(in[0], in[1], part(carried, 0)));
  };
  c.reference = [](const Tensors& in) { return results(elementwise_scan_reference(in[0], in[1])); };
  c.work = [](const OperatorSizes& s) { return Work{2 * channels(s), channels(s)}; };
  return c;
}

OperatorCase convolution_case() {
  OperatorCase c{.name = "short_conv", .operation = "short_conv"};
  c.note = concat(kTaps, " taps, SiLU, D = heads x size channels");
  c.inputs = [](const OperatorSizes& s) {
    const int64_t width = s.heads * s.size;
    return Tensors{at::randn({1, s.tokens, width}), at::randn({width, kTaps}) / 2};
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return results(short_conv(in[0], in[1], {}, "silu", part(carried, 0)));
  };
  c.reference = [](const Tensors& in) { return results(short_conv_reference(in[0], in[1], {}, "silu")); };
  c.work = [](const OperatorSizes& s) { return Work{2.0 * kTaps * channels(s), channels(s)}; };
  return c;
}

std::vector<OperatorCase> make_cases() {
  std::vector<OperatorCase> cases = {gated_case("channel", "key"),
                                     gated_case("head", "key"),
                                     gated_case("constant", "key"),
                                     gated_case("none", "key"),
                                     gated_case("channel", "value"),
                                     slot_case("slot"),
                                     slot_case("channel"),
                                     delta_case("head"),
                                     delta_case("channel"),
                                     delta_case("none"),
                                     dplr_case(),
                                     window_case(kCaseWindow),
                                     window_case(0),
                                     elementwise_case(),
                                     convolution_case()};
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->operation) cases.push_back(mechanism->operation());
  }
  return cases;
}

// The error that bfloat16 may cause. On a GPU it is larger: matrix products have operands of that type, and the gates'
// gradients are differences of rounded numbers.
constexpr double kRounded = 3e-2, kRoundedOnGpu = 6e-2;

double largest(const Tensor& x) { return x.abs().max().item<double>(); }

// Relative to the largest magnitude of `expected`, or to `floor` if that is larger, for results that are zero up to
// rounding.
double error_of(const Tensor& actual, const Tensor& expected, double floor = 1e-30) {
  const Tensor wide = actual.to(at::kCPU, at::kDouble);
  if (wide.sizes() != expected.sizes() || !at::isfinite(wide).all().item<bool>()) return INFINITY;
  return largest(wide - expected) / std::max(largest(expected), floor);
}

}  // namespace

const std::vector<OperatorCase>& operator_cases() {
  static const std::vector<OperatorCase> cases = make_cases();
  return cases;
}

std::vector<const OperatorCase*> find_operator_cases(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const OperatorCase& c : operator_cases()) {
    for (const std::string& name : {c.operation, c.name}) {
      if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
    }
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = nearest_word(name, known);
    throw InputError(
        concat("[--op] there is no operator \"", name, "\"; ",
               nearest.empty() ? "there are " + joined(known, ", ") : "did you mean \"" + nearest + "\"?"));
  }
  std::vector<const OperatorCase*> found;
  for (const OperatorCase& c : operator_cases()) {
    const auto is_named = [&](const std::string& name) { return name == c.name || name == c.operation; };
    if (names.empty() || std::any_of(names.begin(), names.end(), is_named)) found.push_back(&c);
  }
  return found;
}

Tensors typed_inputs(const Tensors& inputs, const at::TensorOptions& options, bool differentiable) {
  Tensors result;
  for (const Tensor& x : inputs) result.push_back(x.detach().to(options, false, true).requires_grad_(differentiable));
  return result;
}

Tensors operator_gradients(const Tensor& o, const Tensor& grad_o, const Tensors& inputs) {
  return torch::autograd::grad({o}, inputs, {grad_o});
}

OperatorCheck check_operator(const OperatorCase& which, OperatorSizes sizes, at::ScalarType dtype, at::Device device) {
  sizes.tokens = std::min(sizes.tokens, kCheckedTokens);
  const at::TensorOptions exact = at::TensorOptions(at::kDouble).device(at::kCPU);
  const Tensors fast = typed_inputs(which.inputs(sizes), at::TensorOptions(dtype).device(device), true);
  const Tensors wide = typed_inputs(fast, exact, true);
  const Tensors actual = which.forward(fast), expected = which.reference(wide);
  OperatorCheck check{.tolerance = dtype != at::kBFloat16 ? 2e-4 : device.is_cpu() ? kRounded : kRoundedOnGpu};
  for (size_t i = 0; i < expected.size(); ++i) check.error = std::max(check.error, error_of(actual[i], expected[i]));
  const Tensor grad_o = at::randn_like(expected[0]).to(dtype);
  const Tensors got = operator_gradients(actual[0], grad_o.to(actual[0].options()), fast);
  const Tensors wanted = operator_gradients(expected[0], grad_o.to(at::kDouble), wide);
  double floor = 0;
  for (const Tensor& x : wanted) floor = std::max(floor, 1e-2 * largest(x));
  for (size_t i = 0; i < wanted.size(); ++i) check.error = std::max(check.error, error_of(got[i], wanted[i], floor));
  return check;
}

}  // namespace cortado
