// Interfaces of mixers that replace softmax attention and learn from it.
#pragma once

#include <string>
#include <vector>

#include "cortado/mechanisms/mixer.h"

namespace cortado {

// A mixer with the projections q, k, v and o of the softmax layer that it replaces. Its own parameters make up for the
// pairs that it does not see exactly.
class SoftmaxStudent {
 public:
  virtual ~SoftmaxStudent() = default;

  // Outputs of softmax attention over all earlier tokens (teacher) and of this mixer (student) for the same q, k and v:
  // [B,T,H,d], before the output projection. x [B,T,D] holds whole sequences. Only parameters of learned() need
  // gradients.
  struct Lesson {
    Tensor teacher, student;
  };
  virtual Lesson lesson(const Tensor& x) const = 0;

  // The output projection and gate: mixed [B,T,H,d] and the layer's input x [B,T,D] -> [B,T,D].
  virtual Tensor project_output(const Tensor& mixed, const Tensor& x) const = 0;

  // The shortest sequence for which its output differs from softmax attention's.
  virtual int64_t shortest_lesson() const { return 1; }

  // Names of the parameters that the softmax layer does not have. Empty if it cannot replace a softmax layer with these
  // settings.
  virtual std::vector<std::string> learned() const = 0;

  // The input [B,T,D] of the latents' key map "latent_k.weight" [L,D], computed from x [B,T,D]. Undefined if the mixer
  // has no latents.
  virtual Tensor latent_inputs(const Tensor& /*x*/) const { return {}; }
};

// A student with latents and a cache of exact pairs. Each key head has two scores per token, both linear in the layer's
// input: one for pairs that last, one for pairs that fade. Parameters: "score_weight" [2 Hkv,D] and "score_bias" [2
// Hkv], two rows per head.
class CacheStudent {
 public:
  virtual ~CacheStudent() = default;

  virtual bool learns_score() const = 0;

  // For whole sequences x [B,T,D]: the output of softmax attention over all earlier tokens, [B,T,H,d] before the output
  // projection, and the weights [B,Hkv,T,T] of pair s for query t, the largest among a key head's query heads. A weight
  // is 0 where the pair is exact without a cache, fewer than `behind` tokens before the query.
  struct LookBack {
    Tensor teacher, weights;
    int64_t behind = 0;
  };
  virtual LookBack look_back(const Tensor& x) const = 0;
};

// The mixer's CacheStudent interface; null if it has none or learns no score.
inline const CacheStudent* cache_student_of(const Mixer& mixer) {
  const auto* student = dynamic_cast<const CacheStudent*>(&mixer);
  return student && student->learns_score() ? student : nullptr;
}

// The mixer's SoftmaxStudent interface; null if it has none or learns nothing.
inline const SoftmaxStudent* student_of(const Mixer& mixer) {
  const auto* student = dynamic_cast<const SoftmaxStudent*>(&mixer);
  return student && !student->learned().empty() ? student : nullptr;
}

}  // namespace cortado
