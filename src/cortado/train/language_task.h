// Language modelling: the next token of a text.
#pragma once

#include <memory>
#include <string>

#include "cortado/train/optimizer.h"
#include "cortado/train/options.h"
#include "cortado/train/task.h"

namespace cortado {

// Forward and backward of one of a step's `accumulate` batches, products in `type`: adds to the gradients, and returns
// the batch's share of the mean loss, detached.
Tensor learn_batch(LanguageModel& model, const TrainingBatch& batch, at::ScalarType type, int64_t accumulate = 1);

class LanguageTask : public Task {
 public:
  // What requires gradients in the model learns. `validation` may be null or too short to predict anything: then
  // nothing is validated.
  LanguageTask(std::shared_ptr<LanguageModel> model, const TrainingOptions& options,
               std::shared_ptr<BatchSource> batches, std::shared_ptr<const TokenFile> validation);

  const std::string& name() const override { return name_; }
  NamedTensors learned() const override { return trainable(*model_); }
  DataIdentity data() const override { return identity_; }
  LearnedBatch learn(DataPosition& position) override;
  bool validates() const override { return validation_ != nullptr; }
  Validation validate(const Progress& progress) override;

 private:
  const std::string name_ = "train";
  std::shared_ptr<LanguageModel> model_;
  TrainingOptions options_;
  at::ScalarType type_;  // of products
  std::shared_ptr<BatchSource> batches_;
  DataIdentity identity_;
  std::shared_ptr<const TokenFile> validation_;
};

// The texts that the options name ("data"), tokenized by the run's own tokenizer where it has one: learning one anew
// could give another.
std::unique_ptr<TaskData> open_language_data(const TrainingOptions& options, const std::string& tokenizer = "");

}  // namespace cortado
