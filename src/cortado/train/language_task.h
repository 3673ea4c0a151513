// Language modelling: the next token of a text.
#pragma once

#include <memory>
#include <string>

#include "cortado/train/options.h"
#include "cortado/train/task.h"

namespace cortado {

// Forward and backward of the turn's part of a batch, products in `type`: adds the gradients of the sum of its losses.
LearnedBatch learn_batch(LanguageModel& model, const TrainingBatch& batch, at::ScalarType type, const Turn& turn = {});

// `path`: a folder made by `cortado prepare`, or a text, which is then cut into train and validation and tokenized as
// the options say, or by `tokenizer` where one is given. Missing, empty, not text: InputError.
Dataset open_data(const std::string& path, const TrainingOptions& options,
                  const std::shared_ptr<Tokenizer>& tokenizer = nullptr);

// Random crops [batch, context], or packed documents [1, batch * context] in sequences of at most `context` tokens.
// Fewer tokens than one crop: InputError.
std::shared_ptr<BatchSource> make_batches(const std::shared_ptr<TokenFile>& tokens, const TrainingOptions& options);

// The texts that the options name ("data"), tokenized by the run's own tokenizer where it has one: learning one anew
// could give another.
std::unique_ptr<TaskData> open_language_data(const TrainingOptions& options, const std::string& tokenizer = "");

}  // namespace cortado
