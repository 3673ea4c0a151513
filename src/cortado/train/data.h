// What a run reads: its texts and its batches, chosen by the options.
#pragma once

#include <memory>
#include <string>

#include "cortado/data/batches.h"
#include "cortado/data/token_file.h"
#include "cortado/train/options.h"

namespace cortado {

// `path`: a folder made by `cortado prepare`, or a text, which is then cut into train and validation and tokenized as
// the options say, or by `tokenizer` where one is given. Missing, empty, not text: InputError.
Dataset open_data(const std::string& path, const TrainingOptions& options,
                  const std::shared_ptr<Tokenizer>& tokenizer = nullptr);

// How far a run has read: all that going on needs.
struct DataPosition {
  int64_t batches = 0;               // read so far: with the seed, all that a task needs that draws its batches
  PackedDocuments::Position packed;  // where the next packed batch begins

  Json to_json() const;
  static DataPosition from_json(const Json& json, const std::string& place);
};

// Tells other data on resuming.
struct DataIdentity {
  int64_t tokens = 0;       // or examples, in the whole split; 0: drawn without end
  std::string fingerprint;  // of what the split holds, or of what draws it
};

// Random crops [batch, context], or packed documents [1, batch * context] in sequences of at most `context` tokens.
// What comes next is a pure function of the options' seed and the position.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual TrainingBatch next(DataPosition& position) = 0;
  virtual DataIdentity identity() const = 0;
};

// Fewer tokens than one crop: InputError.
std::shared_ptr<BatchSource> make_batches(const std::shared_ptr<TokenFile>& tokens, const TrainingOptions& options);

}  // namespace cortado
