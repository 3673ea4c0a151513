#include "cortado/nn/composition.h"

namespace cortado {

Composition compose(const Tensors& timed, const Tensors& fixed, SequenceParts::Decay kind,
                    const std::function<Tensors(const Tensors&)>& f) {
  constexpr int64_t kNumbers = 1 << 20, kLeastTokens = 64;
  const int64_t tokens = timed[0].size(1), of_a_token = timed[0].numel() / tokens;
  const int64_t length = std::max(kLeastTokens, kNumbers / of_a_token);
  Composition all;
  for (int64_t first = 0; first < tokens; first += length) {
    Tensors inputs;
    for (const Tensor& x : timed) inputs.push_back(x.narrow(1, first, std::min(length, tokens - first)));
    inputs.insert(inputs.end(), fixed.begin(), fixed.end());
    const Tensors piece = recomputed(inputs, f);
    if (first == 0) {
      all = {piece[0], piece[1]};
    } else {
      all = {decayed(kind, piece[0], all.decay), decayed(kind, piece[0], all.own) + piece[1]};
    }
  }
  return all;
}

}  // namespace cortado
