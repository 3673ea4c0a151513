#include "cortado/primitives/latte_scan/on_gpu.h"

#include <algorithm>
#include <limits>

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/gated_scan/calls_on_gpu.h"
#include "cortado/primitives/latte_scan/kernel_gpu.h"

namespace cortado::latent {
namespace {

using gated::divide_up;
using gated::kGpuChunk;
using gated::kGpuPiece;
using gated::kGpuThreads;

constexpr const char* kSource = "latte_scan/kernel";

// The walks carry S, its sums and its maxima from chunk to chunk.
struct Carried {
  Tensor state, sums, maxima;
};

bool is_apart(int keys, const cuda::Machine& machine) {
  return keys == 64 && machine.shared_bytes() >= gpu_latte_shared_bytes(keys, true, true, true);
}

class Calls {
 public:
  Calls(const GpuLatteInputs& in, cuda::Machine& machine, int64_t parts)
      : machine_(machine),
        theta_(cuda::in_pieces(in.theta)),
        v_(cuda::in_pieces(in.v)),
        batch_(in.v.size(0)),
        tokens_(in.v.size(1)),
        heads_(in.v.size(2)),
        latents_(in.theta.size(3)),
        values_(in.v.size(3)),
        rows_(in.bounds ? int64_t(in.bounds->size()) - 1 : batch_),
        packed_(in.bounds != nullptr),
        softmax_(in.softmax),
        bounds_(in.bounds, tokens_, in.v.device()),
        start_{in.state, in.normalizer, in.maximum} {
    // Packed rows are cut as if each were alone, so that results do not depend on packing.
    part_tokens_ = parts ? kGpuChunk : gated::kShortestPart;
    const int64_t pieces = divide_up(std::min(latents_, values_), kGpuPiece), blocks = rows_ * heads_ * pieces;
    const int64_t alone = packed_ ? heads_ * pieces : blocks, processors = machine_.multiprocessors();
    const int64_t wanted = parts ? parts : alone > processors / 2 ? 1 : 2 * processors / alone;
    parts_ = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, divide_up(bounds_.longest, part_tokens_)));
  }

  LatteResult read(const Tensor& query) {
    const Tensor q = cuda::in_pieces(query.to(v_.scalar_type()));
    LatteResult out{empty(values_), {}, {}, {}};
    const Carried last = states(false);
    const Carried begin = parts_ > 1 ? forward_parts(&last) : start_;
    GpuLatte call = described(q, theta_, v_, out.o, begin);
    if (parts_ == 1) leave(call, last);
    launch("latte_read", call, false, false);
    return {out.o, last.state, last.sums, last.maxima};
  }

  LatteResult scores(const Tensor& query) {
    const Tensor o = at::empty({batch_, tokens_, heads_, latents_}, floats());
    const Tensor carries = at::empty({chunks(), heads_, 2, latents_}, floats());
    const bool whole = parts_ == 1;  // else join() writes the final states, not transposed
    const Carried last = states(whole);
    weights_of(cuda::in_pieces(query), o, carries, last);
    return {o, whole ? turned(last.state) : last.state, last.sums, last.maxima};
  }

  GpuLatteGradients differentiate(const GpuLatteInputs& in, const GpuLatteGradients& given) {
    const Tensor query = cuda::in_pieces(in.query.to(v_.scalar_type()));
    const Tensor grad = given.v.defined() ? cuda::in_pieces(given.v) : at::zeros_like(v_);
    const Tensor carries = at::empty({chunks(), heads_, 2, latents_}, floats());
    const Tensor maxima = at::empty({rows_, heads_, latents_}, floats());
    const Tensor weights = empty(latents_);
    weights_of(grad, weights, carries, {{}, {}, maxima});
    GpuLatteGradients out;
    Tensor p = query;
    out.query = weights;
    if (softmax_) query_gradient(query, weights, p, out.query);
    const Carried behind{turned(given.state), given.normalizer.defined() ? given.normalizer.neg() : Tensor(), maxima};
    go_back(out, behind, grad, p, weights, carries);
    return out;
  }

 private:
  at::TensorOptions floats() const { return v_.options().dtype(at::kFloat); }
  Tensor empty(int64_t width) const { return at::empty({batch_, tokens_, heads_, width}, v_.options()); }
  int64_t chunks() const { return packed_ ? tokens_ / kGpuChunk + rows_ + 1 : rows_ * divide_up(tokens_, kGpuChunk); }

  // Memory for the carried values of one part of each row, or of all parts; `turned`: S^T.
  Carried states(bool turned, int64_t parts = 0) const {
    std::vector<int64_t> sizes{rows_, heads_, turned ? values_ : latents_, turned ? latents_ : values_};
    std::vector<int64_t> sums{rows_, heads_, latents_};
    if (parts) {
      sizes.insert(sizes.begin() + 1, parts);
      sums.insert(sums.begin() + 1, parts);
    }
    return {at::empty(sizes, floats()), at::empty(sums, floats()), at::empty(sums, floats())};
  }

  GpuLatte described(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Carried& begin) const {
    GpuLatte call{};
    gated::GpuScan& scan = call.scan;
    scan.q = cuda::timed(q);
    scan.k = cuda::timed(k);
    scan.v = cuda::timed(v);
    scan.o = cuda::timed(o);
    scan.bounds = bounds_.get();
    scan.batch = int(batch_);
    scan.tokens = int(tokens_);
    scan.heads = int(heads_);
    scan.keys = int(k.size(3));
    scan.values = int(v.size(3));
    scan.parts = int(parts_);
    scan.part_tokens = int(part_tokens_);
    scan.scale = scan.initial_factor = scan.last_factor = 1;
    scan.initial = cuda::floats(begin.state);
    call.normalizer = cuda::floats(begin.sums);
    call.maximum = cuda::floats(begin.maxima);
    call.softmax = softmax_;
    call.latents = int(latents_);
    return call;
  }

  static void leave(GpuLatte& call, const Carried& last) {
    call.scan.last = cuda::mutable_floats(last.state);
    call.last_normalizer = cuda::mutable_floats(last.sums);
    call.last_maximum = cuda::mutable_floats(last.maxima);
  }

  void launch(const char* name, GpuLatte& call, bool turned, bool logits) {
    const int wide = gated::wide(call.scan.keys);
    const bool apart = is_apart(wide, machine_);
    const int64_t blocks = rows_ * heads_ * divide_up(call.scan.values, kGpuPiece);
    const Tensor scratch = at::empty({blocks * parts_, kGpuScratch}, floats());
    call.scratch = scratch.mutable_data_ptr<float>();
    const auto shared = size_t(gpu_latte_shared_bytes(wide, apart, turned, logits));
    machine_.launch(
        {kSource, variant(wide) + (apart ? " APART" : ""), name, unsigned(gpu_latte_threads(apart)), shared},
        {unsigned(blocks), unsigned(parts_)}, &call);
  }
  static std::string variant(int wide) { return "KEYS=" + std::to_string(wide); }
  // For kernels that every variant contains: the variant that is compiled anyway.
  std::string any_variant() const {
    const int wide = gated::wide(std::max(latents_, values_));
    return variant(wide) + (is_apart(wide, machine_) ? " APART" : "");
  }

  // Returns what all parts begin with; writes to `last` what the last part leaves.
  Carried join(const Carried& parts, const Carried& before, const Carried* last, bool turned, bool reverse) {
    const Carried begin{parts.state, at::empty_like(parts.sums), at::empty_like(parts.maxima)};
    const GpuLatteJoin in{cuda::mutable_floats(parts.state),
                          cuda::floats(parts.sums),
                          cuda::floats(parts.maxima),
                          cuda::mutable_floats(begin.sums),
                          cuda::mutable_floats(begin.maxima),
                          cuda::floats(before.state),
                          cuda::floats(before.sums),
                          cuda::floats(before.maxima),
                          last ? cuda::mutable_floats(last->state) : nullptr,
                          last ? cuda::mutable_floats(last->sums) : nullptr,
                          last ? cuda::mutable_floats(last->maxima) : nullptr,
                          int(rows_),
                          int(parts_),
                          int(heads_),
                          int(turned ? values_ : latents_),
                          int(turned ? latents_ : values_),
                          int(latents_),
                          turned,
                          reverse};
    machine_.launch({kSource, any_variant(), "latte_join", kGpuThreads},
                    {unsigned(divide_up(latents_ * values_, kGpuThreads)), unsigned(rows_ * heads_)}, &in);
    return begin;
  }

  Carried forward_parts(const Carried* last) {
    const Carried parts = states(false, parts_);
    GpuLatte call = described(theta_, theta_, v_, v_, {});
    leave(call, parts);
    launch("latte_read_states", call, false, false);
    return join(parts, start_, last, false, false);
  }

  // Returns S^T of every part.
  static Tensor turned(const Tensor& states) {
    return states.defined() ? states.transpose(-1, -2).contiguous() : states;
  }

  // Computes the derivative by p in the type of `weights`, and what is carried before each chunk and after the last.
  void weights_of(const Tensor& grad, const Tensor& weights, const Tensor& carries, const Carried& last) {
    const Carried begin = parts_ > 1 ? forward_parts(&last) : start_;
    const Carried across{turned(begin.state), begin.sums, begin.maxima};
    GpuLatte call = described(grad, v_, theta_, weights, across);
    call.scan.wide = weights.scalar_type() == at::kFloat;
    call.carries = carries.mutable_data_ptr<float>();
    if (parts_ == 1) leave(call, last);
    launch("latte_weights", call, true, false);
  }

  void query_gradient(const Tensor& query, const Tensor& weights, Tensor& p, Tensor& gradient) {
    p = empty(latents_);
    gradient = empty(latents_);
    const GpuQueryGradient in{cuda::timed(query), cuda::timed(weights), cuda::timed(p), cuda::timed(gradient),
                              int(tokens_),       int(heads_),          int(latents_)};
    machine_.launch({kSource, any_variant(), "latte_query_gradient", kGpuThreads},
                    cuda::row_blocks(batch_, tokens_ * heads_, latents_), &in);
  }

  // The reverse walks: dtheta and dv, and the gradients of the initial states.
  void go_back(GpuLatteGradients& out, const Carried& behind, const Tensor& grad, const Tensor& p,
               const Tensor& weights, const Tensor& carries) {
    const auto call_of = [&](const Tensor& o, const Carried& begin) {
      GpuLatte call = described(v_, grad, p, o, begin);
      call.theta = cuda::timed(theta_);
      call.weights = cuda::timed(weights);
      call.carries = carries.mutable_data_ptr<float>();
      return call;
    };
    const bool wanted = start_.maxima.defined();
    const Carried first = wanted ? states(true) : Carried{};
    Carried begin = behind;
    if (parts_ > 1) {
      const Carried parts = states(true, parts_);
      GpuLatte call = call_of(v_, {});
      leave(call, parts);
      launch("latte_logits_states", call, true, true);
      begin = join(parts, behind, wanted ? &first : nullptr, true, true);
    }
    out.theta = empty(latents_);
    GpuLatte logits = call_of(out.theta, begin);
    if (parts_ == 1) leave(logits, first);
    launch("latte_logits", logits, true, true);
    out.v = empty(values_);
    const Carried straight{turned(begin.state), begin.sums, begin.maxima};
    GpuLatte values = described(theta_, p, grad, out.v, straight);
    values.carries = carries.mutable_data_ptr<float>();
    launch("latte_values", values, false, false);
    if (wanted) initial_gradients(out, first);
  }

  // The gradient before the first token is relative to another maximum than the initial state.
  void initial_gradients(GpuLatteGradients& out, const Carried& first) const {
    const auto nothing = -std::numeric_limits<double>::infinity();
    const Tensor factor = at::where((start_.maxima == nothing).logical_or(first.maxima == nothing),
                                    at::zeros({}, floats()), (start_.maxima - first.maxima).exp());
    out.state = turned(first.state) * factor.unsqueeze(-1);
    out.normalizer = first.sums.neg() * factor;
  }

  cuda::Machine& machine_;
  const Tensor theta_, v_;
  const int64_t batch_, tokens_, heads_, latents_, values_, rows_;
  const bool packed_, softmax_;
  const cuda::GpuBounds bounds_;
  const Carried start_;
  int64_t part_tokens_ = 0, parts_ = 1;
};

}  // namespace

GpuLatteInputs with_plain_states(const GpuLatteInputs& in) {
  GpuLatteInputs plain = in;
  for (Tensor* x : {&plain.state, &plain.normalizer, &plain.maximum}) {
    if (x->defined()) *x = x->to(at::kFloat).contiguous();
  }
  return plain;
}

bool gpu_takes(const GpuLatteInputs& in) {
  if (!cuda::are_there({in.theta, in.v}, {at::kBFloat16})) return false;
  // Logits with more than 16 bits are not rounded.
  if (!(in.softmax ? cuda::are_there({in.query}, {at::kBFloat16}) : cuda::is_there(in.query))) return false;
  for (const Tensor* x : {&in.query, &in.theta, &in.v}) {
    if (x->size(2) != in.v.size(2) || x->size(3) % 8 != 0 || x->size(3) > gated::kWidest) return false;
  }
  const int wide = gated::wide(std::max(in.theta.size(3), in.v.size(3)));
  return in.v.size(0) <= cuda::kMostRows &&
         cuda::machine_of(in.v).shared_bytes() >= gpu_latte_shared_bytes(wide, false, true, true);
}

LatteResult read_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(in.v.device());
  return Calls(with_plain_states(in), machine, parts).read(in.query);
}

LatteResult scores_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(in.v.device());
  return Calls(with_plain_states(in), machine, parts).scores(in.query);
}

GpuLatteGradients differentiate_on_gpu(const GpuLatteInputs& in, const GpuLatteGradients& given, cuda::Machine& machine,
                                       int64_t parts) {
  const c10::DeviceGuard guard(in.v.device());
  GpuLatteGradients plain = given;
  for (Tensor* x : {&plain.state, &plain.normalizer}) {
    if (x->defined()) *x = x->to(at::kFloat).contiguous();
  }
  if (plain.v.defined()) plain.v = plain.v.to(in.v.scalar_type());
  return Calls(with_plain_states(in), machine, parts).differentiate(in, plain);
}

// sum over l of dscore_l q . S_l / alpha_l is q times Latte's read of the keys with weights dscore. So the derivative
// by q is that read, and the derivatives of logits and keys are Latte's with q as the incoming gradient.
GpuLatteGradients differentiate_scores_on_gpu(const GpuLatteInputs& in, const GpuLatteGradients& given,
                                              cuda::Machine& machine, int64_t parts) {
  GpuLatteInputs read = in;
  read.query = given.v.defined() ? given.v.to(in.v.scalar_type()) : at::zeros_like(in.theta);
  read.softmax = false;
  GpuLatteGradients out = differentiate_on_gpu(read, {{}, {}, in.query, given.state, given.normalizer}, machine, parts);
  out.query = read_on_gpu(read, machine, parts).o;
  return out;
}

}  // namespace cortado::latent
