#include "cortado/mechanisms/mamba/op.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/mechanisms/mamba/kernel.h"
#include "cortado/mechanisms/mamba/on_gpu.h"
#include "cortado/primitives/choice.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/recomputed.h"

namespace cortado {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Computes one segment, with all its states. `all` holds x, step, a, b, c, start.
variable_list run_segment(const variable_list& all) {
  const Tensor &x = all[0], &step = all[1], &a = all[2], &b = all[3], &c = all[4], &start = all[5];
  const Tensor decay = step.unsqueeze(3) * a, write = (step * x).unsqueeze(3) * b.unsqueeze(2);  // [B,T,E,N]
  const auto [h, last] = elementwise_scan(decay.flatten(2), write.flatten(2), start.flatten(1));
  return {at::matmul(h.reshape(write.sizes()), c.unsqueeze(3)).squeeze(3), last.view(start.sizes())};
}

// --- By the kernel ---

using kernels::channels;
using kernels::dense_rows;

// The kernel's arguments, which point into `all`: x, step, a, b, c, start.
mamba_kernel::SelectiveScan kernel_call(const variable_list& all) {
  return {.batch = all[0].size(0),
          .tokens = all[0].size(1),
          .channels = all[2].size(0),
          .states = all[2].size(1),
          .x = channels(all[0]),
          .step = channels(all[1]),
          .a = all[2].const_data_ptr<float>(),
          .b = channels(all[3]),
          .c = channels(all[4]),
          .start = all[5].const_data_ptr<float>()};
}

class SelectiveScanFunction : public torch::autograd::Function<SelectiveScanFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& step, const Tensor& a,
                               const Tensor& b, const Tensor& c, const Tensor& start) {
    const variable_list all{dense_rows(x), dense_rows(step), a.contiguous(),
                            dense_rows(b), dense_rows(c),    start.contiguous()};
    const Tensor y = kernels::room(x.sizes(), x.options()), last = at::empty(start.sizes(), start.options());
    mamba_kernel::SelectiveScan call = kernel_call(all);
    call.y = channels(y);
    call.last = last.data_ptr<float>();
    mamba_kernel::selective_scan(call, kernels::parallel(kernels::kAnExponential * x.numel() * a.size(1)));
    ctx->save_for_backward(all);
    return {y, last};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "[mamba] differentiating twice is not supported");
    const variable_list all = ctx->get_saved_variables();
    mamba_kernel::SelectiveScan call = kernel_call(all);
    const auto options = all[0].options();
    const auto room = [&](at::IntArrayRef sizes) { return kernels::room(sizes, options); };
    const Tensor dy = gradients[0].defined() ? dense_rows(gradients[0]) : at::zeros(all[0].sizes(), options);
    const Tensor dlast = gradients[1].defined() ? gradients[1].contiguous() : Tensor();
    const Tensor dx = room(all[0].sizes()), dstep = room(all[0].sizes()), dstart = room(all[5].sizes());
    const Tensor da = room(all[5].sizes());
    const std::vector<int64_t> parts{call.batch, mamba_kernel::parts(call.channels), call.tokens, call.states};
    const Tensor db = room(parts), dc = room(parts);
    call.dy = channels(dy);
    call.dlast = dlast.defined() ? dlast.const_data_ptr<float>() : nullptr;
    call.dx = channels(dx);
    call.dstep = channels(dstep);
    call.da = da.data_ptr<float>();
    call.dstart = dstart.data_ptr<float>();
    call.db_parts = db.data_ptr<float>();
    call.dc_parts = dc.data_ptr<float>();
    mamba_kernel::selective_scan_backward(call, kernels::parallel());
    return {dx, dstep, da.sum(0), db.sum(1), dc.sum(1), dstart};
  }
};

// The scan on a GPU. `bounds` are those of packed sequences; empty if there are none.
class SelectiveScanOnGpu : public torch::autograd::Function<SelectiveScanOnGpu> {
 public:
  // `all`: x, step, a, b, c and the first state.
  static variable_list forward(AutogradContext* ctx, at::TensorList all, const std::vector<int64_t>& bounds) {
    ctx->save_for_backward(all.vec());
    ctx->saved_data["bounds"] = bounds;
    const auto [y, last] = mamba_kernel::scan_on_gpu({all[0], all[1], all[2], all[3], all[4]}, all[5], given(bounds),
                                                     cuda::machine_of(all[0]));
    return {y, last};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "[mamba] differentiating twice is not supported");
    const variable_list all = ctx->get_saved_variables();
    const std::vector<int64_t> bounds = ctx->saved_data["bounds"].toIntVector();
    const Tensor dy = gradients[0].defined() ? gradients[0] : at::zeros_like(all[0]);
    variable_list out = mamba_kernel::differentiate_on_gpu({all[0], all[1], all[2], all[3], all[4]}, all[5],
                                                           given(bounds), dy, gradients[1], cuda::machine_of(all[0]));
    out.emplace_back();  // the bounds have no gradient
    return out;
  }

 private:
  static const std::vector<int64_t>* given(const std::vector<int64_t>& bounds) {
    return bounds.empty() ? nullptr : &bounds;
  }
};

bool kernel_takes(const SelectiveScan& in, const Tensor& start) {
  for (const Tensor& x : {in.x, in.step, in.a, in.b, in.c, start}) {
    if (x.scalar_type() != at::kFloat || !kernels::usable({x})) return false;
  }
  return true;
}

// --- By segments ---

TensorTuple<2> scan_segments(const SelectiveScan& in, Tensor state, int64_t segment_elements) {
  const int64_t tokens = in.x.size(1);
  const int64_t a_token = std::max<int64_t>(1, in.x.size(0) * in.a.numel());
  const int64_t length = std::max<int64_t>(1, segment_elements / a_token);
  std::vector<Tensor> y;
  for (int64_t first = 0; first < tokens; first += length) {
    const auto part = [&](const Tensor& x) { return x.narrow(1, first, std::min(length, tokens - first)); };
    const auto out = recomputed(run_segment, {part(in.x), part(in.step), in.a, part(in.b), part(in.c), state});
    y.push_back(out[0]);
    state = out[1];
  }
  return {y.empty() ? in.x.clone() : at::cat(y, 1), state};
}

}  // namespace

TensorTuple<2> selective_scan(const SelectiveScan& in, const Tensor& start, const OptionalTensor& cu_seqlens,
                              int64_t segment_elements) {
  const NoAutocast as_given;
  const auto bounds = [&] { return sequence_bounds("mamba", *cu_seqlens, in.x.size(1)); };
  const auto pair = [](const variable_list& out) -> TensorTuple<2> { return {out[0], out[1]}; };
  // scan(input, start) on the batch, or on each packed sequence.
  const auto each_sequence = [&](const auto& scan) -> TensorTuple<2> {
    if (!cu_seqlens) return scan(in, start);
    const auto run = [&](const std::vector<Tensor>& timed, const std::vector<Tensor>& rows) -> PackedResult {
      if (timed[0].size(1) == 0) return {{timed[0].clone()}, {rows[0]}};
      const auto [y, last] = scan(SelectiveScan{timed[0], timed[1], in.a, timed[2], timed[3]}, rows[0]);
      return {{y}, {last}};
    };
    const auto joined = for_each_sequence(bounds(), {in.x, in.step, in.b, in.c}, {start}, run);
    return {joined.timed[0], joined.rows[0]};
  };
  return choose(
      "selective_scan", in.x,
      on_cpu(
          "kernel", [&] { return kernel_takes(in, start); },
          [&] {
            return each_sequence([&](const SelectiveScan& one, const Tensor& first) {
              return pair(SelectiveScanFunction::apply(one.x, one.step, one.a, one.b, one.c, first));
            });
          }),
      on_gpu(
          "kernel", [&] { return mamba_kernel::gpu_takes(in, start); },
          [&] {
            const auto rows = cu_seqlens ? bounds() : std::vector<int64_t>();
            return pair(SelectiveScanOnGpu::apply(at::TensorList({in.x, in.step, in.a, in.b, in.c, start}), rows));
          }),
      otherwise("segments", [&] {
        return each_sequence(
            [&](const SelectiveScan& one, const Tensor& first) { return scan_segments(one, first, segment_elements); });
      }));
}

Tensor selective_scan_reference(const SelectiveScan& in) {
  const Tensor v = (in.step * in.x).unsqueeze(-1), g = in.step.unsqueeze(-1) * in.a;  // [B,T,E,1], [B,T,E,N]
  return std::get<0>(gated_scan_reference(in.c.unsqueeze(2), in.b.unsqueeze(2), v, g, "key", 1.0)).squeeze(-1);
}

}  // namespace cortado
