#include "cortado/nn/fused/ops.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/base/error.h"
#include "cortado/nn/fused/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x [..., D] as [rows, D], every row's elements side by side: a view where it can be one.
Tensor as_rows(const Tensor& x) {
  const Tensor flat = x.reshape({-1, x.size(-1)});
  return flat.stride(1) == 1 || flat.size(1) == 1 ? flat : flat.contiguous();
}

Rows rows(const Tensor& x) {
  const kernels::Timed all = kernels::timed(x.unsqueeze(0).unsqueeze(0), 1);
  return {all.data, all.type, x.stride(0)};
}

Tensor like(const Tensor& x) { return at::empty(x.sizes(), x.options()); }
Tensor parts_of(const Tensor& x) {
  return at::empty({parts_size(x.size(0), x.size(1))}, x.options().dtype(at::kFloat));
}
float* floats(const Tensor& x) { return x.data_ptr<float>(); }
Tensor plain(const Tensor& x) { return x.to(at::kFloat).contiguous(); }

// A gradient that did not arrive is zero.
Tensor gradient_rows(const Tensor& gradient, const Tensor& like) {
  return gradient.defined() ? as_rows(gradient) : at::zeros_like(like);
}

void once(const char* name) {
  fail_input_if(at::GradMode::is_enabled(), "[", name, "] can be differentiated once only");
}

// --- RMS norm. ---

RmsNorm rms_norm_call(const Tensor& x, const Tensor& weight, const Tensor& scale, double eps) {
  return {.rows = x.size(0),
          .width = x.size(1),
          .groups = scale.size(1),
          .eps = static_cast<float>(eps),
          .x = rows(x),
          .y = {},
          .weight = floats(weight),
          .scale = floats(scale)};
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
    const Tensor in = as_rows(x), wide = plain(weight), y = like(in);
    const Tensor scale = at::empty({in.size(0), groups}, wide.options());
    RmsNorm call = rms_norm_call(in, wide, scale, eps);
    call.y = rows(y);
    fused::rms_norm(call, kernels::parallel());
    context->save_for_backward({x, weight, scale});
    return y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    once("rms_norm");
    const auto saved = context->get_saved_variables();
    const Tensor x = as_rows(saved[0]), weight = plain(saved[1]), dy = gradient_rows(gradients[0], x);
    const Tensor dx = like(x), dweight = like(weight), parts = parts_of(x);
    RmsNorm call = rms_norm_call(x, weight, saved[2], 0);
    call.dy = rows(dy);
    call.dx = rows(dx);
    call.dweight = floats(dweight);
    call.parts = floats(parts);
    rms_norm_backward(call, kernels::parallel());
    return {dx.view(saved[0].sizes()), dweight.to(saved[1].scalar_type()), Tensor(), Tensor()};
  }
};

// --- Gated SiLU. ---

GatedSilu gated_silu_call(const Tensor& gate, const Tensor& up) {
  return {.rows = gate.size(0), .width = gate.size(1), .gate = rows(gate), .up = rows(up), .y = {}};
}

class GatedSiluFunction : public torch::autograd::Function<GatedSiluFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    const Tensor in = as_rows(gate), factor = as_rows(up), y = at::empty(in.sizes(), in.options());
    GatedSilu call = gated_silu_call(in, factor);
    call.y = rows(y);
    fused::gated_silu(call, kernels::parallel());
    context->save_for_backward({gate, up});
    return y.view(gate.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    once("gated_silu");
    const auto saved = context->get_saved_variables();
    const Tensor gate = as_rows(saved[0]), up = as_rows(saved[1]), dy = gradient_rows(gradients[0], gate);
    const Tensor dgate = at::empty(gate.sizes(), gate.options()), dup = at::empty(up.sizes(), up.options());
    GatedSilu call = gated_silu_call(gate, up);
    call.dy = rows(dy);
    call.dgate = rows(dgate);
    call.dup = rows(dup);
    gated_silu_backward(call, kernels::parallel());
    return {dgate.view(saved[0].sizes()), dup.view(saved[1].sizes())};
  }
};

// --- The RG-LRU's gates. ---

RgLruGates rg_lru_call(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope, const Tensor& first,
                       double largest_slope) {
  return {.rows = x.size(0),
          .width = x.size(1),
          .r = rows(r),
          .i = rows(i),
          .x = rows(x),
          .slope = floats(slope),
          .first = static_cast<const uint8_t*>(first.data_ptr()),
          .largest_slope = static_cast<float>(largest_slope),
          .log_a = {},
          .b = {}};
}

class RgLruFunction : public torch::autograd::Function<RgLruFunction> {
 public:
  // first: bool [B,T], contiguous.
  static variable_list forward(AutogradContext* context, const Tensor& r, const Tensor& i, const Tensor& x,
                               const Tensor& slope, const Tensor& first, double largest_slope) {
    const Tensor recurrence = as_rows(r), input = as_rows(i), in = as_rows(x), slopes = plain(slope);
    const Tensor log_a = at::empty(in.sizes(), slopes.options()), b = at::empty(in.sizes(), slopes.options());
    RgLruGates call = rg_lru_call(recurrence, input, in, slopes, first, largest_slope);
    call.log_a = rows(log_a);
    call.b = rows(b);
    fused::rg_lru_gates(call, kernels::parallel());
    context->save_for_backward({r, i, x, slope, first});
    context->saved_data["largest_slope"] = largest_slope;
    return {log_a.view(x.sizes()), b.view(x.sizes())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    once("rg_lru_gates");
    const auto saved = context->get_saved_variables();
    const Tensor r = as_rows(saved[0]), i = as_rows(saved[1]), x = as_rows(saved[2]), slope = plain(saved[3]);
    RgLruGates call = rg_lru_call(r, i, x, slope, saved[4], context->saved_data["largest_slope"].toDouble());
    const Tensor dlog_a = gradient_rows(gradients[0], x), db = gradient_rows(gradients[1], x);
    const Tensor dr = like(r), di = like(i), dx = like(x), dslope = like(slope), parts = parts_of(x);
    call.dlog_a = rows(dlog_a);
    call.db = rows(db);
    call.dr = rows(dr);
    call.di = rows(di);
    call.dx = rows(dx);
    call.dslope = floats(dslope);
    call.parts = floats(parts);
    rg_lru_gates_backward(call, kernels::parallel());
    return {dr.view(saved[0].sizes()),
            di.view(saved[1].sizes()),
            dx.view(saved[2].sizes()),
            dslope.to(saved[3].scalar_type()),
            Tensor(),
            Tensor()};
  }
};

// --- Rotary positions. ---

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, float direction) {
  const Tensor in = x.stride(3) == 1 ? x : x.contiguous(), angles = plain(cos), opposite = plain(sin);
  const Tensor y = at::empty(x.sizes(), x.options());
  Rotary call{.batch = x.size(0),
              .tokens = x.size(1),
              .heads = x.size(2),
              .width = x.size(3),
              .half = cos.size(3),
              .x = kernels::timed(in, x.size(2)),
              .y = rows(y.view({-1, x.size(3)})),
              .cos = floats(angles),
              .sin = floats(opposite),
              .same_rows = cos.size(0) == 1,
              .direction = direction};
  fused::rotary(call, kernels::parallel());
  return y;
}

// A rotation's adjoint is the rotation back: no intermediate needs to be kept.
class RotaryFunction : public torch::autograd::Function<RotaryFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return turn(x, cos, sin, 1);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    once("rotary");
    const auto saved = context->get_saved_variables();
    return {turn(gradients[0], saved[0], saved[1], -1), Tensor(), Tensor()};
  }
};

}  // namespace

bool takes(std::initializer_list<Tensor> tensors) { return kernels::usable(tensors); }

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  return RmsNormFunction::apply(x, weight, eps, groups);
}

Tensor gated_silu(const Tensor& gate, const Tensor& up) { return GatedSiluFunction::apply(gate, up); }

std::pair<Tensor, Tensor> rg_lru_gates(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope,
                                       const Tensor& first, double largest_slope) {
  const auto out =
      RgLruFunction::apply(r, i, x, slope, first.expand({x.size(0), x.size(1)}).contiguous(), largest_slope);
  return {out[0], out[1]};
}

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) { return RotaryFunction::apply(x, cos, sin); }

}  // namespace cortado::fused
