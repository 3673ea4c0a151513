// Language modelling: prediction of a text's next token.
#pragma once

#include <memory>
#include <string>

#include "cortado/train/options.h"
#include "cortado/train/task.h"

namespace cortado {

// Runs forward and backward on the process's share of a batch, with matrix products in `type`. Adds the gradients of the
// summed losses.
LearnedBatch learn_batch(LanguageModel& model, const TrainingBatch& batch, at::ScalarType type,
                         const BatchShare& share = {});

// Opens a folder made by `cortado prepare`, or a text, which is split into train and validation and tokenized by
// `tokenizer` or, if null, as the options say. Throws InputError if it is missing, empty or not text.
Dataset open_data(const std::string& path, const TrainingOptions& options,
                  const std::shared_ptr<Tokenizer>& tokenizer = nullptr);

// Returns random crops [batch, context], or packed documents [1, batch * context] in sequences of at most `context`
// tokens. Throws InputError if there are fewer tokens than one crop.
std::shared_ptr<BatchSource> make_batches(const std::shared_ptr<TokenFile>& tokens, const TrainingOptions& options);

// Opens the text that the options name ("data"). `tokenizer` is the folder of the run's own tokenizer, if it has one:
// learning it again might give another one.
std::unique_ptr<TaskData> open_language_data(const TrainingOptions& options, const std::string& tokenizer = "");

}  // namespace cortado
