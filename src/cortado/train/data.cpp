#include "cortado/train/data.h"

#include <filesystem>

namespace cortado {
namespace {

class CropSource : public BatchSource {
 public:
  CropSource(const std::shared_ptr<TokenFile>& tokens, const TrainingOptions& options)
      : tokens_(tokens), crops_(tokens, options.batch, options.context, uint64_t(options.seed)) {}
  TrainingBatch next(DataPosition& position) override { return crops_.batch(position.batches++); }
  DataIdentity identity() const override { return {tokens_->size(), fingerprint(*tokens_)}; }

 private:
  std::shared_ptr<const TokenFile> tokens_;
  RandomCrops crops_;
};

class PackedSource : public BatchSource {
 public:
  PackedSource(const std::shared_ptr<TokenFile>& tokens, const TrainingOptions& options)
      : tokens_(tokens), documents_(tokens, options.batch * options.context, options.context, uint64_t(options.seed)) {}
  TrainingBatch next(DataPosition& position) override {
    position.batches++;
    return documents_.next(position.packed);
  }
  DataIdentity identity() const override { return {tokens_->size(), fingerprint(*tokens_)}; }

 private:
  std::shared_ptr<const TokenFile> tokens_;
  PackedDocuments documents_;
};

}  // namespace

Dataset open_data(const std::string& path, const TrainingOptions& options,
                  const std::shared_ptr<Tokenizer>& tokenizer) {
  if (std::filesystem::is_directory(path)) return open_dataset(path);
  PrepareOptions prepare;
  prepare.files = {path};
  prepare.tokenizer = options.tokenizer;
  prepare.document_separator = options.document_separator;
  return open_text_as_dataset(prepare, tokenizer);
}

Json DataPosition::to_json() const {
  return {{"batches", batches}, {"epoch", packed.epoch}, {"document", packed.document}, {"offset", packed.offset}};
}

DataPosition DataPosition::from_json(const Json& json, const std::string& place) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  JsonReader reader(json, place);
  DataPosition position;
  position.batches = reader.integer("batches", 0, kMost);
  position.packed.epoch = reader.integer("epoch", 0, kMost);
  position.packed.document = reader.integer("document", 0, kMost);
  position.packed.offset = reader.integer("offset", 0, kMost);
  reader.finish();
  return position;
}

std::shared_ptr<BatchSource> make_batches(const std::shared_ptr<TokenFile>& tokens, const TrainingOptions& options) {
  if (options.packed) return std::make_shared<PackedSource>(tokens, options);
  return std::make_shared<CropSource>(tokens, options);
}

}  // namespace cortado
