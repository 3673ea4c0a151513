// The map by which a part of a sequence changes any state before it.
#pragma once

#include <functional>

#include "cortado/parallel/sequence_parts.h"

namespace cortado {

// The map S -> decay S + own.
struct Composition {
  Tensor decay, own;

  // Returns the state before this process's part; `start` is the state before the first part.
  Tensor before(const SequenceParts& parts, const Tensor& start,
                SequenceParts::Decay kind = SequenceParts::Decay::kFactors) const {
    return parts.state_before(decay, own, start, kind);
  }
};

// Returns exp Σ_{s>=t} g_s for t = 0..T, the factor that tokens t and later apply to the state before them (1 at T).
// Logs g [B,T,...], -inf allowed -> [B,T+1,...].
inline Tensor left_of_decays(const Tensor& g) {
  return at::cat({g.flip(1).cumsum(1).flip(1).exp(), at::ones_like(g.narrow(1, 0, 1))}, 1);
}

// Composes f({timed..., fixed...}) over pieces of the tokens, dimension 1 of `timed`. f depends on these tensors only
// and computes in their types whatever autocast says. The backward recomputes f, so that at most some MiB are held
// besides the inputs (timed[0] being the largest). Differentiating twice is an error.
Composition compose(const Tensors& timed, const Tensors& fixed, SequenceParts::Decay kind,
                    std::function<Composition(const Tensors&)> f);

}  // namespace cortado
