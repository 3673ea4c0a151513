// What the engine's files share: the prompts that are read and the answers that are written. Only these files include it.
#pragma once

#include <optional>

#include "cortado/base/stopwatch.h"
#include "cortado/serve/engine.h"

namespace cortado {

struct Engine::Prefill {
  std::shared_ptr<Answer> answer;
  ModelState state;
  at::Tensor logits;  // after the tokens read so far, if a snapshot is taken there; otherwise undefined
  int64_t done = 0;
  // Depth at which this prompt diverges from those seen before.
  int64_t junction = 0;
  int64_t end = 0;                          // end of the piece that is being read
  std::optional<Backbone::Pass> pass = {};  // layers of the tokens from `done` to `end`
  // If scores are requested: the piece's hidden states [tokens, D] that are still to be scored.
  at::Tensor unscored = {};
  std::optional<PooledText> pooled = {};  // if a vector is requested

  bool in_piece() const { return pass || unscored.defined(); }
  bool whole() const { return done == static_cast<int64_t>(answer->request().tokens.size()); }
};

struct Engine::DecodeBatch {
  struct Row {
    Writer writer;
    // Of an answer whose prompt has just been read, until its first step: its state, and whether others share this.
    std::optional<ModelState> own = {};
    bool shared = false;
    std::shared_ptr<const Snapshot> begin = {};  // the snapshot of the prompt; null: not kept
    // The token that the next step reads; none: the answer has ended. Not `chosen`: it is still to be chosen.
    std::optional<int64_t> next = {};
    bool chosen = false;
    Stopwatch since = {};  // time since its last token
  };
  size_t number;
  ModelState state;  // one row per entry of `rows` without a state of its own; these are the first ones
  std::vector<Row> rows;

  int64_t bytes() const;
};

// Fails an answer, or its writer, with the current exception.
template <typename Whose>
void Engine::fail(Whose& whose) {
  whose.fail(std::current_exception());
  metrics_.count("cortado_answers_total", 1, "end=\"failed\"");
}

// Logits [rows, V] after the last token of `hidden`.
at::Tensor last_logits(const LanguageModel& model, const at::Tensor& hidden);
at::Tensor numbers_on(const std::vector<int64_t>& values, at::Device device);

const char* word_of(Finish finish);

}  // namespace cortado
