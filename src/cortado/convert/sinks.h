// Latents that hold a text's first token alone (sinks), and their settling, which makes them hold at any length.
#pragma once

#include <functional>

#include "cortado/convert/chunks.h"
#include "cortado/models/language_model.h"
#include "cortado/parallel/ranks.h"

namespace cortado {

// Queries of softmax layers that look for nothing attend to the first token, so some latents learn to hold that token
// alone: they become sinks. But a latent's weights are a softmax over all tokens read. If every other token has e^-9 of
// the first token's weight, all others together equal it after 8,000 tokens. The latent then fills up with the average
// of the text, and the model breaks.
//
// Settling raises the key maps of such latents for the first token, along the direction that answers, by least squares,
// the first token with 1 and all others with 0. It raises them until the others' mean weight is e^-20 of the first
// token's; a million tokens together then weigh a fifth of a per cent of it.
class LatentSinks {
 public:
  // Adds one text from its beginning: y [T,D] is the input of the latents' key maps `keys` [L,D].
  void add(const Tensor& y, const Tensor& keys);
  void sum(const Ranks& ranks);
  bool empty() const { return !squares_.defined(); }

  struct Settled {
    Tensor keys;  // [L,D]
    int64_t sinks = 0;
  };
  Settled settled(const Tensor& keys) const;

 private:
  Tensor squares_, first_;  // sums over the other tokens [D,D], and over the first tokens [D]
  Tensor alone_, margin_;   // sums over texts, [L]: the first token's weight; its logit above the others' log-mean-exp
  Tensor counts_;           // numbers of other tokens and of texts
};

// The key map of a mixer's latents.
Tensor latent_keys(const Mixer& mixer);

// Settles the sinks of a converted model in place, from its own activations on `tokens` of text, in whole chunks.
// Returns the number of sinks, or nullopt if stopped.
struct SinkStudy {
  int64_t tokens = 0;
  std::function<bool()> stop = {};
  bool progress = false;
};
std::optional<int64_t> settle_sinks(const LanguageModel& model, const Chunks& chunks, const SinkStudy& study,
                                    const Ranks& ranks);

}  // namespace cortado
