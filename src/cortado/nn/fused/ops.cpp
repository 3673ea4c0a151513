#include "cortado/nn/fused/ops.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/base/error.h"
#include "cortado/nn/fused/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Element element_of(const Tensor& x) {
  const auto type = x.scalar_type();
  return type == at::kFloat ? Element::kFloat32 : type == at::kBFloat16 ? Element::kBFloat16 : Element::kFloat16;
}

Rows rows_of(const Tensor& contiguous) { return {contiguous.data_ptr(), element_of(contiguous), contiguous.size(-1)}; }
// x [..., D] as rows with contiguous elements. A contiguous x needs no view, which in decoding would cost more than the
// operation itself. Any view or copy is kept in `kept` for the call.
using Kept = std::vector<Tensor>;
Rows rows_of(const Tensor& x, Kept& kept) {
  if (x.is_contiguous()) return rows_of(x);
  const Tensor& rows = kept.emplace_back(kernels::dense_rows(x.reshape({-1, x.size(-1)})));
  return {rows.data_ptr(), element_of(rows), rows.stride(0)};
}
int64_t count_rows(const Tensor& x) { return x.size(-1) ? x.numel() / x.size(-1) : 0; }

Tensor like(const Tensor& x) { return at::empty(x.sizes(), x.options()); }
Tensor parts_of(const Tensor& x) {
  return at::empty({parts_size(count_rows(x), x.size(-1))}, x.options().dtype(at::kFloat));
}
float* floats(const Tensor& x) { return x.data_ptr<float>(); }
Tensor plain(const Tensor& x) {
  return x.scalar_type() == at::kFloat && x.is_contiguous() ? x : x.to(at::kFloat).contiguous();
}

// A gradient that did not arrive is zero.
Rows gradient_rows(const Tensor& gradient, const Tensor& like, Kept& kept) {
  return rows_of(gradient.defined() ? gradient : kept.emplace_back(at::zeros(like.sizes(), like.options())), kept);
}

void once(const char* name) {
  fail_input_if(at::GradMode::is_enabled(), "[", name, "] can be differentiated once only");
}

// Whether a result will be differentiated. If not, autograd's bookkeeping would cost more than many a small product.
bool differentiated(std::initializer_list<Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor& x : tensors) {
    if (x.requires_grad()) return true;
  }
  return false;
}

// --- RMS norm. ---

RmsNorm rms_norm_call(const Tensor& x, const Tensor& weight, const Tensor& scale, double eps, Kept& kept) {
  return {.rows = count_rows(x),
          .width = x.size(-1),
          .groups = scale.size(1),
          .eps = static_cast<float>(eps),
          .x = rows_of(x, kept),
          .y = {},
          .weight = floats(weight),
          .scale = floats(scale)};
}

// Returns y, and 1 / rms per row and group.
std::pair<Tensor, Tensor> normalize(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  const Tensor wide = plain(weight), y = like(x);
  const Tensor scale = at::empty({count_rows(x), groups}, wide.options());
  Kept kept;
  RmsNorm call = rms_norm_call(x, wide, scale, eps, kept);
  call.y = rows_of(y);
  fused::rms_norm(call, kernels::parallel());
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
    const Tensor &x = saved[0], weight = plain(saved[1]);
    const Tensor dx = like(x), dweight = like(weight), parts = parts_of(x);
    Kept kept;
    RmsNorm call = rms_norm_call(x, weight, saved[2], 0, kept);
    call.dy = gradient_rows(gradients[0], x, kept);
    call.dx = rows_of(dx);
    call.dweight = floats(dweight);
    call.parts = floats(parts);
    rms_norm_backward(call, kernels::parallel());
    return {dx, dweight.to(saved[1].scalar_type()), Tensor(), Tensor()};
  }
};

// --- Gated SiLU. ---

GatedSilu gated_silu_call(const Tensor& gate, const Tensor& up, Kept& kept) {
  return {
      .rows = count_rows(gate), .width = gate.size(-1), .gate = rows_of(gate, kept), .up = rows_of(up, kept), .y = {}};
}

Tensor gate_up(const Tensor& gate, const Tensor& up) {
  const Tensor y = like(gate);
  Kept kept;
  GatedSilu call = gated_silu_call(gate, up, kept);
  call.y = rows_of(y);
  fused::gated_silu(call, kernels::parallel());
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
    const Tensor dgate = like(saved[0]), dup = like(saved[1]);
    Kept kept;
    GatedSilu call = gated_silu_call(saved[0], saved[1], kept);
    call.dy = gradient_rows(gradients[0], saved[0], kept);
    call.dgate = rows_of(dgate);
    call.dup = rows_of(dup);
    gated_silu_backward(call, kernels::parallel());
    return {dgate, dup};
  }
};

// --- The RG-LRU's gates. ---

RgLruGates rg_lru_call(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope, const Tensor& first,
                       double largest_slope, Kept& kept) {
  return {.rows = count_rows(x),
          .width = x.size(-1),
          .r = rows_of(r, kept),
          .i = rows_of(i, kept),
          .x = rows_of(x, kept),
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
    const Tensor slopes = plain(slope);
    const Tensor log_a = at::empty(x.sizes(), slopes.options()), b = at::empty(x.sizes(), slopes.options());
    Kept kept;
    RgLruGates call = rg_lru_call(r, i, x, slopes, first, largest_slope, kept);
    call.log_a = rows_of(log_a);
    call.b = rows_of(b);
    fused::rg_lru_gates(call, kernels::parallel());
    context->save_for_backward({r, i, x, slope, first});
    context->saved_data["largest_slope"] = largest_slope;
    return {log_a, b};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    once("rg_lru_gates");
    const auto saved = context->get_saved_variables();
    const Tensor &r = saved[0], &i = saved[1], &x = saved[2], slope = plain(saved[3]);
    const Tensor dr = like(r), di = like(i), dx = like(x), dslope = like(slope), parts = parts_of(x);
    Kept kept;
    RgLruGates call = rg_lru_call(r, i, x, slope, saved[4], context->saved_data["largest_slope"].toDouble(), kept);
    call.dlog_a = gradient_rows(gradients[0], x, kept);
    call.db = gradient_rows(gradients[1], x, kept);
    call.dr = rows_of(dr);
    call.di = rows_of(di);
    call.dx = rows_of(dx);
    call.dslope = floats(dslope);
    call.parts = floats(parts);
    rg_lru_gates_backward(call, kernels::parallel());
    return {dr, di, dx, dslope.to(saved[3].scalar_type()), Tensor(), Tensor()};
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

// The adjoint of a rotation is the inverse rotation, so nothing needs to be saved.
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
  Kept kept;
  fused::rg_lru_step({.rows = start.size(0),
                      .width = start.size(1),
                      .blocks = weights.input.size(0),
                      .sharpness = static_cast<float>(sharpness),
                      .x = rows_of(x, kept),
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
