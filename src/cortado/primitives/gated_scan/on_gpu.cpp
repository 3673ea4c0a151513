#include "cortado/primitives/gated_scan/on_gpu.h"

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/delta_scan/kernel_gpu.h"
#include "cortado/primitives/delta_scan/on_gpu.h"
#include "cortado/primitives/gated_scan/calls_on_gpu.h"

namespace cortado::gated {

namespace {

// Whether a block's shared memory suffices.
bool fits(const FormInputs& in) {
  const int most = cuda::machine_of(in.x).shared_bytes();
  if (in.beta.defined() && most < delta::gpu_delta_shared_bytes(wide(in.x.size(3)))) return false;
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
         !(options.want_y && options.want_w) && options.decay == DecayKind::kLogs &&
         !(in.beta.defined() && in.g.defined() && in.g.dim() == 4) && !in.bonus.defined() && good(in.x) && good(in.v) &&
         good(in.y) && good(in.w) && factor != 0 && in.x.numel() > 0 && in.v.numel() > 0 &&
         cuda::usable(in.x.device().index()) && fits(in);
}

at::ScalarType operand_type(const Tensor& v, std::initializer_list<int64_t> widths, at::ScalarType other) {
  if (!v.is_cuda() || v.scalar_type() != at::kBFloat16) return other;
  const bool fit = std::all_of(widths.begin(), widths.end(), [](int64_t w) { return w % 8 == 0 && w <= kWidest; });
  return fit && cuda::usable(v.device().index()) ? at::kBFloat16 : other;
}

FormOutputs differentiate_on_gpu(const FormInputs& in, const FormOptions& options, double factor,
                                 const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(in.x.device());
  if (in.beta.defined()) return delta::differentiate_on_gpu(in, options, factor, bounds, machine);
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
