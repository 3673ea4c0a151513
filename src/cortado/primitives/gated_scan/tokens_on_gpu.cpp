#include "cortado/primitives/gated_scan/tokens_on_gpu.h"

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/gated_scan/calls_on_gpu.h"
#include "cortado/primitives/gated_scan/tokens_gpu.h"
#include "cortado/primitives/gated_scan/widths_on_gpu.h"

namespace cortado::gated {

namespace {

constexpr const char* kSource = "gated_scan/kernel_tokens";

int walk_keys(int64_t keys) { return keys <= 64 ? 64 : keys <= 128 ? 128 : kTokenWidest; }  // the macro KEYS

// The kernel calls of one form.
class TokenCalls : public Calls {
 public:
  TokenCalls(const FormInputs& in, const FormOptions& options, double factor, const std::vector<int64_t>* bounds,
             cuda::Machine& machine, int64_t parts)
      : Calls(in, options, factor, bounds, machine, parts), beta_(in.beta), bonus_(in.bonus) {}

  bool meets_across() const { return true; }

  // One walk, as Calls::run. The first call that gets `crossings` writes the states at the segments' ends, the second
  // the states that are multiplied by them.
  Result run(const Walk& walk) {
    const Tensor &k = walk.k, &v = walk.v;
    const Pieces in(walk.q, k, v, {});
    Result out{timed_like(v), walk.want_last ? state_of(k, v) : Tensor()};
    GpuTokens gpu = described_walk(in, out.o, walk.order.shift, walk.order.from_behind, walk.crossings);
    const Gates gates = gates_of(walk.order.across);
    const auto go = [&](const std::string& kind, int64_t parts) {
      start(gpu, "tokens" + kind + (walk.order.reverse ? "_reverse" : ""), gates, parts);
    };
    const cuda::Kernel join{kSource, walk_variant(k.size(3), gates), "token_join", kGpuThreads};
    in_parts(gpu.scan, walk, out.last, pieces_of(v), v.options(), join, go);
    go(bonus_.defined() ? "_bonus" : "", gpu.scan.parts);
    return out;
  }

  // Returns the delta rule's o and final state; if wanted, `errors` shaped like o.
  Result forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& initial, Tensor* errors,
                 Crossings* crossings) {
    const Pieces in(q, k, v, {});
    Result out{timed_like(v), state_of(k, v)};
    if (errors) *errors = timed_like(v);
    GpuTokens walk = described_walk(in, out.o, 0, false, crossings);
    if (errors) walk.written = cuda::timed(*errors);
    start_delta(walk, "tokens_delta", initial, out.last);
    return out;
  }

  // Returns dv, shaped like o, and if wanted dL/dS before the first token's gate.
  Result behind(const Tensor& k, const Tensor& q, const Tensor& grad_o, const Tensor& final_grad, bool want_last,
                Crossings* crossings) {
    const Pieces in(k, q, grad_o, {});
    Result out{timed_like(grad_o), want_last ? state_of(k, grad_o) : Tensor()};
    GpuTokens walk = described_walk(in, out.o, 1, true, crossings);
    start_delta(walk, "tokens_delta_gradient", final_grad, out.last);
    return out;
  }

  // Returns the gates' gradient [B,T,H(,K)] from states that are [V,K] if `across`, else [K,V].
  Tensor gate_gradients(const Crossings& from, const Tensor& y, const Tensor& dy, const Tensor& x, const Tensor& dx,
                        bool reverse, bool across) {
    const int64_t keys = x.size(3);
    const Tensor all[] = {cuda::in_pieces(y), cuda::in_pieces(dy), cuda::in_pieces(x), cuda::in_pieces(dx)};
    const Tensor gradient = at::empty({batch_, tokens_, heads_, keys}, x.options());
    const GpuTokenGates in{cuda::timed(all[0]),
                           cuda::timed(all[1]),
                           cuda::timed(all[2]),
                           cuda::timed(all[3]),
                           cuda::timed(g_),
                           from.states.const_data_ptr<float>(),
                           from.products.const_data_ptr<float>(),
                           gradient.mutable_data_ptr<float>(),
                           bounds_.get(),
                           int(tokens_),
                           int(heads_),
                           int(keys),
                           int(from.states.size(across ? 2 : 3)),
                           across,
                           reverse,
                           !channels_,
                           float(factor_)};
    const cuda::Blocks blocks{unsigned(rows_ * heads_), unsigned(divide_up(bounds_.longest, kGpuSegment)),
                              unsigned(divide_up(keys, kTokenThreads))};
    machine_.launch({kSource, walk_variant(64, gates_of(false)), "token_gates", kTokenThreads}, blocks, &in);
    return channels_ ? gradient : gradient.sum(3);
  }
  Tensor gradient_of_gates(const Crossings& from, const Tensor& y, const Tensor& dy, const Tensor& x, const Tensor& dx,
                           bool reverse) {
    return gate_gradients(from, y, dy, x, dx, reverse, true);
  }

 private:
  static std::string walk_variant(int64_t keys, Gates gates) {
    return "KEYS=" + std::to_string(walk_keys(keys)) + " GATES=" + std::to_string(int(gates));
  }
  Gates gates_of(bool across) const { return !channels_ ? Gates::kHead : across ? Gates::kValues : Gates::kKeys; }
  static int64_t pieces_of(const Tensor& v) { return divide_up(v.size(3), kTokenPiece); }
  Tensor timed_like(const Tensor& v) const { return at::empty({batch_, tokens_, heads_, v.size(3)}, v.options()); }
  Tensor state_of(const Tensor& k, const Tensor& v) const {
    return at::empty({rows_, heads_, k.size(3), v.size(3)}, v.options());
  }

  GpuTokens described_walk(const Pieces& in, const Tensor& o, int shift, bool from_behind, Crossings* crossings) const {
    GpuTokens walk{};
    walk.scan = described(in, o, shift);
    walk.scan.initial_factor = from_behind ? float(1 / factor_) : 1;
    walk.scan.last_factor = from_behind ? float(factor_) : 1;
    walk.beta = cuda::timed(beta_);
    walk.written = cuda::timed({});
    walk.bonus = cuda::floats(bonus_);
    walk.factors = factors_;
    if (crossings) {
      Tensor& states = from_behind ? crossings->products : crossings->states;
      states = at::empty({segments(), heads_, in.k.size(3), in.v.size(3)}, o.options());
      walk.segments = states.mutable_data_ptr<float>();
      walk.meets = from_behind;
    }
    return walk;
  }

  void start_delta(GpuTokens& walk, const char* name, const Tensor& initial, const Tensor& last) {
    walk.scan.initial = cuda::floats(initial);
    walk.scan.last = cuda::mutable_floats(last);
    start(walk, name, gates_of(false), 1);
  }

  void start(const GpuTokens& walk, const std::string& name, Gates gates, int64_t parts) {
    const int64_t pieces = divide_up(walk.scan.values, kTokenPiece);
    const int shared = gpu_token_shared_bytes(walk_keys(walk.scan.keys), gates);
    machine_.launch({kSource, walk_variant(walk.scan.keys, gates), name.c_str(), kTokenThreads, size_t(shared)},
                    {unsigned(rows_ * heads_ * pieces), unsigned(parts)}, &walk);
  }

  const Tensor beta_, bonus_;
};

// The form with the delta rule; delta_scan/on_gpu.cpp is its counterpart on tensor cores.
FormOutputs differentiate_delta(TokenCalls& calls, const FormInputs& in, const FormOptions& options,
                                const std::vector<int64_t>* bounds) {
  FormOutputs out;
  if (!options.want_rest) {
    const auto read = calls.forward(in.y, in.x, in.v, in.initial, nullptr, nullptr);
    out.w = read.o;
    out.final_state = read.last;
    return out;
  }
  const Tensor y = or_zeros(in.y, in.x), w = or_zeros(in.w, in.v);
  Crossings crossings;
  const bool gate = options.want_gate && in.g.defined();
  Tensor e;
  calls.forward(y, in.x, in.v, in.initial, &e, gate ? &crossings : nullptr);
  const auto behind = calls.behind(in.x, y, w, in.final_grad, in.initial.defined(), gate ? &crossings : nullptr);
  const Tensor& dv = out.v = behind.o;
  if (in.initial.defined()) out.initial = calls.before_first_gates(behind.last, false, bounds);
  // Reads S by do and by dv, and R = dL/dS by e: separately what do (by q) added to R and what dv (by k) subtracted.
  const int64_t heads = options.heads;
  const Tensor k = expand_heads(in.x, heads), beta = expand_heads(in.beta, heads).unsqueeze(3), u = beta * e;
  const auto of_state = [&](const Tensor& by) {
    return calls.run({by, u, in.x, across(in.initial), {}, {.across = true}}).o;
  };
  const auto of_gradient = [&](const Tensor& values, const Tensor& keys, const Tensor& start) {
    const Calls::Order order{.reverse = true, .shift = 1, .across = true, .from_behind = true};
    return calls.run({e, values, keys, across(start), {}, order}).o;
  };
  out.y = of_state(w);
  const Tensor dot = (dv * e).sum(3, true);
  const Tensor answer = of_gradient(w, y, in.final_grad) - of_gradient(dv, in.x, {}) / calls.factor() + dot * k;
  const Tensor held = of_state(dv) / calls.factor() - beta * dot * k, stored = beta * answer;
  out.x = stored - held;
  out.beta = (k * answer).sum(3);
  if (gate) out.g = calls.gate_gradients(crossings, y, out.y, k, stored + held, false, false);
  return out;
}

// A bonus has one number per key, so the gates must be per key, too.
void spread_gates(FormInputs& in, int64_t heads) {
  in.bonus = expand_heads(in.bonus, heads, 0);
  if (!in.g.defined()) in.g = at::zeros({1, in.x.size(1), 1, 1}, in.x.options().dtype(at::kFloat));
  if (in.g.dim() == 3) in.g = in.g.unsqueeze(3);
  in.g = in.g.expand({-1, -1, -1, in.x.size(3)});
}

// The inputs in float32, in rows that are multiples of 16 bytes.
FormInputs readable(const FormInputs& given, int64_t heads) {
  FormInputs in = given;
  if (in.bonus.defined()) spread_gates(in, heads);
  FormInputs out = widened(in, 4);
  for (const auto member : {&FormInputs::y, &FormInputs::x, &FormInputs::w, &FormInputs::v, &FormInputs::g,
                            &FormInputs::beta, &FormInputs::bonus, &FormInputs::initial, &FormInputs::final_grad}) {
    if ((out.*member).defined()) out.*member = (out.*member).to(at::kFloat);
  }
  for (const auto member : {&FormInputs::bonus, &FormInputs::initial, &FormInputs::final_grad}) {
    if ((out.*member).defined()) out.*member = (out.*member).contiguous();
  }
  return out;
}

// Adds the contribution of a bonus: its own gradient, and the gates' correction, because a token reads the state before
// its gate.
void add_bonus(const FormInputs& in, const FormOptions& options, double factor, bool of_heads, FormOutputs& out) {
  const auto all = [&](const Tensor& x) { return expand_heads(x, options.heads); };
  const Tensor told = factor * all(in.x) * (all(in.w) * all(in.v)).sum(3, true), own = all(in.y) * told;
  out.bonus = own.sum(1);
  if (!out.g.defined()) return;
  out.g = (out.g - all(in.y) * out.y + own * in.bonus).masked_fill(all(in.g) < kCut, 0);
  if (of_heads) out.g = out.g.sum(3);
}

}  // namespace

bool tokens_take(const FormInputs& in, const FormOptions& options, double factor) {
  const bool factors = options.decay == DecayKind::kFactors;
  const int64_t widest = std::max(in.x.size(3), in.v.size(3));
  return cuda::is_there(in.x) && options.type == at::kFloat && widest <= kTokenWidest &&
         !(options.want_y && options.want_w) &&
         !(factors && (options.want_gate || in.beta.defined() || in.bonus.defined())) && factor != 0 &&
         in.v.numel() > 0 &&
         cuda::machine_of(in.x).shared_bytes() >= gpu_token_shared_bytes(walk_keys(widest), Gates::kKeys);
}

FormOutputs evaluate_by_tokens(const FormInputs& in, const FormOptions& options, double factor,
                               const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(in.x.device());
  const FormInputs wide = readable(in, options.heads);
  TokenCalls calls(wide, options, factor, bounds, machine, parts);
  FormOutputs out = wide.beta.defined() ? differentiate_delta(calls, wide, options, bounds)
                                        : differentiate_by(calls, wide, options, bounds);
  if (in.bonus.defined() && options.want_rest) add_bonus(wide, options, factor, in.g.defined() && in.g.dim() == 3, out);
  return narrowed(out, in.x.size(3), in.v.size(3));
}

}  // namespace cortado::gated
