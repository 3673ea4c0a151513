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
Tensor as_rows(const Tensor& x) { return kernels::dense_rows(x.reshape({-1, x.size(-1)})); }

Element element_of(const Tensor& x) {
  const auto type = x.scalar_type();
  return type == at::kFloat ? Element::kFloat32 : type == at::kBFloat16 ? Element::kBFloat16 : Element::kFloat16;
}

Rows rows(const Tensor& x) { return {x.data_ptr(), element_of(x), x.stride(0)}; }

// x [..., D] as rows; what lies together needs no view of it, which in decoding would cost more than the work itself.
Rows rows_of(const Tensor& x, Tensor& keep) {
  if (x.is_contiguous()) return {x.data_ptr(), element_of(x), x.size(-1)};
  keep = as_rows(x);
  return rows(keep);
}
Rows rows_of(const Tensor& contiguous) { return {contiguous.data_ptr(), element_of(contiguous), contiguous.size(-1)}; }
int64_t count_rows(const Tensor& x) { return x.size(-1) ? x.numel() / x.size(-1) : 0; }

Tensor like(const Tensor& x) { return at::empty(x.sizes(), x.options()); }
Tensor parts_of(const Tensor& x) {
  return at::empty({parts_size(x.size(0), x.size(1))}, x.options().dtype(at::kFloat));
}
float* floats(const Tensor& x) { return x.data_ptr<float>(); }
Tensor plain(const Tensor& x) {
  return x.scalar_type() == at::kFloat && x.is_contiguous() ? x : x.to(at::kFloat).contiguous();
}

// A gradient that did not arrive is zero.
Tensor gradient_rows(const Tensor& gradient, const Tensor& like) {
  return gradient.defined() ? as_rows(gradient) : at::zeros_like(like);
}

void once(const char* name) {
  fail_input_if(at::GradMode::is_enabled(), "[", name, "] can be differentiated once only");
}

// Whether a result will be differentiated; where not, autograd's bookkeeping costs more than many a small product.
bool differentiated(std::initializer_list<Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor& x : tensors) {
    if (x.requires_grad()) return true;
  }
  return false;
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

// y, and 1 / rms of every row and group.
std::pair<Tensor, Tensor> normalize(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  const Tensor wide = plain(weight), y = like(x);
  const Tensor scale = at::empty({count_rows(x), groups}, wide.options());
  Tensor keep;
  fused::rms_norm({.rows = count_rows(x),
                   .width = x.size(-1),
                   .groups = groups,
                   .eps = static_cast<float>(eps),
                   .x = rows_of(x, keep),
                   .y = rows_of(y),
                   .weight = floats(wide),
                   .scale = floats(scale)},
                  kernels::parallel());
  return {y, scale};
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
    const auto [y, scale] = normalize(x, weight, eps, groups);
    context->save_for_backward({x, weight, scale});
    return y;
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

Tensor gate_up(const Tensor& gate, const Tensor& up) {
  const Tensor y = like(gate);
  Tensor keep_gate, keep_up;
  fused::gated_silu({.rows = count_rows(gate),
                     .width = gate.size(-1),
                     .gate = rows_of(gate, keep_gate),
                     .up = rows_of(up, keep_up),
                     .y = rows_of(y)},
                    kernels::parallel());
  return y;
}

class GatedSiluFunction : public torch::autograd::Function<GatedSiluFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    context->save_for_backward({gate, up});
    return gate_up(gate, up);
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
  const Tensor in = kernels::dense_rows(x), angles = plain(cos), opposite = plain(sin);
  const Tensor y = at::empty(x.sizes(), x.options());
  Rotary call{.batch = x.size(0),
              .tokens = x.size(1),
              .heads = x.size(2),
              .width = x.size(3),
              .half = cos.size(3),
              .x = kernels::timed(in, x.size(2)),
              .y = rows_of(y),
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
  if (!differentiated({x, weight})) return normalize(x, weight, eps, groups).first;
  return RmsNormFunction::apply(x, weight, eps, groups);
}

Tensor gated_silu(const Tensor& gate, const Tensor& up) {
  return differentiated({gate, up}) ? GatedSiluFunction::apply(gate, up) : gate_up(gate, up);
}

std::pair<Tensor, Tensor> rg_lru_gates(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope,
                                       const Tensor& first, double largest_slope) {
  const auto out =
      RgLruFunction::apply(r, i, x, slope, first.expand({x.size(0), x.size(1)}).contiguous(), largest_slope);
  return {out[0], out[1]};
}

Tensor rg_lru_step(const Tensor& x, const RgLruWeights& weights, double sharpness, const Tensor& position,
                   const Tensor& start) {
  const Tensor h = like(start), positions = position.contiguous();
  Tensor keep;
  fused::rg_lru_step({.rows = start.size(0),
                      .width = start.size(1),
                      .blocks = weights.input.size(0),
                      .sharpness = static_cast<float>(sharpness),
                      .x = rows_of(x, keep),
                      .r_weight = floats(weights.recurrence),
                      .r_bias = floats(weights.recurrence_bias),
                      .i_weight = floats(weights.input),
                      .i_bias = floats(weights.input_bias),
                      .lambda = floats(weights.lambda),
                      .position = positions.const_data_ptr<int64_t>(),
                      .start = floats(start),
                      .h = floats(h)},
                     kernels::parallel(2 * start.size(0) * weights.input.numel()));
  return h;
}

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return differentiated({x}) ? RotaryFunction::apply(x, cos, sin) : turn(x, cos, sin, 1);
}

}  // namespace cortado::fused
