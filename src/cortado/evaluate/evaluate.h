// How well a model predicts a text: cross-entropy over whole token files.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <vector>

#include "cortado/data/token_file.h"
#include "cortado/models/language_model.h"
#include "cortado/parallel/ranks.h"

namespace cortado {

struct EvaluateOptions {
  int64_t context = 256;  // tokens in a window: the model never sees more at once
  // Tokens by which the window moves. 0: by `context`, windows side by side (fast; the first tokens of a window are
  // predicted from little). context / 2: every token but a document's first ones is predicted from at least context / 2
  // tokens before it.
  int64_t stride = 0;
  std::vector<int32_t> begin = {};  // read before every window, beyond its length: the model's marks (BOS)
  int64_t limit = 0;                // score about this many tokens from the file's beginning (whole windows); 0: all
  int64_t tokens_per_call = 8192;   // tokens in one forward pass, which bounds the memory (at least one window)
  std::function<void(int64_t done, int64_t total)> progress = {};  // tokens scored so far, and in the end
  Ranks ranks = {};  // processes that take turns with the calls; all get the sum
};

struct Evaluation {
  int64_t tokens = 0;  // tokens scored: all but the first of each document
  double total = 0.0;  // nats
  int64_t right = 0;   // tokens that were the likeliest

  double accuracy() const { return tokens > 0 ? static_cast<double>(right) / static_cast<double>(tokens) : 0.0; }
  double loss() const { return tokens > 0 ? total / static_cast<double>(tokens) : 0.0; }  // nats a token
  double perplexity() const { return std::exp(loss()); }
};

// Predicts every token of the file but the first of each document, each exactly once; documents don't see each other.
// No gradients, no dropout, whatever mode the model is in; the same model, tokens and options give the same number.
// InputError: context < 1, stride > context, context beyond learned positions (the marks are counted), no document of
// two tokens.
Evaluation evaluate_loss(LanguageModel& model, const TokenFile& tokens, const EvaluateOptions& options = {});

// Adds targets [N] after hidden vectors [N, D]: their number, their cross-entropy, those that are the likeliest. The
// head runs on slices, so that a large vocabulary's logits never exist all at once.
void add_scores(const LanguageModel& model, const at::Tensor& hidden, const at::Tensor& targets, Evaluation& result);

// How well it predicts the same tokens from contexts of different lengths, at a memory that its state decides.
struct ContextLossOptions {
  int64_t length = 1024;  // of a window; at least 2
  int64_t first = 512;    // the tokens that are predicted: first .. first + count - 1
  int64_t count = 512;
  std::vector<int32_t> begin = {};  // read before every window, beyond its length: the model's marks (BOS)
  int64_t tokens_per_call = 4096;   // in one forward pass, which bounds the memory
  std::function<void(int64_t done, int64_t total)> progress = {};  // tokens read so far, and in the end
  Ranks ranks = {};  // processes that take turns with the windows; all get the sum
};

// Windows begin half a length before what they predict and slide by half a length, so every token is predicted from at
// least length / 2 and less than length tokens before it. A long window is read in pieces that go on from a state:
// memory stays that of the model's state. The tokens predicted don't depend on the length. tokens int64 [T].
// InputError: a length below 2, first < length / 2, a text that ends before first + count, learned positions that end
// before the length.
Evaluation evaluate_in_context(LanguageModel& model, const at::Tensor& tokens, const ContextLossOptions& options);

}  // namespace cortado
