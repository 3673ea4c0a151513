// A sequence that a model reads and continues. Its state can be saved, loaded and forked.
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

// Returns the number of tokens beyond which the model was not trained to look back. Returns nothing if no layer looks
// back without limit, if the model's context is unknown, or if the model refuses longer sequences.
std::optional<int64_t> trained_context(const LanguageModel& model);

// One sequence, without gradients. The session holds everything that its continuation depends on: a fork, or a saved
// and loaded session, continues exactly as this one would.
class Session {
 public:
  static constexpr int64_t kChunk = kReadChunk;  // tokens per chunk of prefill; bounds its memory
  static constexpr size_t kRecentTokens = 4096;  // least number of tokens in recent()

  // Without a tokenizer the session reads tokens only, never text.
  Session(std::shared_ptr<LanguageModel> model, std::shared_ptr<const Tokenizer> tokenizer);

  // Reads tokens in chunks by the model's forward pass. Cutting a sequence at other places gives equal logits up to
  // rounding. `cancelled` is asked before every chunk but the first. Returns the number of tokens read. Throws
  // InputError for a token outside the vocabulary, or more tokens than learned positions.
  int64_t prefill(const std::vector<int32_t>& tokens, int64_t chunk = kChunk,
                  const std::function<bool()>& cancelled = {});
  // Prefills with several processes that have the same model. Each process reads every n-th chunk, and each layer's
  // state is passed from one process to the next. In the end process 0's session has read all tokens; the sessions of
  // the others must not be used any more. Collective: all processes make the call.
  int64_t prefill_among(const Ranks& ranks, const std::vector<int32_t>& tokens, int64_t chunk = kChunk,
                        const std::function<bool()>& cancelled = {});
  // Prefills a text. At the beginning of a sequence it is preceded by the model's begin tokens.
  void prefill_text(std::string_view text) {
    prefill(depth_ == 0 ? encode_prompt(*tokenizer_, text) : tokenizer_->encode(text));
  }

  // Reads one token.
  void step(int32_t token);

  // Returns the logits of the next token: float32 [V], on the CPU. Throws InputError if nothing has been read yet.
  const at::Tensor& logits() const;

  int64_t depth() const { return depth_; }                     // tokens read
  std::span<const int32_t> recent() const { return recent_; }  // the last tokens read, oldest first
  int64_t state_bytes() const { return state_.bytes(); }

  Session fork() const;

  // Save and load a safetensors file with the model's state, the logits and the recent tokens. `memory` describes the
  // memory that the model runs with, for error messages. Loading throws InputError for a state of another model or
  // memory, or of another --dtype.
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
  at::Tensor logits_;  // replaced but never modified, so forks share it
  std::vector<int32_t> recent_;
  int64_t depth_ = 0;
};

}  // namespace cortado
