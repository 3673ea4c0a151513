// The cross-entropy of a model on whole token files.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <vector>

#include "cortado/data/token_file.h"
#include "cortado/models/language_model.h"
#include "cortado/parallel/ranks.h"

namespace cortado {

// Options of evaluate_loss().
struct EvaluateOptions {
  int64_t context = 256;  // tokens per window: the model never sees more at once
  // Tokens by which the window moves. 0 stands for `context`: windows side by side, which is fast, but the first tokens
  // of each window are predicted from little context. context / 2: every token is predicted from at least context / 2
  // tokens, except a document's first ones.
  int64_t stride = 0;
  std::vector<int32_t> begin = {};  // begin tokens (BOS) read before every window, in addition to its length
  int64_t limit = 0;                // score about this many tokens from the file's beginning, in whole windows; 0: all
  int64_t tokens_per_call = 8192;   // tokens per forward pass, which bounds the memory; at least one window
  std::function<void(int64_t done, int64_t total)> progress = {};  // tokens scored so far and in total
  Ranks ranks = {};                                                // processes that share the calls; each gets the sum
};

// Sums over all scored tokens, and the means that follow from them.
struct Evaluation {
  int64_t tokens = 0;  // tokens scored: all but the first of each document
  double total = 0.0;  // nats
  int64_t right = 0;   // targets that had the largest logit

  double accuracy() const { return tokens > 0 ? static_cast<double>(right) / static_cast<double>(tokens) : 0.0; }
  double loss() const { return tokens > 0 ? total / static_cast<double>(tokens) : 0.0; }  // nats per token
  double perplexity() const { return std::exp(loss()); }
};

// Predicts every token of the file exactly once, except the first of each document. Documents do not see each other.
// Runs without gradients and dropout in any mode of the model; equal models, tokens and options give equal numbers.
// Throws InputError if context < 1, stride > context, the context (with the begin tokens) exceeds learned positions, or
// no document has two tokens.
Evaluation evaluate_loss(LanguageModel& model, const TokenFile& tokens, const EvaluateOptions& options = {});

// Adds the scores of targets [N], predicted from hidden states [N, D]: their number, their cross-entropy, and how many
// had the largest logit. The head runs on slices, so that the logits of a large vocabulary never exist all at once.
void add_scores(const LanguageModel& model, const at::Tensor& hidden, const at::Tensor& targets, Evaluation& result);

// How well a model predicts fixed tokens from contexts of a given length. Memory is bounded by the model's state.
struct ContextLossOptions {
  int64_t length = 1024;  // tokens per window; at least 2
  int64_t first = 512;    // the predicted tokens are first .. first + count - 1
  int64_t count = 512;
  std::vector<int32_t> begin = {};  // begin tokens (BOS) read before every window, in addition to its length
  int64_t tokens_per_call = 4096;   // tokens per forward pass, which bounds the memory
  std::function<void(int64_t done, int64_t total)> progress = {};  // tokens read so far and in total
  Ranks ranks = {};  // processes that share the windows; each gets the sum
};

// Each window begins half a length before the tokens that it predicts and slides by half a length, so every token is
// predicted from at least length / 2 and less than length tokens. Long windows are read in pieces that continue from
// the state, so only the state bounds the memory. The predicted tokens do not depend on the length. tokens: int64 [T].
// Throws InputError if length < 2, first < length / 2, the text ends before first + count, or learned positions end
// before the length.
Evaluation evaluate_in_context(LanguageModel& model, const at::Tensor& tokens, const ContextLossOptions& options);

}  // namespace cortado
