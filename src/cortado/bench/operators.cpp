#include "cortado/bench/operators.h"

#include <torch/csrc/autograd/autograd.h>

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/mechanisms/abc/op.h"
#include "cortado/mechanisms/blurry_window/op.h"
#include "cortado/mechanisms/latte/op.h"
#include "cortado/mechanisms/linear/op.h"
#include "cortado/mechanisms/lolcats/op.h"
#include "cortado/mechanisms/macchiato/op.h"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/short_conv/op.h"
#include "cortado/primitives/slot_scan/op.h"

namespace cortado {
namespace {

constexpr int64_t kWindow = 128;
constexpr int64_t kTaps = 4;
constexpr int64_t kCheckedTokens = 200;  // no multiple of any chunk

Tensors from(const std::tuple<Tensor, Tensor>& result) { return {std::get<0>(result), std::get<1>(result)}; }
Tensors from(const LatteResult& r) { return {r.o, r.state, r.normalizer, r.maximum}; }
Tensors from(const SlotResult& r) { return {r.o, r.key_state, r.value_state}; }
Tensors from(const AbcResult& r) { return {r.o, r.key_state, r.value_state, r.normalizer, r.maximum}; }
Tensors from(const LinearResult& r) { return {r.o, r.state, r.normalizer}; }
OptionalTensor part(const Tensors& carried, size_t i) { return i < carried.size() ? carried[i] : OptionalTensor(); }

// --- Inputs. ---

Tensor heads_of(const OperatorSizes& s, int64_t width) { return at::randn({1, s.tokens, s.heads, width}); }
Tensor gate_of(std::vector<int64_t> shape) { return at::rand(shape) * -0.2; }  // a memory of ten tokens
Tensor positive(const OperatorSizes& s) { return at::rand({1, s.tokens, s.heads, s.size}) + 0.1; }
Tensor unit(const Tensor& x) { return x / x.norm(2, -1, true); }
Tensors qkv(const OperatorSizes& s) { return {heads_of(s, s.size), heads_of(s, s.size), heads_of(s, s.size)}; }
Tensors join(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// --- Work. ---

double state_elements(const OperatorSizes& s) { return static_cast<double>(s.heads * s.size * s.size); }
double channels(const OperatorSizes& s) { return static_cast<double>(s.heads * s.size); }
// Keys that a query sees, on the average over the sequence, in all heads together.
double visible(const OperatorSizes& s, int64_t window) {
  const auto tokens = static_cast<double>(s.tokens), w = static_cast<double>(std::min(window, s.tokens));
  return static_cast<double>(s.heads) * (w - w * (w - 1) / (2 * tokens));
}
Work window_work(const OperatorSizes& s, int64_t window) {
  return {4 * static_cast<double>(s.size) * visible(s, window), visible(s, window)};
}
Work operator+(const Work& a, const Work& b) { return {a.flops + b.flops, a.exps + b.exps}; }

// --- The primitives. ---

OperatorCase gated_case(const std::string& gate, const std::string& read) {
  OperatorCase c{.name = "gated_scan/" + (read == "key" ? gate : read), .operation = "gated_scan"};
  c.note = concat(gate == "none"       ? "no"
                  : gate == "constant" ? "a constant"
                                       : "a " + gate,
                  " gate, read along the ", read, "s");
  c.inputs = [gate](const OperatorSizes& s) {
    if (gate == "none") return qkv(s);
    return join(qkv(s), {gate == "channel" ? gate_of({1, s.tokens, s.heads, s.size})
                         : gate == "head"  ? gate_of({1, s.tokens, s.heads})
                                           : gate_of({s.heads})});
  };
  c.call = [read](const Tensors& in, const Tensors& carried) {
    return from(gated_scan(in[0], in[1], in[2], part(in, 3), read, {}, {}, part(carried, 0)));
  };
  c.reference = [read](const Tensors& in) {
    return from(gated_scan_reference(in[0], in[1], in[2], part(in, 3), read));
  };
  c.work = [gate](const OperatorSizes& s) {
    const double exps = gate == "channel" ? channels(s) : gate == "head" ? static_cast<double>(s.heads) : 0;
    return Work{4 * state_elements(s), exps};
  };
  return c;
}

OperatorCase slot_case(const std::string& read) {
  OperatorCase c{.name = "slot_scan/" + read, .operation = "slot_scan", .note = "read along the " + read + "s"};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {gate_of({1, s.tokens, s.heads, s.size}).exp()}); };
  c.call = [read](const Tensors& in, const Tensors& carried) {
    return from(slot_scan(in[0], in[1], in[2], in[3], read, {}, part(carried, 0)));
  };
  c.reference = [read](const Tensors& in) { return from(slot_scan_reference(in[0], in[1], in[2], in[3], read)); };
  c.work = [](const OperatorSizes& s) { return Work{4 * state_elements(s), 0}; };
  return c;
}

OperatorCase delta_case(const std::string& gate) {
  OperatorCase c{.name = "delta_scan/" + gate, .operation = "delta_scan"};
  c.note = gate == "none" ? "no gate" : "a " + gate + " gate";
  c.inputs = [gate](const OperatorSizes& s) {
    Tensors in{heads_of(s, s.size), unit(heads_of(s, s.size)), heads_of(s, s.size), at::rand({1, s.tokens, s.heads})};
    if (gate == "head") in.push_back(gate_of({1, s.tokens, s.heads}));
    if (gate == "channel") in.push_back(gate_of({1, s.tokens, s.heads, s.size}));
    return in;
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return from(delta_scan(in[0], in[1], in[2], in[3], part(in, 4), {}, part(carried, 0)));
  };
  c.reference = [](const Tensors& in) { return from(delta_scan_reference(in[0], in[1], in[2], in[3], part(in, 4))); };
  c.work = [gate](const OperatorSizes& s) {
    const double exps = gate == "channel" ? channels(s) : gate == "head" ? static_cast<double>(s.heads) : 0;
    return Work{6 * state_elements(s), exps};
  };
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
    return Tensors{gate_of({1, s.tokens, width}), at::randn({1, s.tokens, width})};
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return from(elementwise_scan(in[0], in[1], part(carried, 0)));
  };
  c.reference = [](const Tensors& in) { return from(elementwise_scan_reference(in[0], in[1])); };
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
    return from(short_conv(in[0], in[1], {}, "silu", part(carried, 0)));
  };
  c.reference = [](const Tensors& in) { return from(short_conv_reference(in[0], in[1], {}, "silu")); };
  c.work = [](const OperatorSizes& s) { return Work{2.0 * kTaps * channels(s), channels(s)}; };
  return c;
}

// --- The mechanisms. ---

OperatorCase latte_case() {
  OperatorCase c{.name = "latte", .operation = "latte", .note = "as many latents as channels"};
  c.inputs = qkv;
  c.call = [](const Tensors& in, const Tensors& carried) {
    return from(latte(in[0], in[1], in[2], true, {part(carried, 0), part(carried, 1), part(carried, 2)}));
  };
  c.reference = [](const Tensors& in) { return Tensors{latte_reference(at::softmax(in[0], -1), in[1], in[2], true)}; };
  c.work = [](const OperatorSizes& s) { return Work{4 * state_elements(s), 3 * channels(s)}; };
  return c;
}

// Carried: Latte's state, then the window's keys and values.
Tensors macchiato_call(const Tensors& in, const Tensors& carried) {
  MacchiatoOptions options;
  options.window = kWindow;
  PastKeys past;
  if (!carried.empty()) {
    options.start = {carried[0], carried[1], carried[2]};
    past = {carried[3], carried[4], {}};
  }
  const Tensor &v = in[2], &window_k = in[4];
  const JoinedKeys keys = join_past(past, window_k, v, {});
  Tensors out = from(macchiato(in[0], in[1], v, in[3], keys, options));
  const int64_t kept = std::min(kWindow - 1, keys.k.size(1)), first = keys.k.size(1) - kept;
  return join(out, {keys.k.detach().narrow(1, first, kept), keys.v.detach().narrow(1, first, kept)});
}

OperatorCase macchiato_case() {
  OperatorCase c{.name = "macchiato", .operation = "macchiato"};
  c.note = concat("Latte and a window of ", kWindow, " keys");
  c.inputs = [](const OperatorSizes& s) {
    return Tensors{heads_of(s, s.size + 1), heads_of(s, s.size), heads_of(s, s.size), heads_of(s, s.size),
                   heads_of(s, s.size)};
  };
  c.call = macchiato_call;
  c.reference = [](const Tensors& in) {
    const double scale = 1 / std::sqrt(static_cast<double>(in[3].size(3)));
    return Tensors{macchiato_reference(in[0], in[1], in[2], in[3], in[4], kWindow, scale, true)};
  };
  c.work = [](const OperatorSizes& s) {
    return Work{4 * state_elements(s), 3 * channels(s)} + window_work(s, kWindow);
  };
  return c;
}

// Odd, and each slot for two tokens.
BlurrySizes blurry_sizes(int64_t size) { return {.slots = size | 1, .period = 2 * (size | 1)}; }

OperatorCase blurry_case() {
  OperatorCase c{.name = "blurry_window", .operation = "blurry_window", .note = "size + 1 slots of two tokens each"};
  c.inputs = qkv;
  c.call = [](const Tensors& in, const Tensors& carried) {
    BlurryOptions options{.sizes = blurry_sizes(in[0].size(3))};
    options.key_state = part(carried, 0);
    options.value_state = part(carried, 1);
    if (!carried.empty()) options.position = at::full({1}, kCheckedTokens, at::kLong);
    return from(blurry_window(in[0], in[1], in[2], options));
  };
  c.reference = [](const Tensors& in) {
    const int64_t size = in[0].size(3);
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    return Tensors{blurry_window_reference(in[0], in[1], in[2], blurry_sizes(size), true, scale)};
  };
  c.work = [](const OperatorSizes& s) {
    const auto slots = static_cast<double>(s.heads * blurry_sizes(s.size).slots);
    return Work{8 * slots * static_cast<double>(s.size), slots};
  };
  return c;
}

OperatorCase gated_slot_case() {
  OperatorCase c{.name = "gated_slot", .operation = "gated_slot", .note = "as many slots as channels"};
  c.inputs = [](const OperatorSizes& s) {
    const Tensor gate = gate_of({1, s.tokens, s.heads, s.size});
    return join(qkv(s), {1 - gate.exp(), gate});
  };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return from(gated_slot(in[0], in[1], in[2], in[3], in[4], {}, part(carried, 0), part(carried, 1)));
  };
  c.reference = [](const Tensors& in) {
    const double scale = 1 / std::sqrt(static_cast<double>(in[0].size(3)));
    return Tensors{gated_slot_reference(in[0], in[1], in[2], in[3], in[4], scale)};
  };
  c.work = [](const OperatorSizes& s) { return Work{8 * state_elements(s), 2 * channels(s)}; };
  return c;
}

OperatorCase abc_case() {
  OperatorCase c{.name = "abc", .operation = "abc", .note = "as many slots as channels"};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {heads_of(s, s.size)}); };
  c.call = [](const Tensors& in, const Tensors& carried) {
    const AbcState start{part(carried, 0), part(carried, 1), part(carried, 2), part(carried, 3)};
    return from(abc(in[0], in[1], in[2], in[3], {}, start));
  };
  c.reference = [](const Tensors& in) {
    return Tensors{abc_reference(in[0], in[1], in[2], in[3], 1 / std::sqrt(static_cast<double>(in[0].size(3))))};
  };
  c.work = [](const OperatorSizes& s) { return Work{8 * state_elements(s), 3 * channels(s)}; };
  return c;
}

OperatorCase linear_case() {
  OperatorCase c{.name = "normalized_linear", .operation = "normalized_linear", .note = "queries and keys positive"};
  c.inputs = [](const OperatorSizes& s) { return Tensors{positive(s), positive(s), heads_of(s, s.size)}; };
  c.call = [](const Tensors& in, const Tensors& carried) {
    return from(normalized_linear(in[0], in[1], in[2], true, 0, part(carried, 0), part(carried, 1)));
  };
  c.reference = [](const Tensors& in) { return Tensors{linear_reference(in[0], in[1], in[2], true, 0)}; };
  c.work = [](const OperatorSizes& s) { return Work{4 * state_elements(s) + 4 * channels(s), 0}; };
  return c;
}

OperatorCase lolcats_case() {
  OperatorCase c{.name = "lolcats", .operation = "lolcats"};
  c.note = concat("a window of ", kWindow, " keys, as many features as channels");
  const LolcatsRule rule{.window = kWindow};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {positive(s), positive(s), at::randn({s.heads})}); };
  c.steps = false;
  c.call = [rule](const Tensors& in, const Tensors&) {
    return Tensors{lolcats(in[0], in[1], in[2], in[3], in[4], in[5], rule)};
  };
  c.reference = [rule](const Tensors& in) {
    return Tensors{lolcats_reference(in[0], in[1], in[2], in[3], in[4], in[5], rule)};
  };
  c.work = [](const OperatorSizes& s) {
    return Work{4 * state_elements(s) + 4 * channels(s), 0} + window_work(s, kWindow);
  };
  return c;
}

std::vector<OperatorCase> make_cases() {
  return {gated_case("channel", "key"),
          gated_case("head", "key"),
          gated_case("constant", "key"),
          gated_case("none", "key"),
          gated_case("channel", "value"),
          slot_case("slot"),
          slot_case("channel"),
          delta_case("head"),
          delta_case("channel"),
          delta_case("none"),
          window_case(kWindow),
          window_case(0),
          elementwise_case(),
          convolution_case(),
          latte_case(),
          macchiato_case(),
          blurry_case(),
          gated_slot_case(),
          abc_case(),
          linear_case(),
          lolcats_case()};
}

double largest(const Tensor& x) { return x.abs().max().item<double>(); }

// Over the largest magnitude of `expected`, or over `floor` where that is larger: for what is zero but for rounding.
double error_of(const Tensor& actual, const Tensor& expected, double floor = 1e-30) {
  const Tensor wide = actual.to(at::kDouble);
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
    std::string all;
    for (const std::string& word : known) all += (all.empty() ? "" : ", ") + word;
    throw InputError(concat("[--op] there is no operator \"", name, "\"; ",
                            nearest.empty() ? "there are " + all : "did you mean \"" + nearest + "\"?"));
  }
  std::vector<const OperatorCase*> found;
  for (const OperatorCase& c : operator_cases()) {
    const auto is_named = [&](const std::string& name) { return name == c.name || name == c.operation; };
    if (names.empty() || std::any_of(names.begin(), names.end(), is_named)) found.push_back(&c);
  }
  return found;
}

Tensors typed_inputs(const Tensors& inputs, at::ScalarType dtype, bool differentiable) {
  Tensors result;
  for (const Tensor& x : inputs) result.push_back(x.detach().to(dtype, false, true).requires_grad_(differentiable));
  return result;
}

Tensors operator_gradients(const Tensor& o, const Tensor& grad_o, const Tensors& inputs) {
  return torch::autograd::grad({o}, inputs, {grad_o});
}

OperatorCheck check_operator(const OperatorCase& which, OperatorSizes sizes, at::ScalarType dtype) {
  sizes.tokens = std::min(sizes.tokens, kCheckedTokens);
  const Tensors fast = typed_inputs(which.inputs(sizes), dtype, true);
  const Tensors wide = typed_inputs(fast, at::kDouble, true);
  const Tensors actual = which.forward(fast), expected = which.reference(wide);
  OperatorCheck check{.tolerance = dtype == at::kBFloat16 ? 3e-2 : 2e-4};
  for (size_t i = 0; i < expected.size(); ++i) check.error = std::max(check.error, error_of(actual[i], expected[i]));
  const Tensor grad_o = at::randn_like(expected[0]).to(dtype);
  const Tensors got = operator_gradients(actual[0], grad_o, fast);
  const Tensors wanted = operator_gradients(expected[0], grad_o.to(at::kDouble), wide);
  double floor = 0;
  for (const Tensor& x : wanted) floor = std::max(floor, 1e-2 * largest(x));
  for (size_t i = 0; i < wanted.size(); ++i) check.error = std::max(check.error, error_of(got[i], wanted[i], floor));
  return check;
}

}  // namespace cortado
