#include "cortado/primitives/gated_scan/on_gpu.h"

#include "cortado/primitives/common.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

namespace {

using cuda::in_pieces, cuda::timed;

constexpr int64_t kWidest = 128, kShortestPart = 1024;  // in tokens

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
int wide(int64_t keys) { return keys <= 64 ? 64 : 128; }  // KEYS

Tensor across(const Tensor& state) { return state.defined() ? state.transpose(2, 3).contiguous() : state; }

constexpr const char* kHeads = "gated_scan/kernel";              // a gate for each head, or none
constexpr const char* kChannels = "gated_scan/kernel_channels";  // or for each channel

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
        factor_(factor),
        g_(gates_of(in)),
        channels_(g_.defined() && g_.dim() == 4),
        bounds_(bounds, tokens_, in.x.device()) {}

  struct Result {
    Tensor o, last;
  };

  // kernel_gpu.h's table. `across`: the state is S^T, and channels with gates are the values. `from_behind`: it is
  // dS / factor. `with`, `crossings`: where the gates' gradient is wanted.
  Result run(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& initial, bool reverse, int shift,
             bool across, bool want_last, bool from_behind, const Tensor& with = {}, Crossings* crossings = nullptr) {
    const int64_t keys = k.size(3), values = v.size(3), pieces = divide_up(values, kGpuPiece);
    const Tensor all[] = {in_pieces(q), in_pieces(k), in_pieces(v), with.defined() ? in_pieces(with) : with};
    Result out{at::empty({batch_, tokens_, heads_, values}, v.options()), {}};
    const auto floats = v.options().dtype(at::kFloat);
    if (want_last) out.last = at::empty({rows_, heads_, keys, values}, floats);
    GpuScan scan{};
    scan.q = timed(all[0]);
    scan.k = timed(all[1]);
    scan.v = timed(all[2]);
    scan.with = timed(all[3]);
    scan.o = timed(out.o);
    scan.g = timed(g_);
    scan.bounds = bounds_.get();
    scan.batch = int(batch_);
    scan.tokens = int(tokens_);
    scan.heads = int(heads_);
    scan.keys = int(keys);
    scan.values = int(values);
    scan.shift = shift;
    scan.scale = float(factor_);
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
                             timed(g_),
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
    const Tensor all[] = {in_pieces(y), in_pieces(dy), in_pieces(x), in_pieces(dx)};
    const Tensor gradient = at::empty({batch_, tokens_, heads_, keys}, from.products.options());
    const GpuChannelGradient in{timed(all[0]),
                                timed(all[1]),
                                timed(all[2]),
                                timed(all[3]),
                                timed(g_),
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

 private:
  // Float32; channels, which are read in pieces of four, without gaps.
  static Tensor gates_of(const FormInputs& in) {
    if (!in.g.defined()) return in.g;
    const Tensor g = in.g.to(at::kFloat);
    return g.dim() == 4 ? in_pieces(g) : g;
  }
  const char* source() const { return channels_ ? kChannels : kHeads; }
  std::string variant(int64_t keys) const {
    return "KEYS=" + std::to_string(wide(keys)) + (half_ ? " CORTADO_HALF" : "");
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

  cuda::Machine& machine_;
  const int64_t batch_, tokens_, heads_, rows_, parts_;
  const bool half_;
  const double factor_;
  const Tensor g_;
  const bool channels_;
  const cuda::GpuBounds bounds_;
};

// Whether a block's shared memory suffices.
bool fits(const FormInputs& in) {
  const int most = cuda::machine_of(in.x).shared_bytes();
  if (!in.g.defined() || in.g.dim() == 3) return most >= gpu_shared_bytes(wide(std::max(in.x.size(3), in.v.size(3))));
  return most >= std::max(gpu_channel_shared_bytes(wide(in.x.size(3)), true),
                          gpu_channel_shared_bytes(wide(in.v.size(3)), false));
}

}  // namespace

bool gpu_takes(const FormInputs& in, const FormOptions& options, double factor) {
  const auto type = in.x.scalar_type();
  const auto good = [&](const Tensor& x) {
    return !x.defined() || (x.is_cuda() && x.scalar_type() == type && x.size(3) % 8 == 0 && x.size(3) <= kWidest);
  };
  return in.x.is_cuda() && (type == at::kBFloat16 || type == at::kHalf) && options.type == at::kFloat &&
         !(options.want_y && options.want_w) && options.decay == DecayKind::kLogs && !in.beta.defined() &&
         !in.bonus.defined() && good(in.x) && good(in.v) && good(in.y) && good(in.w) && factor != 0 &&
         in.x.numel() > 0 && in.v.numel() > 0 && cuda::usable(in.x.device().index()) && fits(in);
}

at::ScalarType operand_type(const Tensor& v, std::initializer_list<int64_t> widths, at::ScalarType other) {
  if (!v.is_cuda() || v.scalar_type() != at::kBFloat16) return other;
  const bool fit = std::all_of(widths.begin(), widths.end(), [](int64_t w) { return w % 8 == 0 && w <= kWidest; });
  return fit && cuda::usable(v.device().index()) ? at::kBFloat16 : other;
}

FormOutputs differentiate_on_gpu(const FormInputs& in, const FormOptions& options, double factor,
                                 const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(in.x.device());
  Calls calls(in, options, factor, bounds, machine, parts);
  const bool keys_side = options.want_y;  // of what is computed first: dy, with the state across, or dw
  const bool reverse = options.reverse;
  const int next = reverse ? -1 : 1;
  const auto given = [&](const Tensor& x, const Tensor& like) {
    return x.defined() ? x : at::zeros({in.x.size(0), in.x.size(1), 1, like.size(3)}, like.options());
  };
  const bool backward = options.want_rest;
  const Tensor y = backward || !keys_side ? given(in.y, in.x) : in.y;
  const Tensor w = backward || keys_side ? given(in.w, in.v) : in.w;
  const Tensor initial = in.initial.defined() ? in.initial.to(at::kFloat).contiguous() : in.initial;
  FormOutputs out;
  Crossings crossings;
  const bool gate = options.want_gate && in.g.defined();
  const auto dots = gate ? &crossings : nullptr;
  const auto run_y = [&](bool want_last, const Tensor& with = {}, Crossings* to = nullptr) {
    return calls.run(w, in.v, in.x, across(initial), reverse, 0, true, want_last, false, with, to);
  };
  const auto run_w = [&](bool want_last, const Tensor& with = {}, Crossings* to = nullptr) {
    return calls.run(y, in.x, in.v, initial, reverse, 0, false, want_last, false, with, to);
  };
  if (!backward) {
    const auto read = keys_side ? run_y(true) : run_w(true);
    (keys_side ? out.y : out.w) = read.o;
    out.final_state = keys_side ? across(read.last) : read.last;
    return out;
  }
  const Tensor behind = in.final_grad.defined() ? in.final_grad.to(at::kFloat).contiguous() : in.final_grad;
  const bool want_initial = in.initial.defined();
  // The two calls whose states meet are those across, or where a gate is a head's those of the side that is wanted.
  const bool meet_across = keys_side || (gate && in.g.dim() == 4);
  const auto run_x = [&](Crossings* to) {
    return calls.run(in.v, w, y, across(behind), !reverse, next, true, false, true, in.x, to);
  };
  const auto run_v = [&](Crossings* to) {
    return calls.run(in.x, y, w, behind, !reverse, next, false, want_initial, true, in.v, to);
  };
  Tensor dy;
  if (meet_across) dy = run_y(false, y, dots).o;
  if (keys_side) out.y = dy;
  if (!keys_side) out.w = run_w(false, w, meet_across ? nullptr : dots).o;
  out.x = run_x(meet_across ? dots : nullptr).o;
  const auto dv = run_v(meet_across ? nullptr : dots);
  out.v = dv.o;
  if (want_initial) {
    out.initial = dv.last;
    if (in.g.defined()) {
      const Tensor kept = calls.first_gates(reverse, bounds);
      out.initial = dv.last * (kept.dim() == 3 ? kept.unsqueeze(-1) : kept.unsqueeze(-1).unsqueeze(-1));
    }
  }
  if (gate && in.g.dim() == 4) out.g = calls.channel_gradient(crossings, y, dy, in.x, out.x, reverse);
  if (gate && in.g.dim() == 3) out.g = calls.gate_gradient(crossings, reverse);
  return out;
}

}  // namespace cortado::gated
