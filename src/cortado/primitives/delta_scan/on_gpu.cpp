#include "cortado/primitives/delta_scan/on_gpu.h"

#include "cortado/primitives/delta_scan/kernel_gpu.h"
#include "cortado/primitives/gated_scan/calls_on_gpu.h"

namespace cortado::delta {

namespace {

using gated::Crossings, gated::FormInputs, gated::FormOptions, gated::FormOutputs, gated::GpuScan;

constexpr const char* kSource = "delta_scan/kernel";

// N of every chunk, also with reversed columns; with one gate per channel, the walk's inputs that replace the keys.
struct Inverses {
  Tensor straight, turned;
  Tensor answers, stored, kept;
};

// The gated scan's calls, plus the walks of the delta rule, whose stored values are not known in advance.
class Calls : public gated::Calls {
 public:
  Calls(const FormInputs& in, const FormOptions& options, double factor, const std::vector<int64_t>* bounds,
        cuda::Machine& machine, int64_t parts)
      : gated::Calls(in, options, factor, bounds, machine, parts), beta_(in.beta.to(at::kFloat)) {}

  // Returns o and the final state; if wanted, `errors` shaped like o.
  Result forward(const Inverses& inverses, const Walk& walk, Tensor* errors) {
    const Pieces in(walk.q, walk.k, walk.v, walk.with);
    Result out{timed_like(walk.v), state_like(walk)};
    if (errors) *errors = timed_like(walk.v);
    GpuDelta gpu = described_walk(in, out.o, errors ? *errors : Tensor(), walk.initial, out.last, 0);
    gpu.inverse = cuda::timed(inverses.straight);
    start(gpu, "delta_scan", walk.crossings);
    return out;
  }

  // Returns dv, shaped like o, and if wanted dL/dS before the first token's gate. `walk`: q is k, k is q, v is do, the
  // initial state is the final state's gradient.
  Result behind(const Inverses& inverses, const Walk& walk) {
    const Pieces in(walk.q, walk.k, walk.v, walk.with);
    Result out{timed_like(walk.v), walk.want_last ? state_like(walk) : Tensor()};
    GpuDelta gpu = described_walk(in, {}, out.o, walk.initial, out.last, 1);
    gpu.scan.initial_factor = float(1 / factor_);
    gpu.scan.last_factor = float(factor_);
    gpu.inverse = cuda::timed(inverses.turned);
    start(gpu, "delta_gradient", walk.crossings);
    return out;
  }

  // With one gate per channel: returns e, or with `stored` u = beta e.
  Tensor channel_errors(const Inverses& inverses, const Tensor& v, const Tensor& initial, bool stored) {
    const Pieces in(inverses.answers, inverses.stored, v, {});
    const Tensor errors = timed_like(v);
    GpuDelta walk = described_channels(in, inverses, inverses.straight, errors, initial, {});
    walk.writes_stored = stored;
    start(walk, "delta_channels", nullptr);
    return errors;
  }

  // The backward of channel_errors: returns dv, shaped like o, and if wanted dL/dS_0.
  Result channels_behind(const Inverses& inverses, const Tensor& k, const Tensor& q, const Tensor& grad_o,
                         const Tensor& final_grad, bool want_last) {
    const Alone chunks = each_chunk_alone(k, q, grad_o);
    const Pieces in(inverses.stored, inverses.answers, chunks.o, {});
    Result out{timed_like(grad_o),
               want_last ? at::empty({rows_, heads_, k.size(3), grad_o.size(3)}, beta_.options()) : Tensor()};
    GpuDelta walk = described_channels(in, inverses, inverses.turned, out.o, final_grad, out.last);
    walk.scan.initial_factor = float(1 / factor_);
    walk.scan.last_factor = float(factor_);
    walk.added = cuda::floats(chunks.left);
    walk.chunks = int(chunks.left.size(1));
    walk.gates = cuda::timed(g_);
    start(walk, "delta_channels_gradient", nullptr);
    return out;
  }
  bool channels() const { return channels_; }

  Inverses inverses(const Tensor& keys, bool turned) {
    const Tensor k = cuda::in_pieces(keys);
    const int64_t width = k.size(3), chunks = gated::divide_up(bounds_.longest, gated::kGpuChunk);
    const auto room = [&](int64_t numbers) { return at::empty({batch_, tokens_, heads_, numbers}, k.options()); };
    Inverses out{room(gated::kGpuChunk), turned ? room(gated::kGpuChunk) : Tensor(), {}, {}, {}};
    if (channels_) {
      out.answers = room(width);
      out.stored = room(width);
      out.kept = at::empty({stretches(gated::kGpuChunk), heads_, width}, beta_.options());
    }
    const GpuInverse in{cuda::timed(k),
                        cuda::timed(g_),
                        cuda::timed(beta_),
                        cuda::timed(out.straight),
                        cuda::timed(out.turned),
                        cuda::timed(out.answers),
                        cuda::timed(out.stored),
                        cuda::mutable_floats(out.kept),
                        bounds_.get(),
                        int(tokens_),
                        int(heads_),
                        int(width)};
    machine_.launch({kSource, variant(width), channels_ ? "delta_inverse_channels" : "delta_inverse",
                     unsigned(kGpuInverseThreads), size_t(gpu_inverse_shared_bytes(gated::wide(width), channels_))},
                    {unsigned(rows_ * heads_), unsigned(chunks)}, &in);
    return out;
  }

  // Returns u = beta e.
  Tensor stored(const Tensor& errors) {
    const Tensor u = timed_like(errors);
    const GpuStored in{cuda::timed(errors), cuda::timed(beta_), cuda::timed(u),
                       int(tokens_),        int(heads_),        int(errors.size(3))};
    machine_.launch({kSource, variant(64), "delta_store", gated::kGpuThreads},
                    cuda::row_blocks(batch_, tokens_ * heads_, errors.size(3)), &in);
    return u;
  }

  struct Rest {
    Tensor held, lost, gained;
  };
  // Computes dk and dbeta. With one gate per channel it returns the tensor that replaces dk in the gates' gradient.
  Tensor rest(const Tensor& keys, const Tensor& errors, const Tensor& dv, const Rest& of, FormOutputs& out) {
    const Tensor k = cuda::in_pieces(keys);
    out.x = timed_like(of.held);
    out.beta = at::empty({batch_, tokens_, heads_}, k.options().dtype(at::kFloat));
    const Tensor of_gates = channels_ ? timed_like(of.held) : Tensor();
    const GpuRest in{cuda::timed(k),
                     cuda::timed(errors),
                     cuda::timed(dv),
                     cuda::timed(beta_),
                     cuda::timed(of.held),
                     cuda::timed(of.lost),
                     cuda::timed(of.gained),
                     cuda::timed(out.x),
                     cuda::timed(of_gates),
                     out.beta.mutable_data_ptr<float>(),
                     float(1 / factor_),
                     int(tokens_),
                     int(heads_),
                     int(k.size(3)),
                     int(errors.size(3))};
    machine_.launch({kSource, variant(64), "delta_rest", gated::kGpuThreads},
                    cuda::row_blocks(batch_, tokens_ * heads_, std::max(k.size(3), errors.size(3))), &in);
    return of_gates;
  }

 private:
  Tensor timed_like(const Tensor& v) const { return at::empty({batch_, tokens_, heads_, v.size(3)}, v.options()); }
  Tensor state_like(const Walk& walk) const {
    return at::empty({rows_, heads_, walk.k.size(3), walk.v.size(3)}, beta_.options());
  }

  GpuDelta described_walk(const Pieces& in, const Tensor& o, const Tensor& written, const Tensor& initial,
                          const Tensor& last, int shift) const {
    GpuDelta walk{};
    walk.scan = described(in, o, shift);
    walk.scan.initial = cuda::floats(initial);
    walk.scan.last = cuda::mutable_floats(last);
    walk.beta = cuda::timed(beta_);
    walk.written = cuda::timed(written);
    return walk;
  }

  GpuDelta described_channels(const Pieces& in, const Inverses& inverses, const Tensor& inverse, const Tensor& written,
                              const Tensor& initial, const Tensor& last) const {
    GpuDelta walk = described_walk(in, {}, written, initial, last, 0);
    walk.scan.g = cuda::timed({});
    walk.kept = cuda::floats(inverses.kept);
    walk.inverse = cuda::timed(inverse);
    walk.gates = cuda::timed({});
    return walk;
  }

  void start(GpuDelta& walk, const std::string& name, Crossings* crossings) {
    const int64_t pieces = gated::divide_up(walk.scan.values, gated::kGpuPiece);
    const auto floats = beta_.options();
    // A walk in parts costs one walk over the values, one over the keys, and the walk itself.
    const int64_t processors = machine_.multiprocessors(), full = blocks(pieces);
    if (cut(walk.scan, 6 * full > processors ? 1 : processors / full) > 1) join(walk, name, floats);
    if (crossings) add_crossings(walk.scan, *crossings, pieces, gated::wide(walk.scan.keys), floats);
    launch(walk, crossings ? name + "_dot" : name);
  }

  void launch(const GpuDelta& walk, const std::string& name) {
    const int64_t pieces = gated::divide_up(walk.scan.values, gated::kGpuPiece);
    machine_.launch({kSource, variant(walk.scan.keys), name.c_str(), gated::kGpuThreads,
                     size_t(gpu_delta_shared_bytes(gated::wide(walk.scan.keys)))},
                    {unsigned(rows_ * heads_ * pieces), unsigned(walk.scan.parts)}, &walk);
  }

  // Computes the states that the parts begin with and sets them as the walk's `initial`.
  void join(GpuDelta& walk, const std::string& name, const at::TensorOptions& floats) {
    const int64_t keys = walk.scan.keys, values = walk.scan.values, parts = walk.scan.parts;
    const Tensor states = at::empty({rows_, parts, heads_, keys, values}, floats);
    const Tensor through = at::eye(keys, floats).expand({rows_, parts, heads_, keys, keys}).contiguous();
    const auto narrow = floats.dtype(short_);
    GpuDelta part = walk;
    part.written = cuda::timed({});
    part.scan.initial = nullptr;
    part.scan.last = states.mutable_data_ptr<float>();
    part.scan.initial_factor = part.scan.last_factor = 1;
    launch(part, name);
    const Tensor nothing = at::zeros({1, 1, 1, keys}, narrow).expand({batch_, tokens_, 1, keys});
    const Tensor unread = walk.scan.o.data ? at::empty({batch_, tokens_, heads_, keys}, narrow) : Tensor();
    part.scan.v = cuda::timed(nothing);
    part.scan.o = cuda::timed(unread);
    part.added = nullptr;
    part.scan.values = int(keys);
    part.scan.last = through.mutable_data_ptr<float>();
    part.scan.initial = part.scan.last;
    launch(part, name);
    const GpuDeltaJoin joined{states.mutable_data_ptr<float>(),
                              through.const_data_ptr<float>(),
                              walk.scan.initial,
                              walk.scan.last,
                              int(parts),
                              int(heads_),
                              int(keys),
                              int(values),
                              walk.scan.initial_factor,
                              walk.scan.last_factor};
    const int wide = gated::wide(keys);
    machine_.launch(
        {kSource, variant(keys), "delta_join", unsigned(kGpuJoinThreads), size_t(gpu_join_shared_bytes(wide))},
        {unsigned(rows_ * heads_ * gated::divide_up(values, gated::kGpuPiece))}, &joined);
    walk.scan.initial = joined.states;
    walk.scan.initial_factor = 1;
    walk.scan.last = nullptr;
    part_states_ = states;
  }

  const Tensor beta_;
};

// The gradients that remain once u = beta e and dv are known: gated scans of known values. R = dL/dS gains do (by q)
// and loses dv (by k); both sums are read by e. The state is read by do and by dv.
class RemainingGradients {
 public:
  RemainingGradients(Calls& calls, const FormInputs& in, const Tensor& y, const Tensor& w, const Tensor& errors,
                     const Tensor& final_grad)
      : calls_(calls), in_(in), y_(y), w_(w), errors_(errors), final_grad_(final_grad), u_(calls.stored(errors)) {}

  // Computes dq, dk and dbeta; with one gate per channel also the gates' gradient, if wanted.
  void gradients(FormOutputs& out, bool channel_gates) const {
    Crossings gained, lost;
    out.y = of_state(w_, channel_gates ? &gained : nullptr);
    lost.states = gained.states;
    const Calls::Rest rest{of_state(out.v, nullptr), of_gradient(out.v, in_.x, {}, channel_gates ? &lost : nullptr),
                           of_gradient(w_, y_, final_grad_, channel_gates ? &gained : nullptr)};
    const Tensor dk = calls_.rest(in_.x, errors_, out.v, rest, out);
    if (!channel_gates) return;
    gained.products.sub_(lost.products, 1 / calls_.factor());
    out.g = calls_.gradient_of_gates(gained, y_, out.y, in_.x, dk, false);
  }

 private:
  Tensor of_state(const Tensor& by, Crossings* crossings) const {
    return calls_.run({by, u_, in_.x, gated::across(in_.initial), {}, {.across = true}, /*want_last=*/false, crossings})
        .o;
  }
  Tensor of_gradient(const Tensor& values, const Tensor& keys, const Tensor& start, Crossings* crossings) const {
    const gated::Calls::Order order{.reverse = true, .shift = 1, .across = true, .from_behind = true};
    return calls_.run({errors_, values, keys, gated::across(start), {}, order, /*want_last=*/false, crossings}).o;
  }

  Calls& calls_;
  const FormInputs& in_;
  const Tensor &y_, &w_, &errors_, &final_grad_;
  const Tensor u_;
};

FormOutputs read(Calls& calls, const FormInputs& in) {
  const Inverses inverses = calls.inverses(in.x, false);
  const auto known = [&](const Tensor& u) {
    return calls.run({.q = in.y, .k = in.x, .v = u, .initial = in.initial, .want_last = true});
  };
  const auto result = calls.channels() ? known(calls.channel_errors(inverses, in.v, in.initial, true))
                                       : calls.forward(inverses, {in.y, in.x, in.v, in.initial}, nullptr);
  FormOutputs out;
  out.w = result.o;
  out.final_state = result.last;
  return out;
}

}  // namespace

FormOutputs evaluate_on_gpu(const FormInputs& in, const FormOptions& options, double factor,
                            const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts) {
  Calls calls(in, options, factor, bounds, machine, parts);
  const auto floats = [](const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; };
  FormInputs given = in;
  given.initial = floats(in.initial);
  if (!options.want_rest) return read(calls, given);
  const Tensor y = gated::or_zeros(in.y, in.x), w = gated::or_zeros(in.w, in.v), final_grad = floats(in.final_grad);
  FormOutputs out;
  Crossings crossings;
  const bool gate = options.want_gate && in.g.defined(), states = in.initial.defined();
  Tensor errors;
  const Inverses inverses = calls.inverses(in.x, true);
  if (calls.channels()) {
    errors = calls.channel_errors(inverses, in.v, given.initial, false);
    const auto behind = calls.channels_behind(inverses, in.x, y, w, final_grad, states);
    out.v = behind.o;
    out.initial = behind.last;
  } else {
    const auto dots = gate ? &crossings : nullptr;
    const Tensor with = gate ? w : Tensor();
    calls.forward(inverses, {y, in.x, in.v, given.initial, with, {}, /*want_last=*/true, dots}, &errors);
    const auto behind = calls.behind(inverses, {in.x, y, w, final_grad, in.v, {}, states, dots});
    out.v = behind.o;
    if (states) out.initial = calls.before_first_gates(behind.last, false, bounds);
  }
  RemainingGradients(calls, given, y, w, errors, final_grad).gradients(out, gate && calls.channels());
  if (gate && !calls.channels()) out.g = calls.gate_gradient(crossings, false);
  return out;
}

}  // namespace cortado::delta
