#include "cortado/nn/matmul.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <cstdlib>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/base/stopwatch.h"

namespace cortado {
namespace {

constexpr double kClearly = 1.25;

using Pointwise = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, std::string_view,
                         c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

// oneDNN's linear map on plain tensors, made for compiled graphs; it has no derivative.
const auto& pointwise() {
  static const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return found;
}

Tensor onednn_product(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  static const auto call = pointwise()->typed<Pointwise>();
  return call.call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

class OneDnnLinear : public torch::autograd::Function<OneDnnLinear> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const OptionalTensor& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    return onednn_product(x, weight, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "[linear] by oneDNN can be differentiated once only");
    const auto saved = context->get_saved_variables();
    const Tensor x = saved[0].reshape({-1, saved[0].size(-1)}), &weight = saved[1];
    const Tensor dy = gradients[0].reshape({-1, weight.size(0)});
    Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) dx = onednn_product(dy, weight.t(), {}).view(saved[0].sizes());
    if (context->needs_input_grad(1)) dweight = onednn_product(dy.t(), x.t(), {});
    if (context->saved_data["bias"].toBool()) dbias = dy.sum(0);
    return {dx, dweight, dbias};
  }
};

// The libraries take turns, so that other load on the machine affects all of them. The first turn includes their
// initialisation and is never the best.
MatmulSpeeds measure() {
  const at::NoGradGuard no_grad;
  const Tensor x = at::ones({512, 384}), weight = at::ones({384, 384});
  const Tensor short_x = x.to(at::kBFloat16), short_weight = weight.to(at::kBFloat16);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  MatmulSpeeds speeds{kNever, kNever, kNever};
  for (int turn = 0; turn < 6; ++turn) {
    speeds.blas = std::min(speeds.blas, seconds_of([&] { at::linear(x, weight); }));
    if (pointwise()) speeds.onednn = std::min(speeds.onednn, seconds_of([&] { onednn_product(x, weight, {}); }));
    speeds.bfloat16 = std::min(speeds.bfloat16, seconds_of([&] { at::linear(short_x, short_weight); }));
  }
  return speeds;
}

std::string_view said_library() {
  const char* chosen = std::getenv("CORTADO_MATMUL");
  return chosen ? chosen : "";
}

// MKL's best kernels are for Intel processors only; on others oneDNN was 10 to 20 % faster (Zen 4). The expected
// library is kept unless the measurement clearly contradicts it, because small measured differences would flip the
// choice at random.
bool onednn_is_expected() {
#ifdef __x86_64__
  return at::hasMKL() && !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

bool choose_onednn() {
  const std::string_view name = said_library();
  fail_input_if(!name.empty() && name != "blas" && name != "onednn", "CORTADO_MATMUL must be blas or onednn, got ",
                name);
  fail_input_if(name == "onednn" && !pointwise(), "CORTADO_MATMUL=onednn: this torch has no oneDNN");
  if (!name.empty()) return name == "onednn";
  const auto& [blas, onednn, bfloat16] = matmul_speeds();
  return onednn_is_expected() ? onednn < blas * kClearly : onednn * kClearly < blas;
}

enum class Taken { kUndecided, kBlas, kOneDnn };
std::atomic<Taken> taken = Taken::kUndecided;

}  // namespace

const MatmulSpeeds& matmul_speeds() {
  static const MatmulSpeeds speeds = measure();
  return speeds;
}

bool onednn_is_faster() {
  if (taken == Taken::kUndecided) taken = choose_onednn() ? Taken::kOneDnn : Taken::kBlas;
  return taken == Taken::kOneDnn;
}

std::string matmul_library() { return onednn_is_faster() ? "onednn" : "blas"; }

void keep_matmul_library(const std::string& name) {
  if (!said_library().empty()) return;
  if (name == "blas") taken = Taken::kBlas;
  if (name == "onednn" && pointwise()) taken = Taken::kOneDnn;
}

at::ScalarType fast_training_type() {
  if (!said_library().empty()) return at::kFloat;
  const MatmulSpeeds& speeds = matmul_speeds();
  return speeds.bfloat16 * kClearly < std::min(speeds.blas, speeds.onednn) ? at::kBFloat16 : at::kFloat;
}

bool has_onednn() { return pointwise().has_value(); }

Tensor onednn_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return OneDnnLinear::apply(x, weight, bias);
}

}  // namespace cortado
