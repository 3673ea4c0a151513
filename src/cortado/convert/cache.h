// What the caches of a conversion keep: the score of a pair, learned from what softmax attention looks back to.
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

// Text in which something is worth being remembered: statements ("The train to Lima leaves from platform 5.") at random
// places of its first part, and again, in another order, at its end. Of a tokenizer that cannot write them the statements
// are stretches of the text. None where the text is too short.
class Reminders {
 public:
  Reminders(std::shared_ptr<const Chunks> text, const Tokenizer& tokenizer, uint64_t seed);

  struct Text {
    Tensor tokens;         // int64 [1, the chunks' length]
    int64_t reminded = 0;  // the last so many say again what was said
  };
  Text text(int64_t number) const;

 private:
  std::vector<int64_t> statement(const RandomStream& random, int64_t number, int64_t place) const;

  std::shared_ptr<const Chunks> chunks_;
  const Tokenizer& tokenizer_;
  uint64_t seed_;
  bool writes_ = true;
};

// What was found for a layer.
struct CacheLesson {
  int64_t layer = 0;
  Tensor weight, bias;             // of the scores: [2 Hkv,D], [2 Hkv]
  double lasting = 0, fading = 0;  // of the variance of what the scores stand for, what they explain
  // Of a key head: the largest weight that a reminder's token gives to one far back but the first, on average.
  std::vector<double> recall;
};

// Both scores are ridge regressions on the layer's input, of what softmax attention looks back to from where a pair is not
// exact without a cache. What lasts: log(0.1 + the largest weight that a reminder's query gives to the pair's token, in any
// head of any layer). What fades: log(0.001 + the mean of the four largest weights that the text's own queries give to the
// pair, in its head); of texts without reminders both. `tokens` of text are read, in whole chunks, with softmax attention's
// outputs flowing on. Nothing: stopped. InputError: chunks too short to look back in.
struct CacheStudy {
  int64_t tokens = 0;
  uint64_t seed = 0;
  std::function<bool()> stop = {};
  bool progress = false;
};
std::vector<CacheLesson> learn_caches(const LanguageModel& model, const std::shared_ptr<const Chunks>& chunks,
                                      const Tokenizer& tokenizer, const CacheStudy& study, const Ranks& ranks);

// What a cache's learning came to.
struct CacheReport {
  int64_t layers = 0, heads = 0;   // with a cache; their key heads
  double lasting = 0, fading = 0;  // of the variance of what the two scores stand for, means of the layers
  double seconds = 0;
  Json recall = Json::object();  // of a layer's key heads: {"3": [0.01, 0.4, 0.02], ...} (CacheLesson)

  void fields(JsonFields& json);
};

}  // namespace cortado
