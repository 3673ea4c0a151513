// Generates one answer: chooses its tokens and turns them into text.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cortado/generate/generate.h"
#include "cortado/serve/answer.h"

namespace cortado {

// Returns the log-probabilities of `token` and of the `count` likeliest of the tokenizer's `vocabulary` tokens, from
// logits [V]. The softmax is over all of V.
ScoredToken score_token(const at::Tensor& logits, int32_t token, int64_t count, int64_t vocabulary);

// Chooses token after token and sends their text to the answer.
class Writer {
 public:
  Writer(std::shared_ptr<Answer> answer, int64_t choice, std::shared_ptr<const Tokenizer> tokenizer, int64_t vocabulary,
         at::Tensor logits);

  // Chooses the next token. Returns nothing if the answer ends; then finish() must be called.
  std::optional<int32_t> write();
  void set_logits(at::Tensor logits) { logits_ = std::move(logits); }  // call after the chosen token has been read

  // Ends the answer. `snapshot` is of the sequence before its last token; null if there is none to keep.
  void finish(std::shared_ptr<const Snapshot> snapshot);

  // Returns the tokens that the state has read: the prompt and the answer without its last token.
  std::vector<int32_t> read_tokens() const;
  const at::Tensor& logits() const { return logits_; }
  const Answer& answer() const { return *answer_; }
  void cancel() { answer_->cancel(); }
  void fail(const std::exception_ptr& error) { answer_->fail(error); }
  Finish end() const { return last_.finish.value(); }  // valid when the answer ends
  int64_t tokens() const { return static_cast<int64_t>(sequence_.size() - prompt_); }

 private:
  std::optional<Finish> choose(AnswerPart& part);
  int32_t sample();
  void show(AnswerPart& part, int32_t token);
  void add_score(int32_t token);
  void tell_scores(AnswerPart& part);
  void tell_last_scores(AnswerPart& part, bool stopped);

  std::shared_ptr<Answer> answer_;
  int64_t choice_, vocabulary_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Sampler sampler_;
  TextWriter text_;
  std::unique_ptr<GrammarState> grammar_;  // null: unrestricted
  std::vector<int32_t> sequence_;          // prompt and answer
  size_t prompt_;
  // Scores of tokens whose text has not been sent. [begin, end) are the token's bytes in the text; end = 0: not known
  // yet.
  struct Waiting {
    ScoredToken score;
    size_t begin = 0, end = 0;
    std::string text = {};
  };
  std::deque<Waiting> waiting_;
  size_t decoded_ = 0, shown_ = 0;  // bytes
  bool worded_ = false;             // whether a token that is not special has come
  at::Tensor logits_;               // float32 [V], of the next token
  AnswerPart last_;                 // its last part
  // Cancelled or timed out, so the answer ends between two tokens, even if the remaining text completes a stop string.
  bool cut_ = false;
};

}  // namespace cortado
