#include "cortado/analyze/traces.h"

#include <algorithm>
#include <map>

#include "cortado/base/error.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/lora.h"
#include "cortado/nn/weights.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/scan.h"

namespace cortado {
namespace {

bool calls_any(const std::vector<OperatorCall>& calls, const std::vector<std::string>& names) {
  return std::any_of(calls.begin(), calls.end(), [&](const OperatorCall& call) {
    return std::find(names.begin(), names.end(), call.name) != names.end();
  });
}

std::string word_of(const OperatorCall& call, const std::string& argument) {
  const auto at = size_t(std::find(call.arguments.begin(), call.arguments.end(), argument) - call.arguments.begin());
  return at < call.inputs.size() && call.inputs[at].isString() ? call.inputs[at].toStringRef() : "";
}

// Returns the first call of that operator whose argument "read" has that value.
const OperatorCall* find_call(const std::vector<OperatorCall>& calls, const std::string& name,
                              const std::string& read) {
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const OperatorCall& call) {
    return call.name == name && word_of(call, "read") == read;
  });
  return found == calls.end() ? nullptr : &*found;
}

// Converts x [1, T, h, ...] to double [H, T, ...]; heads that are shared are repeated.
at::Tensor wide(const at::Tensor& x, int64_t heads) {
  return expand_heads(x.detach().to(at::kCPU, at::kDouble), heads)[0].transpose(0, 1).contiguous();
}

// Returns exp of a scan's gates: [H, T, K], or [H, T, 1] for one gate per head; ones if there are no gates.
at::Tensor decays_of(const at::Tensor& g, int64_t heads, int64_t tokens) {
  if (!g.defined()) return at::ones({heads, tokens, 1}, at::kDouble);
  const at::Tensor gate = gated::timed_gate(g, tokens);
  return wide(gate.dim() == 3 ? gate.unsqueeze(-1) : gate, heads).exp();
}

GateTrace summary(const at::Tensor& norm, const at::Tensor& decay) {
  return {norm, decay.mean(-1), decay.amin(-1), decay.amax(-1)};
}

// Recomputes a scan's states token by token and returns their norms and decays. S_t = a_t S_{t-1} + k_t v_tᵀ; for a
// delta rule S_t = a_t S_{t-1} + beta_t k_t (v_t - (a_t S_{t-1})ᵀ k_t)ᵀ; for a dplr_scan b_t (S_{t-1}ᵀ a_t)ᵀ is added.
GateTrace trace_scan(const OperatorCall& call) {
  const at::Tensor k = call.tensor("k"), v = call.tensor("v"), g = call.tensor("g"), beta = call.tensor("beta");
  int64_t heads = std::max(k.size(2), v.size(2));
  if (beta.defined()) heads = std::max(heads, beta.size(2));
  if (g.defined()) heads = std::max(heads, g.dim() < 3 ? g.size(0) : g.size(2));
  const at::Tensor keys = wide(k, heads), values = wide(v, heads), decay = decays_of(g, heads, k.size(1));
  const auto given = [&](const at::Tensor& x) { return x.defined() ? wide(x, heads) : x; };
  const at::Tensor steps = given(beta), reads = given(call.tensor("a")), writes = given(call.tensor("b"));
  at::Tensor state = at::zeros({heads, keys.size(2), values.size(2)}, at::kDouble);
  const at::Tensor norm = at::zeros({heads, keys.size(1)}, at::kDouble);
  for (int64_t t = 0; t < keys.size(1); ++t) {
    const at::Tensor key = keys.select(1, t).unsqueeze(2);
    const at::Tensor held = reads.defined() ? (state * reads.select(1, t).unsqueeze(2)).sum(1, true) : at::Tensor();
    state = decay.select(1, t).unsqueeze(2) * state;
    at::Tensor written = values.select(1, t);
    if (steps.defined()) written = steps.select(1, t).unsqueeze(1) * (written - (state * key).sum(1));
    state = state + key * written.unsqueeze(1);
    if (held.defined()) state = state + writes.select(1, t).unsqueeze(2) * held;
    norm.select(1, t).copy_(state.square().sum({1, 2}).sqrt());
  }
  return summary(norm, decay);
}

// h_t = a_t h_{t-1} + b_t: the output is the state itself, real or complex.
GateTrace trace_channels(const OperatorCall& call, int64_t heads) {
  const auto split = [&](const at::Tensor& x) {
    const int64_t parts = x.size(2) % heads == 0 ? heads : 1;
    return x.detach()[0].to(at::kCPU, at::kDouble).unflatten(1, {parts, -1}).transpose(0, 1);
  };
  const at::Tensor log_a = call.tensor("log_a");
  return summary(split(call.outputs[0].toTensor().abs()).square().sum(-1).sqrt(),
                 split(log_a.is_complex() ? at::real(log_a) : log_a).exp());
}

}  // namespace

std::shared_ptr<Mixer> plain_mixer(const LanguageModel& model, int64_t layer) {
  const auto& own = model.mixers()[static_cast<size_t>(layer)];
  if (model.weight_format() == WeightFormat::kPlain && model.dtype() == at::kFloat) return own;
  const at::NoGradGuard no_grad;
  std::map<std::string, Tensor> unpacked;
  for (const auto& module : own->named_modules("", /*include_self=*/false)) {
    const auto* matrix = dynamic_cast<const MatrixModule*>(module.value().get());
    if (matrix && matrix->packed()) unpacked[module.key() + ".weight"] = matrix->packed()->unpacked();
  }
  std::shared_ptr<Mixer> copy;
  {
    const SkipInitialization skip;
    copy = make_layer_mixer(model.config(), layer);
  }
  auto weights = named_weights(*copy);
  for (const auto& [name, weight] : merged_weights(*own)) {
    const auto plain = unpacked.find(name);
    weights[name].copy_(plain == unpacked.end() ? weight : plain->second);
  }
  copy->to(model.device());
  copy->eval();
  return copy;
}

std::vector<OperatorCall> calls_of(Mixer& mixer, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  return captured([&] { mixer.forward(x, Batch{}, nullptr); });
}

at::Tensor SlotTrace::contents(int64_t t) const {
  const at::Tensor later = keep.narrow(1, 1, t).flip(1).cumprod(1).flip(1);
  const at::Tensor left = at::cat({later, at::ones_like(keep.narrow(1, 0, 1))}, 1);  // [H, t+1, M]
  const at::Tensor weights = write.narrow(1, 0, t + 1) * left;
  const at::Tensor total = normalized ? weights.sum(1, true) : at::ones_like(weights.narrow(1, 0, 1));
  return (weights / total.masked_fill(total == 0, 1)).transpose(1, 2);
}

std::optional<SlotTrace> slot_trace(const std::vector<OperatorCall>& calls) {
  const OperatorCall* keys = find_call(calls, "cortado::slot_scan", "channel");
  const OperatorCall* values = find_call(calls, "cortado::slot_scan", "slot");
  const bool factors = keys && values;
  if (!factors) {
    keys = find_call(calls, "cortado::gated_scan", "value");
    if (!keys) keys = find_call(calls, "cortado::_gated_scores", "value");  // the GPU's operator
    values = find_call(calls, "cortado::gated_scan", "key");
  }
  if (!keys || !values) return std::nullopt;
  const at::Tensor read = values->tensor("q");
  const int64_t heads = read.size(2), tokens = read.size(1);
  SlotTrace trace;
  if (factors) {
    const auto timed = [](const at::Tensor& y) { return y.dim() == 2 ? y.unsqueeze(0).unsqueeze(2) : y; };
    trace.write = wide(timed(keys->tensor("w")), heads);
    trace.keep = wide(timed(keys->tensor("decay")), heads);
  } else {
    trace.write = wide(keys->tensor("k"), heads);
    trace.keep = decays_of(keys->tensor("g"), heads, tokens).expand_as(trace.write);
  }
  trace.normalized = calls_any(calls, {"cortado::_time_softmax"});
  trace.read = wide(read, heads);
  // The operator's query is divided by the sum of each slot's weights; undo that.
  if (trace.normalized) {
    at::Tensor sum = at::zeros_like(trace.write.select(1, 0));
    for (int64_t t = 0; t < tokens; ++t) {
      sum = trace.keep.select(1, t) * sum + trace.write.select(1, t);
      trace.read.select(1, t).mul_(sum);
    }
  }
  const at::Tensor total = trace.read.sum(-1);
  // If the weights over the slots do not sum to one, the operators read another kind of state, not slots.
  if ((total - 1).abs().max().item<double>() > 1e-3) return std::nullopt;
  return trace;
}

std::optional<GateTrace> gate_trace(const std::vector<OperatorCall>& calls, int64_t heads, int64_t tokens) {
  // In these operators, gates rescale running maxima or belong to latents, and are not decays of a state. Slots have a
  // trace of their own.
  if (calls_any(calls, {"cortado::_time_softmax", "cortado::_running_max", "cortado::_latte_scan"}))
    return std::nullopt;
  if (slot_trace(calls)) return std::nullopt;
  for (const OperatorCall& call : calls) {
    const bool matrix = call.name == "cortado::delta_scan" || call.name == "cortado::dplr_scan" ||
                        (call.name == "cortado::gated_scan" && word_of(call, "read") == "key");
    if (matrix && call.tensor("k").size(1) == tokens) return trace_scan(call);
    if (call.name == "cortado::elementwise_scan" && call.tensor("b").size(1) == tokens) {
      return trace_channels(call, heads);
    }
  }
  return std::nullopt;
}

}  // namespace cortado
