// One answer that is being written: what its tokens become.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cortado/generate/generate.h"
#include "cortado/serve/answer.h"

namespace cortado {

// The scores of `token` and of the likeliest `count` of the tokenizer's `vocabulary`, from logits [V]: the logarithms
// of the softmax over all of V.
ScoredToken score_token(const at::Tensor& logits, int32_t token, int64_t count, int64_t vocabulary);

// Chooses one token after the other, and tells the answer of their text.
class Writer {
 public:
  Writer(std::shared_ptr<Answer> answer, int64_t choice, std::shared_ptr<const Tokenizer> tokenizer, int64_t vocabulary,
         at::Tensor logits);

  // Chooses the next token. Nothing where the answer is to end: then finish() must be called.
  std::optional<int32_t> write();
  void set_logits(at::Tensor logits) { logits_ = std::move(logits); }  // after the chosen token has been read

  // Ends the answer. `snapshot`: of the sequence before its last token; null where there is none to keep.
  void finish(std::shared_ptr<const Snapshot> snapshot);

  // The prompt and what was written, but for the last token: what the state has read.
  std::vector<int32_t> read_tokens() const;
  const at::Tensor& logits() const { return logits_; }
  const Answer& answer() const { return *answer_; }
  void cancel() { answer_->cancel(); }
  void fail(const std::exception_ptr& error) { answer_->fail(error); }
  Finish end() const { return last_.finish.value(); }  // once it is to finish
  int64_t tokens() const { return static_cast<int64_t>(sequence_.size() - prompt_); }

 private:
  std::optional<Finish> choose(AnswerPart& part);
  int32_t sample();
  void show(AnswerPart& part, int32_t token, bool stops);
  void add_score(int32_t token);
  void tell_scores(AnswerPart& part);
  void tell_last_scores(AnswerPart& part, bool stopped);

  std::shared_ptr<Answer> answer_;
  int64_t choice_, vocabulary_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Sampler sampler_;
  StopFilter filter_;
  std::optional<StreamDecoder> decoder_;
  std::unique_ptr<GrammarState> grammar_;  // null: anything may come
  std::vector<int32_t> sequence_;          // the prompt and what was written
  size_t prompt_;
  // Scores of tokens whose text has not been shown: of the text's bytes those that are theirs; `end` 0: not known yet.
  struct Waiting {
    ScoredToken score;
    size_t begin = 0, end = 0;
    std::string text = {};
  };
  std::deque<Waiting> waiting_;
  size_t decoded_ = 0, shown_ = 0;  // bytes
  bool worded_ = false;             // a token that is no mark has come
  at::Tensor logits_;               // float32 [V], of the token that comes next
  AnswerPart last_;                 // how it finishes
  bool cut_ = false;                // between two tokens, although what is left of the text may complete a stop
};

}  // namespace cortado
