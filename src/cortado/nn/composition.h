// What the tokens of a part of a sequence make of any state before them.
#pragma once

#include <functional>

#include "cortado/parallel/sequence_parts.h"

namespace cortado {

// S -> decay S + own.
struct Composition {
  Tensor decay, own;

  // The state before the part, `start` being the first part's.
  Tensor before(const SequenceParts& parts, const Tensor& start,
                SequenceParts::Decay kind = SequenceParts::Decay::kFactors) const {
    return parts.state_before(decay, own, start, kind);
  }
};

// exp Σ_{s>=t} g_s for t = 0..T: what the tokens from t on leave of what was there before them, at T 1. Logarithms g
// [B,T,...], -inf allowed -> [B,T+1,...].
inline Tensor left_of_decays(const Tensor& g) {
  return at::cat({g.flip(1).cumsum(1).flip(1).exp(), at::ones_like(g.narrow(1, 0, 1))}, 1);
}

// f({timed..., fixed...}) for pieces of the tokens, dimension 1 of `timed`, composed: f, a function of these tensors
// alone, computes in the types that they have whatever autocast says. In the backward it is computed again, so that no
// more than some MiB (timed[0] being the largest) are held beside the inputs. Differentiating twice is an error.
Composition compose(const Tensors& timed, const Tensors& fixed, SequenceParts::Decay kind,
                    std::function<Composition(const Tensors&)> f);

}  // namespace cortado
