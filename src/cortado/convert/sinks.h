// Latents in which a text's first token stands alone, and how they stay so at any length.
#pragma once

#include <functional>

#include "cortado/convert/chunks.h"
#include "cortado/models/language_model.h"
#include "cortado/parallel/ranks.h"

namespace cortado {

// A softmax layer's queries that want nothing look at the first token, and so some latents learn to hold that token alone:
// sinks. But a latent's weights are a softmax over all tokens that were read, and what is e^-9 of the first each is as much
// as the first together after 8,000 tokens: the latent fills up with the average of the text, and the model breaks.
//
// The key maps of such latents are raised for the first token, in the direction which in least squares answers it with 1 and
// all others with 0, until the others' mean weight is e^-20 of it: after a million tokens together a fifth of a per cent.
class LatentSinks {
 public:
  // y [T,D], what the latents' keys are made of, of one text from its beginning; keys [L,D], the maps.
  void add(const Tensor& y, const Tensor& keys);
  void sum(const Ranks& ranks);
  bool empty() const { return !squares_.defined(); }

  struct Settled {
    Tensor keys;  // [L,D]
    int64_t sinks = 0;
  };
  Settled settled(const Tensor& keys) const;

 private:
  Tensor squares_, first_;  // sums over the other tokens, [D,D], and over the first ones, [D]
  Tensor alone_, margin_;   // sums over texts, [L]: the first token's weight; its logit above that of the others' mean
  Tensor counts_;           // other tokens, texts
};

// The parameter of a mixer with latents.
Tensor latent_keys(const Mixer& mixer);

// Settles the sinks of a converted model in place, by what it makes itself of `tokens` of text, in whole chunks. How many
// there are; nothing: stopped.
struct SinkStudy {
  int64_t tokens = 0;
  std::function<bool()> stop = {};
  bool progress = false;
};
std::optional<int64_t> settle_sinks(const LanguageModel& model, const Chunks& chunks, const SinkStudy& study,
                                    const Ranks& ranks);

}  // namespace cortado
