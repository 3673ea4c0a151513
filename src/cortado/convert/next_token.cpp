#include <c10/core/AutogradState.h>

#include "cortado/convert/objective.h"
#include "cortado/nn/autocast.h"

namespace cortado {

NextToken::NextToken(std::shared_ptr<LanguageModel> model, NamedTensors learned)
    : model_(std::move(model)),
      learned_(std::move(learned)),
      frozen_type_(model_->named_parameters()["embedding.weight"].scalar_type()) {
  freeze_but(*model_, learned_);
}

std::vector<double> NextToken::losses(const Tensor& given, double weight) {
  const c10::AutoGradMode gradients(weight > 0);
  const Tensor tokens = given.to(model_->device());
  Tensor targets = at::full_like(tokens, -1);  // the last token's next one is not in the chunk
  const int64_t known = tokens.size(1) - 1;
  targets.narrow(1, 0, known).copy_(tokens.narrow(1, 1, known));
  const Tensor loss = [&] {
    const Autocast autocast(tokens.device(), frozen_type_);  // what learns is float32
    return model_->loss(tokens, targets);
  }();
  if (weight > 0) (loss * weight).backward();
  return {loss.item<double>()};
}

}  // namespace cortado
