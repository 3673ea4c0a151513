#include "cortado/convert/objective.h"

#include <c10/core/AutogradState.h>

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/convert/weights.h"
#include "cortado/mechanisms/shared/student.h"
#include "cortado/nn/autocast.h"

namespace cortado {
namespace {

constexpr double kTransferScale = 1000;  // LoLCATs' "mse_factor"

const SoftmaxStudent* student_at(const LanguageModel& model, int64_t layer) {
  return student_of(*model.mixers()[static_cast<size_t>(layer)]);
}

// Enables gradients for `learned` only.
void freeze_but(const LanguageModel& model, const Parameters& learned) {
  for (Tensor& parameter : model.parameters()) parameter.requires_grad_(false);
  for (const Parameter& parameter : learned) Tensor(parameter.value).requires_grad_(true);
}

}  // namespace

Parameters learned_by_students(const LanguageModel& model) {
  const Parameters parameters = parameters_of(model);
  Parameters learned;
  for (const std::string& name : names_of_new_weights(model)) {
    learned.push_back(*std::ranges::find(parameters, name, &Parameter::name));
  }
  fail_input_if(learned.empty(), "[linearize] no layer of the model can learn from softmax attention");
  return learned;
}

AttentionTransfer::AttentionTransfer(std::shared_ptr<LanguageModel> model, int64_t context)
    : model_(std::move(model)), learned_(learned_by_students(*model_)) {
  bool any = false;
  for (int64_t layer = 0; layer < static_cast<int64_t>(model_->mixers().size()); ++layer) {
    const SoftmaxStudent* student = student_at(*model_, layer);
    if (!student) continue;
    layers_.push_back(layer);
    any = any || student->shortest_lesson() <= context;
  }
  fail_input_if(!any, "[--context] sequences of ", context,
                " tokens lie in the windows of all layers: nothing is left to learn");
  freeze_but(*model_, learned_);
}

std::vector<std::string> AttentionTransfer::parts() const {
  std::vector<std::string> names;
  for (const int64_t layer : layers_) names.push_back(concat("layer ", layer));
  return names;
}

double AttentionTransfer::total(const std::vector<double>& losses) const {
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return kTransferScale * sum / static_cast<double>(losses.size());
}

std::vector<double> AttentionTransfer::losses(const Sequences& given, double weight) {
  const c10::AutoGradMode gradients(weight > 0);
  const double share = weight * kTransferScale / static_cast<double>(layers_.size());
  std::vector<Tensor> squares;
  model_->walk(given.tokens.to(model_->device()), [&](int64_t layer, const Tensor& x) {
    const SoftmaxStudent* student = student_at(*model_, layer);
    if (!student) return model_->mixers()[static_cast<size_t>(layer)]->forward(x, {}, nullptr);
    const auto lesson = student->lesson(x);
    const Tensor loss = at::mse_loss(lesson.student, lesson.teacher);
    if (loss.requires_grad()) (loss * share).backward();
    squares.push_back(loss.detach());
    if (layer == layers_.back()) return Tensor();  // nobody reads the following layers
    return student->project_output(lesson.teacher.to(x.scalar_type()), x);
  });
  const Tensor all = at::stack(squares).to(at::kCPU, at::kDouble);
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

NextToken::NextToken(std::shared_ptr<LanguageModel> model, Parameters learned, int64_t bptt)
    : model_(std::move(model)),
      learned_(std::move(learned)),
      bptt_(bptt),
      frozen_type_(model_->named_parameters()["embedding.weight"].scalar_type()) {
  freeze_but(*model_, learned_);
}

std::vector<double> NextToken::losses(const Sequences& given, double weight) {
  const c10::AutoGradMode gradients(weight > 0);
  const Tensor tokens = given.tokens.to(model_->device());
  const int64_t length = tokens.size(1), piece = bptt_ > 0 ? std::min(bptt_, length) : length;
  const double all = std::max(1.0, terms(given));
  std::optional<ModelState> state;
  if (piece < length) state = model_->zero_state(tokens.size(0));
  double mean = 0;
  for (int64_t first = 0; first < length; first += piece) {
    const int64_t count = std::min(piece, length - first);
    const Sequences part{tokens.narrow(1, first, count), given.targets.narrow(1, first, count)};
    const double share = terms(part) / all;
    const Tensor loss = [&] {
      const Autocast autocast(tokens.device(), frozen_type_);  // the learned parameters are float32
      return model_->loss_of(model_->hidden(part.tokens, {}, state ? &*state : nullptr), part.targets);
    }();
    if (weight > 0 && share > 0) (loss * (weight * share)).backward();
    if (state) state = state->detach();
    mean += share * loss.item<double>();
  }
  return {mean};
}

}  // namespace cortado
