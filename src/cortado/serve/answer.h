// A request to the server's engine, and the answer's way back from the engine's thread to the threads that wait for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cortado/generate/sampling.h"
#include "cortado/serve/grammar.h"
#include "cortado/serve/pooling.h"
#include "cortado/serve/state_cache.h"

namespace cortado {

// A prompt and how to continue it.
struct Request {
  size_t model = 0;             // index into the engine's models
  std::vector<int32_t> tokens;  // the prompt, at least one token
  std::vector<int64_t> marks;   // depths of the prompt that other prompts probably share: ends of messages
  SamplingOptions sampling = {};
  int64_t choices = 1;       // number of answers; the i-th has the seed sampling.seed + i
  int64_t most_tokens = 16;  // per answer; 0: only read the prompt
  std::vector<std::string> stops = {};
  std::shared_ptr<const Grammar> grammar = {};  // restricts the answers to this grammar
  // The answers begin a text of their own instead of continuing the prompt's.
  bool begins_text = false;
  bool ignore_end = false;                // the model's own stop tokens do not end an answer
  std::optional<int64_t> likeliest = {};  // return scores of tokens, and of this many of the likeliest
  // Score the prompt's tokens too; the prompt is then read from its beginning.
  bool score_prompt = false;
  bool wants_state = false;  // return WrittenAnswer::snapshot
  double seconds = 0;        // time limit of an answer; 0: none
  std::optional<TextPooling> pooling =
      {};                        // return Answer::pooled(), and write nothing; the prompt is read from its beginning
  StateCache::Found start = {};  // a snapshot of a prefix of `tokens` that need not be in the cache
};

// A token with its natural log-probability over the whole vocabulary, before any sampling option.
struct ScoredToken {
  int32_t token = 0;
  std::optional<double> logprob = {};  // none for the first token of a text
  std::vector<std::pair<int32_t, double>> likeliest = {};
  // The token's text if it differs from the tokenizer's piece: shorter at the beginning of a text or before a stop
  // string, empty for a special token.
  std::optional<std::string> text = {};
};

enum class Finish { kStop, kLength, kCancelled, kTimeout };

// The next part of one of the answers.
struct AnswerPart {
  int64_t choice = 0;
  std::string text = {};                 // whole UTF-8 characters
  std::vector<ScoredToken> scores = {};  // if requested: scores of the tokens whose text has been sent
  std::optional<Finish> finish = {};
};

// A finished answer.
struct WrittenAnswer {
  std::vector<int32_t> tokens = {};               // all generated tokens, including the one that ended the answer
  std::shared_ptr<const Snapshot> snapshot = {};  // if requested: of the sequence without its last token
};

// The queue between the engine, which generates, and a client's thread, which reads.
class Answer {
 public:
  explicit Answer(Request request) : request_(std::move(request)), written_(static_cast<size_t>(request_.choices)) {}

  const Request& request() const { return request_; }

  // Waits at most `longest` for the next part. kNone: none has come; kEnd: all answers have ended. Throws Failure or
  // InputError if the engine failed.
  enum class Got { kPart, kNone, kEnd };
  Got next(AnswerPart& part, std::chrono::milliseconds longest);
  // Tells the engine that nobody waits any more.
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  // Tokens of the prompt that the cache had, and tokens read so far including these. Both are 0 until the engine starts
  // on the request.
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t read_tokens() const { return read_tokens_; }
  // Complete when the first part has come.
  const std::vector<ScoredToken>& prompt_scores() const { return prompt_scores_; }
  // The text's vector [D], if it was requested. Complete when all answers have ended.
  const std::vector<float>& pooled() const { return pooled_; }
  // Complete when that choice has finished.
  const WrittenAnswer& written(int64_t choice) const { return written_[static_cast<size_t>(choice)]; }
  int64_t written_tokens() const;  // over all choices

  // Called by the engine.
  void begin(int64_t cached_tokens) { cached_tokens_ = read_tokens_ = cached_tokens; }
  void has_read(int64_t tokens) { read_tokens_ = tokens; }
  void add_prompt_scores(std::vector<ScoredToken> scores);
  void set_pooled(std::vector<float> pooled) { pooled_ = std::move(pooled); }
  void push(AnswerPart part);
  void finish(AnswerPart part, WrittenAnswer written);
  void fail(std::exception_ptr error);
  bool late() const;
  double age() const;  // seconds since the request

 private:
  using Clock = std::chrono::steady_clock;

  const Request request_;
  const Clock::time_point asked_ = Clock::now();
  std::atomic<bool> cancelled_ = false;
  std::atomic<int64_t> cached_tokens_ = 0, read_tokens_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AnswerPart> parts_;
  int64_t unfinished_ = request_.choices;
  std::exception_ptr error_;
  // Written before the parts that announce them.
  std::vector<ScoredToken> prompt_scores_;
  std::vector<float> pooled_;
  std::vector<WrittenAnswer> written_;
};

}  // namespace cortado
