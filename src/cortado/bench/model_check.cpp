#include "cortado/bench/model_check.h"

#include "cortado/compare/compare.h"
#include "cortado/models/language_model.h"
#include "cortado/nn/autocast.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

constexpr int64_t kVocabulary = 56, kRows = 3, kRead = 40, kTokens = 46, kWidth = 64;
constexpr double kFarSmaller = 0.06;

ModelConfig config_of(const std::string& mixer) {
  const Json base = {{"vocabulary", kVocabulary},
                     {"dim", kWidth},
                     {"heads", 2},
                     {"layers", 2},
                     {"positions", "rotary"},
                     {"context", 128},
                     {"feed_forward", {{"type", "swiglu"}, {"dim", 2 * kWidth}}}};
  return ModelConfig::from_json(with_mixer(base, mixer, kWidth), mixer);
}

Tensor on_cpu(const Tensor& x) { return x.detach().to(at::kCPU, at::kDouble); }
double length(const Tensor& x) { return x.norm().item<double>(); }
// The norm of x - y; infinite if it is not finite.
double distance(const Tensor& x, const Tensor& y) {
  const double found = length(x - y);
  return std::isfinite(found) ? found : INFINITY;
}

// Returns a copy of the model on another device and in another type.
std::unique_ptr<LanguageModel> copy_of(const LanguageModel& model, at::Device device, at::ScalarType type) {
  const at::NoGradGuard unrecorded;
  auto there = std::make_unique<LanguageModel>(model.config());
  const auto weights = named_weights(model);
  for (const auto& entry : named_weights(*there)) entry.value().copy_(weights[entry.key()]);
  there->to(device, type);
  return there;
}

// Compares the error on a device with the error on the CPU. `error_on(device)` is the error in bfloat16.
OperatorCheck beside_cpu(at::Device device, const std::function<double(at::Device)>& error_on) {
  return {error_on(device), 0.02 + 2 * error_on(at::kCPU)};
}

double error_of_tokens(const LanguageModel& model, const Tensor& tokens, const Tensor& wanted, at::Device device) {
  const auto there = copy_of(model, device, at::kBFloat16);
  const Tensor moved = tokens.to(device);
  ModelState state = there->zero_state(kRows);
  there->forward(moved.narrow(1, 0, kRead), {}, &state);
  double worst = 0;
  for (int64_t n = kRead; n < kTokens; ++n) {
    const Tensor logits = on_cpu(there->forward(moved.narrow(1, n, 1), {}, &state)), right = wanted.narrow(1, n, 1);
    worst = std::max(worst, distance(logits, right) / length(right));
  }
  return worst;
}

// Returns gradients by parameter name, without parameters that have no gradient.
std::map<std::string, Tensor> gradients(const LanguageModel& model) {
  std::map<std::string, Tensor> found;
  for (const auto& entry : model.named_parameters()) {
    if (entry.value().grad().defined()) found[entry.key()] = on_cpu(entry.value().grad());
  }
  return found;
}

double error_of_gradients(const std::map<std::string, Tensor>& found, const std::map<std::string, Tensor>& wanted) {
  double squares = 0, worst = 0;
  for (const auto& [_, right] : wanted) squares += std::pow(length(right), 2);
  for (const auto& [name, right] : wanted) {
    worst = std::max(worst, distance(found.at(name), right) / (length(right) + kFarSmaller * std::sqrt(squares)));
  }
  return worst;
}

}  // namespace

OperatorCheck check_tokens(const std::string& mixer, at::Device device) {
  const at::NoGradGuard unrecorded;
  LanguageModel model(config_of(mixer));
  for (Tensor& weight : model.parameters()) weight.copy_(weight.to(at::kBFloat16));
  const Tensor tokens = at::randint(kVocabulary, {kRows, kTokens}, at::kLong);
  const Tensor wanted = on_cpu(model.forward(tokens));
  return beside_cpu(device, [&](at::Device there) { return error_of_tokens(model, tokens, wanted, there); });
}

OperatorCheck check_training_step(const std::string& mixer, at::Device device) {
  LanguageModel model(config_of(mixer));
  const Tensor tokens = at::randint(kVocabulary, {kRows, kTokens + 1}, at::kLong);
  const Tensor inputs = tokens.narrow(1, 0, kTokens), targets = tokens.narrow(1, 1, kTokens);
  model.loss(inputs, targets).backward();
  return beside_cpu(device, [&](at::Device where) {
    const auto there = copy_of(model, where, at::kFloat);
    const auto loss = [&] {
      const Autocast autocast(where, at::kBFloat16);
      return there->loss(inputs.to(where), targets.to(where));
    };
    loss().backward();
    return error_of_gradients(gradients(*there), gradients(model));
  });
}

}  // namespace cortado
