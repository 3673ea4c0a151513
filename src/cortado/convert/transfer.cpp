#include <c10/core/AutogradState.h>

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/convert/objective.h"
#include "cortado/mechanisms/student.h"

namespace cortado {
namespace {

constexpr double kTransferScale = 1000;  // LoLCATs' "mse_factor"

const SoftmaxStudent* student_of(const LanguageModel& model, int64_t layer) {
  return dynamic_cast<const SoftmaxStudent*>(model.mixers()[static_cast<size_t>(layer)].get());
}

}  // namespace

AttentionTransfer::AttentionTransfer(std::shared_ptr<LanguageModel> model) : model_(std::move(model)) {
  for (Tensor& parameter : model_->parameters()) parameter.requires_grad_(false);
  auto parameters = model_->named_parameters();
  for (int64_t layer = 0; layer < static_cast<int64_t>(model_->mixers().size()); ++layer) {
    const SoftmaxStudent* student = student_of(*model_, layer);
    if (!student) continue;
    layers_.push_back(layer);
    for (const std::string& name : student->learned()) {
      learned_.emplace_back(concat("layers.", layer, ".mixer.", name), Tensor());
    }
  }
  fail_input_if(layers_.empty(), "[linearize] no layer of the model can learn from softmax attention");
  for (auto& [name, parameter] : learned_) parameter = parameters[name].requires_grad_(true);
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

std::vector<double> AttentionTransfer::losses(const Tensor& tokens, double weight) {
  const c10::AutoGradMode gradients(weight > 0);
  const double share = weight * kTransferScale / static_cast<double>(layers_.size());
  std::vector<Tensor> squares;
  model_->walk(tokens, [&](int64_t layer, const Tensor& x) {
    const SoftmaxStudent* student = student_of(*model_, layer);
    if (!student) return model_->mixers()[static_cast<size_t>(layer)]->forward(x, {}, nullptr);
    const auto lesson = student->lesson(x);
    const Tensor loss = at::mse_loss(lesson.student, lesson.teacher);
    if (weight > 0) (loss * share).backward();
    squares.push_back(loss.detach());
    if (layer == layers_.back()) return Tensor();  // nobody reads what follows
    return student->project_output(lesson.teacher.to(x.scalar_type()));
  });
  const Tensor all = at::stack(squares).to(at::kDouble);
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

}  // namespace cortado
