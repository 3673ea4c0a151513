// How well a model predicts the same tokens from contexts of different lengths, at a memory that its state decides.
#pragma once

#include "cortado/evaluate/evaluate.h"

namespace cortado {

struct ContextLossOptions {
  int64_t length = 1024;  // of a window; at least 2
  int64_t first = 512;    // the tokens that are predicted: first .. first + count - 1
  int64_t count = 512;
  std::vector<int32_t> begin = {};  // read before every window, beyond its length: the model's marks (BOS)
  int64_t tokens_per_call = 4096;   // in one forward pass, which bounds the memory
  std::function<void(int64_t done, int64_t total)> progress = {};  // tokens read so far, and in the end
};

// Windows begin half a length before what they predict and slide by half a length, so every token is predicted from at
// least length / 2 and less than length tokens before it. A long window is read in pieces that go on from a state:
// memory stays that of the model's state. The tokens predicted don't depend on the length. tokens int64 [T].
// InputError: a length below 2, first < length / 2, a text that ends before first + count, learned positions that end
// before the length.
Evaluation evaluate_in_context(LanguageModel& model, const at::Tensor& tokens, const ContextLossOptions& options);

}  // namespace cortado
