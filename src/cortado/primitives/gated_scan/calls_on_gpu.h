// What the forms on a GPU are made of: calls of the gated scan's kernels.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "cortado/primitives/common.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/chunked.h"
#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

constexpr int64_t kWidest = 128, kShortestPart = 1024;  // of K and V; in tokens

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
inline int wide(int64_t keys) { return keys <= 64 ? 64 : 128; }  // KEYS

inline Tensor across(const Tensor& state) { return state.defined() ? state.transpose(2, 3).contiguous() : state; }

// What the gates' gradient is made of.
struct Crossings {
  Tensor states, products;  // kernel_gpu.h: crossing_states, crossings
  Tensor dots[2];
  int slabs = 0, partials = 0;
};

// The calls of one form.
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
        half_(in.x.scalar_type() == at::kHalf),
        wide_(options.wide_read && !options.want_rest),
        factor_(factor),
        g_(gates_of(in)),
        channels_(g_.defined() && g_.dim() == 4),
        bounds_(bounds, tokens_, in.x.device()) {}

  struct Result {
    Tensor o, last;
  };
  // A walk's inputs, as it reads them.
  struct Pieces {
    Tensor q, k, v, with;
    Pieces(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& with)
        : q(cuda::in_pieces(q)),
          k(cuda::in_pieces(k)),
          v(cuda::in_pieces(v)),
          with(with.defined() ? cuda::in_pieces(with) : with) {}
  };

  // kernel_gpu.h's table. `across`: the state is S^T, and channels with gates are the values. `from_behind`: it is
  // dS / factor. `with`, `crossings`: where the gates' gradient is wanted.
  Result run(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& initial, bool reverse, int shift,
             bool across, bool want_last, bool from_behind, const Tensor& with = {}, Crossings* crossings = nullptr) {
    const int64_t keys = k.size(3), values = v.size(3), pieces = divide_up(values, kGpuPiece);
    const Pieces in(q, k, v, with);
    const auto o_options = v.options().dtype(wide_ ? at::kFloat : v.scalar_type());
    Result out{at::empty({batch_, tokens_, heads_, values}, o_options), {}};
    const auto floats = v.options().dtype(at::kFloat);
    if (want_last) out.last = at::empty({rows_, heads_, keys, values}, floats);
    GpuScan scan = described(in, out.o, shift);
    scan.initial_factor = from_behind ? float(1 / factor_) : 1;
    scan.last_factor = from_behind ? float(factor_) : 1;
    if (crossings) add_crossings(scan, *crossings, pieces, wide(keys), floats);
    launch(scan, initial, out.last, reverse, across, crossings != nullptr, pieces, floats);
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

  // The same where each channel has a gate: y and x are the keys' side of the form, [B,T,h,K].
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
    machine_.launch({source(), variant(64), "channel_gradient", kGpuThreads, kGpuThreads * 2 * sizeof(float)}, blocks,
                    &in);
    return gradient;
  }

  // e^g of the first token of each row, on the scan's way: [rows, heads(, K)], 1 for empty rows.
  Tensor first_gates(bool reverse, const std::vector<int64_t>* bounds) const {
    if (!bounds) return expand_heads(g_.select(1, reverse ? tokens_ - 1 : 0), heads_, 1).exp();
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
    return at::where(there > 0, gates, at::zeros_like(gates)).exp();
  }

 protected:
  // Float32; channels, which are read in pieces of four, without gaps.
  static Tensor gates_of(const FormInputs& in) {
    if (!in.g.defined()) return in.g;
    const Tensor g = in.g.to(at::kFloat);
    return g.dim() == 4 ? cuda::in_pieces(g) : g;
  }
  // A gate for each head, or none; or for each channel.
  const char* source() const { return channels_ ? "gated_scan/kernel_channels" : "gated_scan/kernel"; }
  std::string variant(int64_t keys) const {
    return "KEYS=" + std::to_string(wide(keys)) + (half_ ? " CORTADO_HALF" : "");
  }

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

  int64_t segments() const {
    return bounds_.get() ? tokens_ / kGpuSegment + rows_ + 1 : rows_ * divide_up(tokens_, kGpuSegment);
  }

  // The first call leaves states where segments end, the second multiplies them by its own.
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

  // Where a row's heads do not fill the GPU: two blocks a multiprocessor.
  int64_t parts_for(int64_t blocks) const {
    if (parts_) return parts_;
    const int64_t processors = machine_.multiprocessors();
    return blocks > processors / 2 ? 1 : 2 * processors / blocks;
  }

  void launch(GpuScan& scan, const Tensor& initial, const Tensor& last, bool reverse, bool across, bool dot,
              int64_t pieces, const at::TensorOptions& floats) {
    const int64_t keys = scan.keys, values = scan.values, blocks = rows_ * heads_ * pieces;
    const std::string behind = reverse ? "_reverse" : "", base = !channels_ ? "gated_scan"
                                                                 : across   ? "on_values"
                                                                            : "on_keys";
    const int wide_keys = wide(keys);
    const auto start = [&](const std::string& name, int64_t parts) {
      const cuda::Blocks grid{unsigned(blocks), unsigned(parts)};
      const int shared = channels_ ? gpu_channel_shared_bytes(wide_keys, !across) : gpu_shared_bytes(wide_keys);
      machine_.launch({source(), variant(keys), name.c_str(), kGpuThreads, size_t(shared)}, grid, &scan);
    };
    scan.initial = initial.defined() ? initial.const_data_ptr<float>() : nullptr;
    scan.last = last.defined() ? last.mutable_data_ptr<float>() : nullptr;
    // Packed rows are cut as if each was alone, so that they are computed as when they are.
    scan.part_tokens = int(parts_ ? kGpuChunk : kShortestPart);
    const int64_t parts = std::clamp<int64_t>(parts_for(bounds_.get() ? heads_ * pieces : blocks), 1,
                                              std::max<int64_t>(1, divide_up(bounds_.longest, scan.part_tokens)));
    scan.parts = int(parts);
    Tensor states, kept;
    if (parts > 1) {
      states = at::empty({rows_, parts, heads_, keys, values}, floats);
      const int64_t kept_width = !channels_ ? 1 : across ? values : keys;
      kept = at::empty({rows_, parts, heads_, kept_width}, floats);
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
                   !across,
                   scan.initial_factor,
                   scan.last_factor};
      scan.initial = nullptr;
      scan.last = join.states;
      scan.kept = kept.mutable_data_ptr<float>();
      const float last_factor = std::exchange(scan.last_factor, 1.0f);
      start(base + "_states" + behind, parts);
      machine_.launch({source(), variant(keys), channels_ ? "join" : "gated_scan_join", kGpuThreads},
                      {unsigned(divide_up(keys * values, kGpuThreads)), unsigned(rows_ * heads_)}, &join);
      scan.initial = join.states;
      scan.last = nullptr;
      scan.initial_factor = 1;
      scan.last_factor = last_factor;
    }
    start(base + (dot && !channels_ ? "_dot" : "") + behind, scan.parts);
  }

 protected:
  cuda::Machine& machine_;
  const int64_t batch_, tokens_, heads_, rows_, parts_;
  const bool half_, wide_;  // wide_: what is read comes in float32
  const double factor_;
  const Tensor g_;
  const bool channels_;
  const cuda::GpuBounds bounds_;
};

}  // namespace cortado::gated
