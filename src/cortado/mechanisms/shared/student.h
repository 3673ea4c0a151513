// Mixers that stand in for softmax attention and can learn from it.
#pragma once

#include <string>
#include <vector>

#include "cortado/mechanisms/mixer.h"

namespace cortado {

// A mixer with the projections q, k, v and o of the softmax layer that it replaces, and parameters of its own, which
// are to make up for what it does not see.
class SoftmaxStudent {
 public:
  virtual ~SoftmaxStudent() = default;

  // What softmax attention over all earlier tokens and what this mixer make of the same q, k and v, [B,T,H,d] before
  // the output projection. Both start from x [B,T,D] of whole sequences; no gradient is needed but that of learned().
  struct Lesson {
    Tensor teacher, student;
  };
  virtual Lesson lesson(const Tensor& x) const = 0;

  // The output projection, [B,T,H,d] -> [B,T,D].
  virtual Tensor project_output(const Tensor& mixed) const = 0;

  // The shortest sequence in which it does not see all that softmax attention sees.
  virtual int64_t shortest_lesson() const { return 1; }

  // Names of the parameters that the softmax layer does not have. None: these settings stand in for no softmax layer.
  virtual std::vector<std::string> learned() const = 0;

  // Of x [B,T,D], what the key maps of its latents, "latent_k.weight" [L,D], read: [B,T,D]. Undefined: it has none.
  virtual Tensor latent_inputs(const Tensor& /*x*/) const { return {}; }
};

// A student with latents and a cache of exact pairs. Each key head has two scores per token, both linear in the layer's
// input: one for pairs that last, one for pairs that fade. "score_weight" [2 Hkv,D] and "score_bias" [2 Hkv] hold them,
// head by head.
class CacheStudent {
 public:
  virtual ~CacheStudent() = default;

  virtual bool learns_score() const = 0;

  // Of x [B,T,D], whole sequences: what softmax attention over all earlier tokens gives, [B,T,H,d] before the output
  // projection, and what it looks back to: the weight of pair s for query t, the largest of the query heads of a key
  // head, [B,Hkv,T,T]; 0 where the pair is exact without a cache, less than `behind` tokens before the query.
  struct LookBack {
    Tensor teacher, weights;
    int64_t behind = 0;
  };
  virtual LookBack look_back(const Tensor& x) const = 0;
};

// The mixer as one; null where it is none.
inline const CacheStudent* cache_student_of(const Mixer& mixer) {
  const auto* student = dynamic_cast<const CacheStudent*>(&mixer);
  return student && student->learns_score() ? student : nullptr;
}

// The mixer as a student; null where it is none.
inline const SoftmaxStudent* student_of(const Mixer& mixer) {
  const auto* student = dynamic_cast<const SoftmaxStudent*>(&mixer);
  return student && !student->learned().empty() ? student : nullptr;
}

}  // namespace cortado
