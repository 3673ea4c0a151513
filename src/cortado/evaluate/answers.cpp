#include "cortado/evaluate/answers.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "cortado/base/error.h"

namespace cortado {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

// Sequences that are read and decoded as a batch.
class Sequences {
 public:
  Sequences(LanguageModel& model, const Prompts& prompts, const AnswerOptions& options)
      : model_(model), prompts_(prompts), options_(options), rows_(prompts.size()) {
    std::iota(rows_.begin(), rows_.end(), 0);
    answers_.tokens.resize(prompts.size());
  }

  Answers answer() {
    read_prompts();
    answers_.state_bytes = static_cast<double>(state_.bytes()) / static_cast<double>(prompts_.size());
    while (options_.tokens > 0 && write()) continue;
    return std::move(answers_);
  }

 private:
  // Reads the prefix that all prompts share as one sequence, then what remains of the shortest prompt's length as a
  // dense batch, then the rest of each prompt as a packed batch.
  void read_prompts() {
    const auto shorter = [](const auto& a, const auto& b) { return a.size() < b.size(); };
    const auto shortest = std::min_element(prompts_.begin(), prompts_.end(), shorter);
    // Leaves every prompt at least one token for the last call.
    const auto common = static_cast<int64_t>(shortest->size()) - 1;
    const int64_t shared = std::min(shared_beginning(), common);
    state_ = model_.zero_state(1);
    read_dense(0, shared, 1);
    if (prompts_.size() > 1) keep(std::vector<int64_t>(prompts_.size(), 0));
    read_dense(shared, common, prompts_.size());
    const at::Tensor rest = tokens_between(common, std::numeric_limits<int64_t>::max());
    if (rest.numel() == static_cast<int64_t>(prompts_.size())) {
      read(rest.view({-1, 1}), {});
    } else {
      read(rest.view({1, -1}), bounds_from(common));
    }
  }

  // Returns the length of the prefix that all prompts share.
  int64_t shared_beginning() const {
    size_t shared = prompts_[0].size();
    for (const auto& prompt : prompts_) {
      const auto [end, other] = std::mismatch(prompt.begin(), prompt.end(), prompts_[0].begin(), prompts_[0].end());
      shared = std::min(shared, static_cast<size_t>(end - prompt.begin()));
    }
    return static_cast<int64_t>(shared);
  }

  // Reads tokens [begin, end) of the first `sequences` prompts.
  void read_dense(int64_t begin, int64_t end, size_t sequences) {
    for (; begin < end; begin += options_.chunk) {
      const int64_t stop = std::min(begin + options_.chunk, end);
      model_.hidden(tokens_between(begin, stop, sequences).view({-1, stop - begin}), {}, &state_);
      count(static_cast<int64_t>(prompts_.size()) * (stop - begin));
    }
  }

  // Returns the tokens [begin, end) of the first `sequences` prompts, concatenated, int64.
  at::Tensor tokens_between(int64_t begin, int64_t end, size_t sequences = std::numeric_limits<size_t>::max()) const {
    std::vector<int64_t> tokens;
    for (size_t i = 0; i < std::min(sequences, prompts_.size()); ++i) {
      const auto& prompt = prompts_[i];
      const auto stop = std::min(end, static_cast<int64_t>(prompt.size()));
      tokens.insert(tokens.end(), prompt.begin() + begin, prompt.begin() + stop);
    }
    return at::tensor(tokens, at::kLong).to(model_.device());
  }

  Batch bounds_from(int64_t begin) const {
    std::vector<int64_t> bounds = {0};
    for (const auto& prompt : prompts_) {
      bounds.push_back(bounds.back() + static_cast<int64_t>(prompt.size()) - begin);
    }
    return {.cu_seqlens = at::tensor(bounds, at::kLong).to(model_.device())};
  }

  void read(const at::Tensor& tokens, const Batch& batch) {
    const at::Tensor last = last_of_each(model_.hidden(tokens, batch, &state_), batch);
    logits_ = model_.logits(last.unsqueeze(1)).squeeze(1).to(at::kCPU, at::kFloat);
    if (options_.vocabulary > 0) logits_ = logits_.narrow(1, 0, options_.vocabulary);
    count(tokens.numel());
  }

  // Adds one token to every unfinished answer. Returns false if all are finished.
  bool write() {
    const auto [best, token] = logits_.max(1);
    if (!at::isfinite(best).all().item<bool>()) {
      throw Failure("[answer] the model's logits are not finite: its weights or its state are damaged");
    }
    std::vector<int64_t> staying, next;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto chosen = static_cast<int32_t>(token[static_cast<int64_t>(i)].item<int64_t>());
      if (std::find(options_.stops.begin(), options_.stops.end(), chosen) != options_.stops.end()) continue;
      auto& written = answers_.tokens[rows_[i]];
      written.push_back(chosen);
      if (static_cast<int64_t>(written.size()) >= options_.tokens) continue;
      staying.push_back(static_cast<int64_t>(i));
      next.push_back(chosen);
    }
    if (staying.empty()) return false;
    if (staying.size() < rows_.size()) {
      keep(staying);
      std::vector<size_t> rows;
      for (const int64_t i : staying) rows.push_back(rows_[static_cast<size_t>(i)]);
      rows_ = rows;
    }
    read(at::tensor(next, at::kLong).view({-1, 1}).to(model_.device()), {});
    return true;
  }

  // Keeps these rows of the state, in this order. Works layer by layer so that the whole state never exists twice.
  void keep(const std::vector<int64_t>& rows) {
    const at::Tensor indices = at::tensor(rows, at::kLong).to(model_.device());
    for (auto& layer : state_.layers) layer = layer.index(indices);
    state_.position = state_.position.index_select(0, indices);
  }

  void count(int64_t tokens) {
    done_ += tokens;
    if (options_.progress) options_.progress(done_);
  }

  LanguageModel& model_;
  const Prompts& prompts_;
  const AnswerOptions& options_;
  std::vector<size_t> rows_;  // the prompt of each row of the state
  ModelState state_;
  at::Tensor logits_;  // [rows, V], on the CPU
  Answers answers_;
  int64_t done_ = 0;
};

}  // namespace

Answers answer_all(LanguageModel& model, const Prompts& prompts, const AnswerOptions& options) {
  const at::NoGradGuard no_grad;
  fail_input_if(prompts.empty(), "[answer] there is no prompt");
  for (const auto& prompt : prompts) fail_input_if(prompt.empty(), "[answer] a prompt has no tokens");
  fail_input_if(options.chunk < 1 || options.tokens < 0, "[answer] chunk must be >= 1 and tokens >= 0, got ",
                options.chunk, " and ", options.tokens);
  return Sequences(model, prompts, options).answer();
}

}  // namespace cortado
