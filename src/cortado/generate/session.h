// A sequence that a model reads and goes on with: constant time a token, a state that can be saved, loaded and forked.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cortado/models/language_model.h"
#include "cortado/parallel/ranks.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// The number of tokens beyond which a model was not trained to look back; none: it has no layer that does, or its
// context is not known, or it ends with an error there.
std::optional<int64_t> trained_context(const LanguageModel& model);

// One sequence. No gradients are kept. Everything that the future depends on is in the session: copying it through
// fork(), or saving and loading it, gives a sequence that goes on exactly as this one would.
class Session {
 public:
  static constexpr int64_t kChunk = kReadChunk;  // tokens that prefill reads at a time: bounds its memory
  static constexpr size_t kRecentTokens = 4096;  // how far back recent() reaches, at least

  // No tokenizer: it reads tokens only, never text.
  Session(std::shared_ptr<LanguageModel> model, std::shared_ptr<const Tokenizer> tokenizer);

  // Reads tokens, in chunks, through the same forward pass as everything else. The same sequence cut in other places
  // gives the same logits up to rounding. `cancelled` is asked before every chunk but the first; returns the number of
  // tokens read. InputError: a token outside the vocabulary, more tokens than learned positions.
  int64_t prefill(const std::vector<int32_t>& tokens, int64_t chunk = kChunk,
                  const std::function<bool()>& cancelled = {});
  // The same by several processes that have the same model: each reads its chunk of every so many, and every layer's
  // state is handed on from one to the next. Process 0 has read them all in the end, from where its session stood; the
  // others' sessions are of no more use. All of them make the call.
  int64_t prefill_among(const Ranks& ranks, const std::vector<int32_t>& tokens, int64_t chunk = kChunk,
                        const std::function<bool()>& cancelled = {});
  // The same of a text; at the beginning with the marks that the model expects there.
  void prefill_text(std::string_view text) {
    prefill(depth_ == 0 ? encode_prompt(*tokenizer_, text) : tokenizer_->encode(text));
  }

  // Reads one token.
  void step(int32_t token);

  // Of the token that comes next: float32 [V], on the CPU. InputError when nothing has been read yet.
  const at::Tensor& logits() const;

  int64_t depth() const { return depth_; }                     // tokens read
  std::span<const int32_t> recent() const { return recent_; }  // the last tokens read, oldest first
  int64_t state_bytes() const { return state_.bytes(); }

  Session fork() const;

  // A safetensors file: the model's state, the logits, the recent tokens. `memory` says which memory the model runs
  // with, for the message that refuses a state of another one. Loading the state of another model or memory, or one
  // made with another --dtype: InputError.
  void save(const std::string& path, const std::string& memory = "") const;
  void load(const std::string& path, const std::string& memory = "");

  const LanguageModel& model() const { return *model_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

 private:
  void read(const at::Tensor& tokens);  // int64 [1, T]
  int64_t read_rounds(const Ranks& ranks, const at::Tensor& tokens, int64_t chunk,
                      const std::function<bool()>& cancelled);
  void remember(std::span<const int32_t> tokens);

  std::shared_ptr<LanguageModel> model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ModelState state_;
  at::Tensor logits_;  // replaced, never written to: forks share it
  std::vector<int32_t> recent_;
  int64_t depth_ = 0;
};

}  // namespace cortado
