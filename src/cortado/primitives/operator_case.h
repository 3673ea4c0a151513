// One case per operator for `cortado bench ops` (timing) and `cortado doctor` (checking): typical inputs, the
// definition to check against, and the amount of work.
#pragma once

#include <algorithm>
#include <functional>
#include <string>

#include "cortado/primitives/types.h"

namespace cortado {

// One sequence (B = 1) of H heads with K = V = L = M = size; D = H · size for operators without heads.
struct OperatorSizes {
  int64_t tokens = 4096, heads = 4, size = 64;
};

// Work of a forward pass per token, all heads together.
struct Work {
  double flops = 0;  // of the recurrence or the visible pairs; a multiply-add counts 2
  double exps = 0;   // exponentials
};

struct OperatorCase {
  std::string name = {};                                     // "gated_scan/head"
  std::string operation = {};                                // "gated_scan"
  std::string note = {};                                     // a description for the table's legend
  std::function<Tensors(const OperatorSizes&)> inputs = {};  // float32
  // Returns the output first, then the state for the next call. Computes whole sequences if `carried` is empty, else
  // one token that continues from `carried`, which holds the results after the output of the previous call.
  std::function<Tensors(const Tensors& in, const Tensors& carried)> call = {};
  bool steps = true;  // false: the operator takes whole sequences only
  // The definition's results; may have fewer of them than `call` on a whole sequence.
  std::function<Tensors(const Tensors&)> reference = {};
  std::function<Work(const OperatorSizes&)> work = {};
  int64_t most_tokens = 0;  // longer sequences take too long; 0: no limit

  Tensors forward(const Tensors& in) const { return call(in, {}); }
};

// --- Helpers for writing cases. ---

inline Tensors results(const TensorTuple<2>& result) { return {std::get<0>(result), std::get<1>(result)}; }
inline OptionalTensor part(const Tensors& carried, size_t i) {
  return i < carried.size() ? carried[i] : std::optional<Tensor>();
}
inline Tensors join(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline Tensor heads_of(const OperatorSizes& s, int64_t width) { return at::randn({1, s.tokens, s.heads, width}); }
inline Tensors qkv(const OperatorSizes& s) { return {heads_of(s, s.size), heads_of(s, s.size), heads_of(s, s.size)}; }
inline Tensor gates(at::IntArrayRef shape) { return at::rand(shape) * -0.2; }  // a memory of about ten tokens
inline Tensor positive(const OperatorSizes& s) { return at::rand({1, s.tokens, s.heads, s.size}) + 0.1; }

inline double state_elements(const OperatorSizes& s) { return static_cast<double>(s.heads * s.size * s.size); }
inline double channels(const OperatorSizes& s) { return static_cast<double>(s.heads * s.size); }
inline Work operator+(const Work& a, const Work& b) { return {a.flops + b.flops, a.exps + b.exps}; }
// Attention over the visible keys: averaged over the sequence's queries, all heads together.
inline Work window_work(const OperatorSizes& s, int64_t window) {
  const auto tokens = static_cast<double>(s.tokens), w = static_cast<double>(std::min(window, s.tokens));
  const double visible = static_cast<double>(s.heads) * (w - w * (w - 1) / (2 * tokens));
  return {4 * static_cast<double>(s.size) * visible, visible};
}

inline constexpr int64_t kCaseWindow = 128;
inline constexpr int64_t kCheckedTokens = 200;  // not a multiple of any chunk size

}  // namespace cortado
