// Computes a form on a GPU by calls of the gated scan's kernels.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "cortado/primitives/common.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/form.h"
#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

constexpr int64_t kWidest = 128, kShortestPart = 1024;  // widest K and V; tokens of the shortest part

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
inline int wide(int64_t keys) { return keys <= 64 ? 64 : 128; }  // the macro KEYS

// x for all heads, or zeros [B,T,1,*] shaped like `like` if x is undefined.
inline Tensor or_zeros(const Tensor& x, const Tensor& like) {
  return x.defined() ? x : at::zeros({like.size(0), like.size(1), 1, like.size(3)}, like.options());
}

inline Tensor across(const Tensor& state) { return state.defined() ? state.transpose(2, 3).contiguous() : state; }

// Intermediate results for the gates' gradient.
struct Crossings {
  Tensor states, products;  // kernel_gpu.h: crossing_states, crossings
  Tensor dots[2];
  int slabs = 0, partials = 0;
};

// The kernel calls of one form.
class Calls {
 public:
  Calls(const FormInputs& in, const FormOptions& options, double factor, const std::vector<int64_t>* bounds,
        cuda::Machine& machine, int64_t parts)
      : machine_(machine),
        batch_(in.x.size(0)),
        tokens_(in.x.size(1)),
        heads_(options.heads),
        rows_(bounds ? int64_t(bounds->size()) - 1 : batch_),
        parts_(parts),
        short_(in.x.scalar_type() == at::kHalf ? at::kHalf : at::kBFloat16),
        wide_(options.wide_read && !options.want_rest),
        factors_(options.decay == DecayKind::kFactors),
        factor_(factor),
        g_(gates_of(in)),
        channels_(g_.defined() && g_.dim() == 4),
        bounds_(bounds, tokens_, in.x.device()) {}

  struct Result {
    Tensor o, last;
  };
  // A walk's inputs, laid out as the kernel reads them.
  struct Pieces {
    Tensor q, k, v, with;
    Pieces(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& with)
        : q(cuda::in_pieces(q)),
          k(cuda::in_pieces(k)),
          v(cuda::in_pieces(v)),
          with(with.defined() ? cuda::in_pieces(with) : with) {}
  };

  // How a walk goes through the table in kernel_gpu.h.
  struct Order {
    bool reverse = false;
    int shift = 0;
    bool across = false;       // the state is S^T, and channels that have gates are the values
    bool from_behind = false;  // the state is dS / factor
  };
  // One walk. `with`: read for the gates' gradient, if `crossings` is set.
  struct Walk {
    const Tensor &q, &k, &v;
    Tensor initial = {}, with = {};
    Order order = {};
    bool want_last = false;
    Crossings* crossings = nullptr;
  };
  Result run(const Walk& walk) {
    const int64_t keys = walk.k.size(3), values = walk.v.size(3), pieces = divide_up(values, kGpuPiece);
    const Pieces in(walk.q, walk.k, walk.v, walk.crossings ? walk.with : Tensor());
    const auto o_options = walk.v.options().dtype(wide_ ? at::kFloat : walk.v.scalar_type());
    Result out{at::empty({batch_, tokens_, heads_, values}, o_options), {}};
    const auto floats = walk.v.options().dtype(at::kFloat);
    if (walk.want_last) out.last = at::empty({rows_, heads_, keys, values}, floats);
    GpuScan scan = described(in, out.o, walk.order.shift);
    scan.initial_factor = walk.order.from_behind ? float(1 / factor_) : 1;
    scan.last_factor = walk.order.from_behind ? float(factor_) : 1;
    if (walk.crossings) add_crossings(scan, *walk.crossings, pieces, wide(keys), floats);
    launch(scan, walk, out.last, pieces, floats);
    return out;
  }

  // Backward with one gate per channel of the keys: each chunk's output when it starts from state 0, and the state that
  // it leaves, [rows, chunks, heads, K, V], chunks in the walk's order.
  struct Alone {
    Tensor o, left;
  };
  Alone each_chunk_alone(const Tensor& q, const Tensor& k, const Tensor& v) {
    const Pieces in(q, k, v, {});
    const int64_t chunks = divide_up(bounds_.longest, kGpuChunk);
    const Alone out{at::empty({batch_, tokens_, heads_, v.size(3)}, v.options()),
                    at::empty({rows_, chunks, heads_, k.size(3), v.size(3)}, v.options().dtype(at::kFloat))};
    GpuScan scan = described(in, out.o, 1);
    scan.parts = int(chunks);
    scan.last = out.left.mutable_data_ptr<float>();
    start_walk(scan, "on_keys_reverse", gpu_channel_shared_bytes(wide(k.size(3)), true), chunks);
    return out;
  }

  Tensor gate_gradient(const Crossings& from, bool reverse) {
    const Tensor gradient = at::empty({batch_, tokens_, heads_}, from.dots[0].options());
    const GpuGateGradient in{from.dots[0].const_data_ptr<float>(),
                             from.dots[1].const_data_ptr<float>(),
                             from.products.const_data_ptr<float>(),
                             cuda::timed(g_),
                             gradient.mutable_data_ptr<float>(),
                             bounds_.get(),
                             int(tokens_),
                             int(heads_),
                             from.slabs,
                             from.partials,
                             int(batch_),
                             reverse};
    const cuda::Blocks blocks{unsigned(rows_), unsigned(divide_up(bounds_.longest, kGpuSegment)),
                              unsigned(divide_up(heads_, kGpuGateHeads))};
    machine_.launch({source(), variant(64), "gated_scan_gate_gradient", kGpuThreads, kGpuThreads * sizeof(float)},
                    blocks, &in);
    return gradient;
  }

  // The gates' gradient with one gate per channel; y and x are the keys' side of the form, [B,T,h,K].
  Tensor channel_gradient(const Crossings& from, const Tensor& y, const Tensor& dy, const Tensor& x, const Tensor& dx,
                          bool reverse) {
    const int64_t keys = x.size(3), pieces = divide_up(keys, kGpuPiece);
    const Tensor all[] = {cuda::in_pieces(y), cuda::in_pieces(dy), cuda::in_pieces(x), cuda::in_pieces(dx)};
    const Tensor gradient = at::empty({batch_, tokens_, heads_, keys}, from.products.options());
    const GpuChannelGradient in{cuda::timed(all[0]),
                                cuda::timed(all[1]),
                                cuda::timed(all[2]),
                                cuda::timed(all[3]),
                                cuda::timed(g_),
                                from.products.const_data_ptr<float>(),
                                gradient.mutable_data_ptr<float>(),
                                bounds_.get(),
                                int(tokens_),
                                int(heads_),
                                int(keys),
                                int(pieces),
                                reverse};
    const cuda::Blocks blocks{unsigned(rows_ * heads_), unsigned(divide_up(bounds_.longest, kGpuSegment)),
                              unsigned(pieces)};
    machine_.launch({source(), variant(64), "channel_gradient", kGpuThreads, sizeof(float) * 2 * kGpuThreads}, blocks,
                    &in);
    return gradient;
  }

  double factor() const { return factor_; }

  // Whether the states whose product gives the gates' gradient are the transposed ones.
  bool meets_across() const { return channels_; }
  Tensor gradient_of_gates(const Crossings& from, const Tensor& y, const Tensor& dy, const Tensor& x, const Tensor& dx,
                           bool reverse) {
    return channels_ ? channel_gradient(from, y, dy, x, dx, reverse) : gate_gradient(from, reverse);
  }

  // dL/dS [rows, heads, K, V] before each row's first gate, given `gradient`, dL/dS after it.
  Tensor before_first_gates(const Tensor& gradient, bool reverse, const std::vector<int64_t>* bounds) const {
    if (!g_.defined()) return gradient;
    const Tensor kept = first_gates(reverse, bounds);
    return gradient * (kept.dim() == 3 ? kept.unsqueeze(-1) : kept.unsqueeze(-1).unsqueeze(-1));
  }

 protected:
  // The factor by which the first token of each row (in the scan's order) multiplies the state: [rows, heads(, K)]; 1
  // for empty rows.
  Tensor first_gates(bool reverse, const std::vector<int64_t>* bounds) const {
    const auto decays = [&](const Tensor& gates) { return factors_ ? gates : gates.exp(); };
    if (!bounds) {
      const Tensor first = expand_heads(g_.select(1, reverse ? tokens_ - 1 : 0), heads_, 1);
      return decays(first);
    }
    std::vector<int64_t> first;
    std::vector<float> counts;
    for (size_t i = 1; i < bounds->size(); ++i) {
      const int64_t begin = (*bounds)[i - 1], end = (*bounds)[i];
      counts.push_back(begin < end);
      first.push_back(begin == end ? 0 : reverse ? end - 1 : begin);
    }
    const Tensor gates = expand_heads(g_[0].index_select(0, at::tensor(first, at::kLong).to(g_.device())), heads_, 1);
    std::vector<int64_t> sizes(size_t(gates.dim()), 1);
    sizes[0] = rows_;
    const Tensor there = at::tensor(counts).to(g_.device()).view(sizes);
    return at::where(there > 0, decays(gates), at::ones_like(gates));
  }

  // The gates in float32; with one per channel they are read in pieces of four and made dense.
  static Tensor gates_of(const FormInputs& in) {
    if (!in.g.defined()) return in.g;
    const Tensor g = in.g.to(at::kFloat);
    return g.dim() == 4 ? cuda::in_pieces(g) : g;
  }
  // The kernel file: one gate per head or none; or one per channel.
  const char* source() const { return channels_ ? "gated_scan/kernel_channels" : "gated_scan/kernel"; }
  std::string variant(int64_t keys) const { return cuda::variant_of(short_, "KEYS=" + std::to_string(wide(keys))); }

  GpuScan described(const Pieces& in, const Tensor& o, int shift) const {
    GpuScan scan{};
    scan.q = cuda::timed(in.q);
    scan.k = cuda::timed(in.k);
    scan.v = cuda::timed(in.v);
    scan.with = cuda::timed(in.with);
    scan.o = cuda::timed(o);
    scan.wide = wide_;
    scan.g = cuda::timed(g_);
    scan.bounds = bounds_.get();
    scan.batch = int(batch_);
    scan.tokens = int(tokens_);
    scan.heads = int(heads_);
    scan.keys = int(in.k.size(3));
    scan.values = int(in.v.size(3));
    scan.parts = 1;
    scan.part_tokens = kGpuChunk;
    scan.shift = shift;
    scan.scale = float(factor_);
    scan.initial_factor = scan.last_factor = 1;
    return scan;
  }

  // An upper bound for the number of stretches of `each` tokens (gpu_first_stretch).
  int64_t stretches(int64_t each) const {
    return bounds_.get() ? tokens_ / each + rows_ + 1 : rows_ * divide_up(tokens_, each);
  }
  int64_t segments() const { return stretches(kGpuSegment); }

  // The first of two calls writes the states at the segments' ends; the second multiplies them by its own.
  void add_crossings(GpuScan& scan, Crossings& to, int64_t pieces, int64_t keys, const at::TensorOptions& floats) {
    const bool second = to.states.defined();
    to.slabs = int(2 * pieces);
    to.partials = int(pieces * (channels_ ? 4 * kGpuPiece : kGpuThreads / 32));
    if (!channels_) {
      Tensor& dots = to.dots[second];
      dots = at::empty({to.slabs, batch_, tokens_, heads_}, floats);
      scan.dots = dots.mutable_data_ptr<float>();
    }
    if (!second) to.states = at::empty({segments(), heads_, pieces, keys * kGpuPiece}, floats);
    if (second) to.products = at::empty({segments(), heads_, to.partials}, floats);
    scan.crossing_states = to.states.mutable_data_ptr<float>();
    scan.crossings = second ? to.products.mutable_data_ptr<float>() : nullptr;
  }

  // Blocks of a walk in one part. Packed rows count as if each were alone, so that their results do not depend on the
  // packing.
  int64_t blocks(int64_t pieces) const { return (bounds_.get() ? 1 : rows_) * heads_ * pieces; }

  // Sets the number of parts of time, at most `wanted` unless parts_ is given, and returns it.
  int64_t cut(GpuScan& scan, int64_t wanted) const {
    scan.part_tokens = int(parts_ ? kGpuChunk : kShortestPart);
    scan.parts = int(std::clamp<int64_t>(parts_ ? parts_ : wanted, 1,
                                         std::max<int64_t>(1, divide_up(bounds_.longest, scan.part_tokens))));
    return scan.parts;
  }

  // Parts needed if a row's heads do not fill the GPU: two blocks per multiprocessor.
  int64_t parts_for(int64_t blocks) const {
    const int64_t processors = machine_.multiprocessors();
    return blocks > processors / 2 ? 1 : 2 * processors / blocks;
  }

  void launch(GpuScan& scan, const Walk& walk, const Tensor& last, int64_t pieces, const at::TensorOptions& floats) {
    const int64_t keys = scan.keys;
    const std::string base = !channels_          ? "gated_scan"
                             : walk.order.across ? "on_values"
                                                 : "on_keys",
                      behind = walk.order.reverse ? "_reverse" : "";
    const int wide_keys = wide(keys);
    const int shared =
        channels_ ? gpu_channel_shared_bytes(wide_keys, !walk.order.across) : gpu_shared_bytes(wide_keys);
    const auto start = [&](const std::string& kind, int64_t parts) {
      start_walk(scan, base + kind + behind, shared, parts);
    };
    const cuda::Kernel join{source(), variant(keys), channels_ ? "join" : "gated_scan_join", kGpuThreads};
    in_parts(scan, walk, last, pieces, floats, join, start);
    start(walk.crossings && !channels_ ? "_dot" : "", scan.parts);
  }

  void start_walk(const GpuScan& scan, const std::string& name, int shared, int64_t parts) {
    const cuda::Blocks grid{unsigned(rows_ * heads_ * divide_up(scan.values, kGpuPiece)), unsigned(parts)};
    machine_.launch({source(), variant(scan.keys), name.c_str(), kGpuThreads, size_t(shared)}, grid, &scan);
  }

  // Decides into how many parts of time a walk is cut. If there are several, computes the state that each begins with,
  // by start("_states", parts) and `join_kernel`.
  template <typename Start>
  void in_parts(GpuScan& scan, const Walk& walk, const Tensor& last, int64_t pieces, const at::TensorOptions& floats,
                const cuda::Kernel& join_kernel, const Start& start) {
    const int64_t keys = scan.keys, values = scan.values;
    scan.initial = cuda::floats(walk.initial);
    scan.last = cuda::mutable_floats(last);
    const int64_t parts = cut(scan, parts_for(blocks(pieces)));
    if (parts == 1) return;
    const Tensor states = at::empty({rows_, parts, heads_, keys, values}, floats);
    const int64_t kept_width = !channels_ ? 1 : walk.order.across ? values : keys;
    const Tensor kept = at::empty({rows_, parts, heads_, kept_width}, floats);
    GpuJoin join{states.mutable_data_ptr<float>(),
                 kept.const_data_ptr<float>(),
                 scan.initial,
                 scan.last,
                 int(rows_),
                 int(parts),
                 int(heads_),
                 int(keys * values),
                 int(values),
                 int(kept_width),
                 !walk.order.across,
                 scan.initial_factor,
                 scan.last_factor};
    scan.initial = nullptr;
    scan.last = join.states;
    scan.kept = kept.mutable_data_ptr<float>();
    const float last_factor = std::exchange(scan.last_factor, 1.0f);
    start("_states", parts);
    machine_.launch(join_kernel, {unsigned(divide_up(keys * values, kGpuThreads)), unsigned(rows_ * heads_)}, &join);
    scan.initial = join.states;
    scan.last = nullptr;
    scan.initial_factor = 1;
    scan.last_factor = last_factor;
    part_states_ = states;  // must live until the walk has been launched, which is before the next call
  }

 protected:
  cuda::Machine& machine_;
  const int64_t batch_, tokens_, heads_, rows_, parts_;
  const at::ScalarType short_;  // of q, k and v
  const bool wide_, factors_;   // wide_: reads are float32; factors_: gates are factors, not logs
  const double factor_;
  const Tensor g_;
  const bool channels_;
  const cuda::GpuBounds bounds_;
  Tensor part_states_;
};

// Computes the form by such walks; see the table in kernel_gpu.h.
template <typename Walks>
FormOutputs differentiate_by(Walks& calls, const FormInputs& in, const FormOptions& options,
                             const std::vector<int64_t>* bounds) {
  const bool keys_side = options.want_y;  // the side computed first: dy, with the transposed state, or dw
  const bool reverse = options.reverse;
  const int next = in.bonus.defined() ? 0 : reverse ? -1 : 1;  // with a bonus a token reads the state before its gate
  const bool backward = options.want_rest;
  const Tensor y = backward || !keys_side ? or_zeros(in.y, in.x) : in.y;
  const Tensor w = backward || keys_side ? or_zeros(in.w, in.v) : in.w;
  const Tensor initial = in.initial.defined() ? in.initial.to(at::kFloat).contiguous() : in.initial;
  FormOutputs out;
  Crossings crossings;
  const bool gate = options.want_gate && in.g.defined();
  const auto dots = gate ? &crossings : nullptr;
  const auto run = [&](Calls::Walk walk, bool want_last, Crossings* to) {
    walk.want_last = want_last;
    walk.crossings = to;
    return calls.run(walk);
  };
  const Calls::Walk to_y{w, in.v, in.x, across(initial), y, {.reverse = reverse, .across = true}};
  const Calls::Walk to_w{y, in.x, in.v, initial, w, {.reverse = reverse}};
  if (!backward) {
    const auto read = run(keys_side ? to_y : to_w, true, nullptr);
    (keys_side ? out.y : out.w) = read.o;
    out.final_state = keys_side ? across(read.last) : read.last;
    return out;
  }
  const Tensor behind = in.final_grad.defined() ? in.final_grad.to(at::kFloat).contiguous() : in.final_grad;
  const bool want_initial = in.initial.defined();
  const Calls::Order back{.reverse = !reverse, .shift = next, .from_behind = true},
      back_across{.reverse = !reverse, .shift = next, .across = true, .from_behind = true};
  const Calls::Walk to_x{in.v, w, y, across(behind), in.x, back_across}, to_v{in.x, y, w, behind, in.v, back};
  // The two calls whose states meet are the transposed ones or, without gates per channel, those of the wanted side.
  const bool meet_across = keys_side || (gate && calls.meets_across());
  Tensor dy;
  if (meet_across) dy = run(to_y, false, dots).o;
  if (keys_side) out.y = dy;
  if (!keys_side) out.w = run(to_w, false, meet_across ? nullptr : dots).o;
  out.x = run(to_x, false, meet_across ? dots : nullptr).o;
  const auto dv = run(to_v, want_initial, meet_across ? nullptr : dots);
  out.v = dv.o;
  if (want_initial) {
    out.initial = in.bonus.defined() ? dv.last : calls.before_first_gates(dv.last, reverse, bounds);
  }
  if (gate) out.g = calls.gradient_of_gates(crossings, y, dy, in.x, out.x, reverse);
  return out;
}

}  // namespace cortado::gated
