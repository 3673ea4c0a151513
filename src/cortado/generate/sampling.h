// Choosing the next token from a model's logits.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cortado/base/random.h"

namespace cortado {

struct SamplingOptions {
  double temperature = 1.0;  // logits / temperature; 0: always the likeliest token
  int64_t top_k = 0;         // only the k likeliest; 0: all
  double top_p = 1.0;        // only the fewest likeliest whose probabilities sum to p or more
  double min_p = 0.0;        // only those at least min_p times as likely as the likeliest
  double repetition_penalty =
      1.0;  // recent tokens' logits: divided by it where positive, multiplied where negative (CTRL)
  int64_t repetition_window = 64;  // how many tokens are recent
  // What is taken from the logit of a token that has been written (once, whatever its count; and for each time): -2 to
  // 2, as OpenAI has them.
  double presence_penalty = 0.0, frequency_penalty = 0.0;
  std::vector<std::pair<int32_t, double>> bias = {};  // added to these tokens' logits
  int64_t seed = 0;
};

// The order: bias, penalties, temperature, top-k; then top-p and min-p, which both look at what top-k has left,
// renormalised. At least the likeliest token always stays. Ties go to the lower token.
//
// The draw is a function of (seed, position) alone, so a text that is saved and continued is the text written in one
// go.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);  // InputError names the option that is out of range

  // logits [V] of any floating-point type; recent: the tokens before, oldest first, those `written` by the model among
  // them or further back; position: how many tokens there are before this one. Failure when a logit is NaN or infinite
  // upwards, or none is finite.
  int32_t sample(const at::Tensor& logits, std::span<const int32_t> recent, uint64_t position,
                 std::span<const int32_t> written = {});

  struct Candidate {
    float score;
    int32_t token;
    double weight;  // its probability, times the sum of all weights
  };
  // The tokens that may be drawn; at temperature 0 one.
  const std::vector<Candidate>& candidates(const at::Tensor& logits, std::span<const int32_t> recent,
                                           std::span<const int32_t> written = {});

 private:
  void read_scores(const at::Tensor& logits);
  void add_bias();
  void penalise(std::span<const int32_t> recent, std::span<const int32_t> written);
  int32_t likeliest() const;
  void keep_top_k();
  void keep_top_p(double total);

  SamplingOptions options_;
  RandomStream random_;
  std::vector<float> scores_;  // kept between calls: no allocation a token
  std::vector<Candidate> candidates_;
};

}  // namespace cortado
