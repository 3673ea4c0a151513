// Learns the scores of a conversion's caches from the weights that softmax attention later gives to pairs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cortado/base/fields.h"
#include "cortado/convert/chunks.h"
#include "cortado/models/language_model.h"
#include "cortado/parallel/ranks.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// Texts in which something is worth remembering: statements ("The train to Lima leaves from platform 5.") stand at
// random positions of the first part and are repeated, in another order, at the end. If the tokenizer cannot write
// them, stretches of text take their place. Short texts get none.
class Reminders {
 public:
  Reminders(std::shared_ptr<const Chunks> text, const Tokenizer& tokenizer, uint64_t seed);

  struct Text {
    Tensor tokens;         // int64 [1, length of a chunk]
    int64_t reminded = 0;  // the number of tokens at the end that repeat statements
  };
  Text text(int64_t number) const;

 private:
  std::vector<int64_t> statement(const RandomStream& random, int64_t number, int64_t place) const;

  std::shared_ptr<const Chunks> chunks_;
  const Tokenizer& tokenizer_;
  uint64_t seed_;
  bool writes_ = true;
};

// The scores learned for one layer.
struct CacheLesson {
  int64_t layer = 0;
  Tensor weight, bias;             // the scores' maps: [2 Hkv,D], [2 Hkv]
  double lasting = 0, fading = 0;  // share of the targets' variance that each score explains
  // Per key head: the largest weight that a reminder's token gives to a far pair other than the first; the mean over
  // these tokens.
  std::vector<double> recall;
};

// Learns both scores by ridge regression on the layer's input. The targets are the weights of softmax attention at
// distances where a pair is not exact without a cache. Lasting: log(0.1 + the largest weight that a reminder's query
// gives the pair's token, over all heads and layers). Fading: log(0.001 + the mean of the four largest weights that the
// text's own queries give the pair, in its key head). For texts without reminders both scores have the second target.
// Reads `tokens` of text in whole chunks; softmax attention's outputs flow on from layer to layer. Returns an empty
// list if it was stopped. Throws InputError for chunks that are too short.
struct CacheStudy {
  int64_t tokens = 0;
  uint64_t seed = 0;
  std::function<bool()> stop = {};
  bool progress = false;
};
std::vector<CacheLesson> learn_caches(const LanguageModel& model, const std::shared_ptr<const Chunks>& chunks,
                                      const Tokenizer& tokenizer, const CacheStudy& study, const Ranks& ranks);

// The result of learning the caches.
struct CacheReport {
  int64_t layers = 0, heads = 0;   // layers with a cache, and their key heads
  double lasting = 0, fading = 0;  // share of the targets' variance that the scores explain, means over the layers
  double seconds = 0;
  Json recall = Json::object();  // per layer, one number per key head: {"3": [0.01, 0.4, 0.02], ...} (CacheLesson)

  void fields(JsonFields& json);
};

}  // namespace cortado
