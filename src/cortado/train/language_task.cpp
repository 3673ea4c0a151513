#include "cortado/train/language_task.h"

#include <algorithm>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/evaluate/evaluate.h"
#include "cortado/nn/autocast.h"
#include "cortado/train/optimizer.h"

namespace cortado {
namespace {

class LanguageTask : public Task {
 public:
  // Trains the model's parameters that require gradients. Does not validate if `validation` is null or too short for a
  // prediction.
  LanguageTask(std::shared_ptr<LanguageModel> model, const TrainingOptions& options,
               std::shared_ptr<BatchSource> batches, std::shared_ptr<const TokenFile> validation)
      : model_(std::move(model)),
        options_(options),
        type_(options.compute_type()),
        batches_(std::move(batches)),
        identity_(batches_->identity()),
        validation_(validation && validation->size() > 1 ? std::move(validation) : nullptr) {}

  const std::string& name() const override { return name_; }
  Parameters learned() const override { return trainable(*model_); }
  DataIdentity data() const override { return identity_; }
  LearnedBatch learn(DataPosition& position, const BatchShare& share) override {
    return learn_batch(*model_, batches_->next(position), type_, share);
  }
  std::string undivided() const override { return options_.packed ? "packed documents" : ""; }
  bool validates() const override { return validation_ != nullptr; }
  Validation validate(const Progress& progress) override {
    const Autocast autocast(model_->device(), type_);
    const Evaluation found = evaluate_loss(*model_, *validation_,
                                           {.context = options_.context,
                                            .limit = options_.evaluate_batches * options_.batch * options_.context,
                                            .progress = progress,
                                            .ranks = ranks_});
    return {found.loss(), {}, {{"validation_loss", found.loss()}, {"accuracy", found.accuracy()}}};
  }

 private:
  const std::string name_ = "train";
  std::shared_ptr<LanguageModel> model_;
  TrainingOptions options_;
  at::ScalarType type_;  // type of matrix products
  std::shared_ptr<BatchSource> batches_;
  DataIdentity identity_;
  std::shared_ptr<const TokenFile> validation_;
};

class LanguageData : public TaskData {
 public:
  LanguageData(const TrainingOptions& options, const std::string& tokenizer)
      : path_(options.data),
        dataset_(open_data(path_, options, tokenizer.empty() ? nullptr : load_tokenizer(tokenizer))) {}

  void complete(ModelConfig& model, TrainingOptions&, const std::string& name) const override {
    fail_input_if(model.head.kind != HeadKind::kLanguage, "[", name,
                  "] \"head\" is a classifier's: a text trains a language model");
    fail_input_if(!model.causal, "[", name,
                  "] \"causal\" is false: a language model that sees what it predicts learns nothing");
    const int64_t vocabulary = dataset_.tokenizer->vocabulary();
    if (model.vocabulary == 0) model.vocabulary = vocabulary;
    fail_input_if(model.vocabulary < vocabulary, "[", name, "] \"vocabulary\" is ", model.vocabulary,
                  ", but the data's tokenizer has ", vocabulary, " tokens");
  }

  std::shared_ptr<Task> task(const std::shared_ptr<Backbone>& model, const TrainingOptions& options) const override {
    return std::make_shared<LanguageTask>(std::dynamic_pointer_cast<LanguageModel>(model), options,
                                          make_batches(dataset_.train, options), dataset_.validation);
  }

  const Tokenizer* tokenizer() const override { return dataset_.tokenizer.get(); }
  std::string description() const override { return concat(with_commas(dataset_.train->size()), " tokens of ", path_); }

 private:
  std::string path_;
  Dataset dataset_;
};

// Returns the process's share of a batch: some rows or, if packed, sequences with about that part of the tokens; may be
// empty.
TrainingBatch part_of(const TrainingBatch& batch, const BatchShare& share) {
  if (share.parts == 1) return batch;
  if (!batch.cu_seqlens) {
    const int64_t rows = batch.tokens.size(0), begin = share.begin(rows), count = share.end(rows) - begin;
    return {batch.tokens.narrow(0, begin, count), batch.targets.narrow(0, begin, count), std::nullopt};
  }
  // Takes the sequences that begin within the part's share of the tokens.
  const int64_t tokens = batch.tokens.size(1);
  const Tensor bounds = batch.cu_seqlens->to(at::kLong).contiguous();
  const std::vector<int64_t> all(bounds.const_data_ptr<int64_t>(), bounds.const_data_ptr<int64_t>() + bounds.numel());
  const auto at_token = [&](int64_t token) { return std::lower_bound(all.begin(), all.end(), token) - all.begin(); };
  const int64_t first = at_token(share.begin(tokens)), last = at_token(share.end(tokens));
  const int64_t begin = all[static_cast<size_t>(first)], count = all[static_cast<size_t>(last)] - begin;
  return {batch.tokens.narrow(1, begin, count), batch.targets.narrow(1, begin, count),
          bounds.slice(0, first, last + 1) - begin};
}

// Returns the number of tokens of a sequence before the relay's part `part`.
int64_t tokens_before(const TrainingBatch& batch, const Relay& relay, int64_t part) {
  return batch.tokens.size(1) * part / relay.parts();
}

// Returns this process's part of every sequence.
TrainingBatch tokens_of(const TrainingBatch& batch, const Relay& relay) {
  const int64_t begin = tokens_before(batch, relay, relay.part()),
                count = tokens_before(batch, relay, relay.part() + 1) - begin;
  return {batch.tokens.narrow(1, begin, count).contiguous(), batch.targets.narrow(1, begin, count).contiguous(), {}};
}

}  // namespace

Dataset open_data(const std::string& path, const TrainingOptions& options,
                  const std::shared_ptr<Tokenizer>& tokenizer) {
  if (std::filesystem::is_directory(path)) return open_dataset(path);
  return open_text_as_dataset(
      {.files = {path}, .tokenizer = options.tokenizer, .document_separator = options.document_separator}, tokenizer);
}

std::shared_ptr<BatchSource> make_batches(const std::shared_ptr<TokenFile>& tokens, const TrainingOptions& options) {
  const auto seed = uint64_t(options.seed);
  if (!options.packed) return std::make_shared<RandomCrops>(tokens, options.batch, options.context, seed);
  return std::make_shared<PackedDocuments>(tokens, options.batch * options.context, options.context, seed);
}

std::unique_ptr<TaskData> open_language_data(const TrainingOptions& options, const std::string& tokenizer) {
  fail_input_if(options.data.empty(), "[train] no data: give --data, or \"data\" in \"training\"");
  return std::make_unique<LanguageData>(options, tokenizer);
}

LearnedBatch learn_batch(LanguageModel& model, const TrainingBatch& batch, at::ScalarType type,
                         const BatchShare& share) {
  const TrainingBatch rows = part_of(batch, share);
  const int64_t before = share.relay ? tokens_before(rows, *share.relay, share.relay->part()) : 0;
  const TrainingBatch part = share.relay ? tokens_of(rows, *share.relay) : rows;
  const auto targets = double(part.targets.ge(0).sum().item<int64_t>());
  if (targets == 0 && !share.relay) return nothing_learned(share);
  const at::Device device = model.device();
  Batch about{.cu_seqlens = part.cu_seqlens, .training = true, .relay = share.relay, .before = before};
  if (share.relay) about.shortest = rows.tokens.size(1) / share.relay->parts();
  if (about.cu_seqlens) about.cu_seqlens = about.cu_seqlens->to(device);
  Tensor loss;
  {
    const Autocast autocast(device, type);
    loss = model.loss(part.tokens.to(device), part.targets, about) * targets;
  }
  share.backward(loss);
  return {loss.detach(), targets, part.tokens.numel()};
}

}  // namespace cortado
