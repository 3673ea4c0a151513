#include "cortado/train/language_task.h"

#include "cortado/evaluate/evaluate.h"
#include "cortado/nn/autocast.h"

namespace cortado {

LanguageTask::LanguageTask(std::shared_ptr<LanguageModel> model, const TrainingOptions& options,
                           std::shared_ptr<BatchSource> batches, std::shared_ptr<const TokenFile> validation)
    : model_(std::move(model)),
      options_(options),
      type_(options.compute_type()),
      batches_(std::move(batches)),
      validation_(validation && validation->size() > 1 ? std::move(validation) : nullptr) {}

Tensor LanguageTask::learn(DataPosition& position) {
  const TrainingBatch batch = batches_->next(position);
  const at::Device device = model_->device();
  Batch about{.cu_seqlens = batch.cu_seqlens, .training = true};
  if (about.cu_seqlens) about.cu_seqlens = about.cu_seqlens->to(device);
  Tensor loss;
  {
    const Autocast autocast(device, type_);
    loss = model_->loss(batch.tokens.to(device), batch.targets.to(device), about) / double(options_.accumulate);
  }
  loss.backward();
  return loss.detach();
}

Validation LanguageTask::validate(const Progress& progress) {
  const Autocast autocast(model_->device(), type_);
  const double loss = evaluate_loss(*model_, *validation_,
                                    {.context = options_.context,
                                     .limit = options_.evaluate_batches * options_.batch * options_.context,
                                     .progress = progress})
                          .loss();
  return {loss, {}, {{"validation_loss", loss}}};
}

}  // namespace cortado
