// What is asked of a server's engine, and how its answer comes back: from the thread that computes to those that wait.
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
#include "cortado/serve/state_cache.h"

namespace cortado {

// A sequence to go on with.
struct Request {
  size_t model = 0;             // which of the engine's
  std::vector<int32_t> tokens;  // the prompt, at least one
  std::vector<int64_t> marks;   // depths in it that other prompts are likely to share: ends of messages
  SamplingOptions sampling = {};
  int64_t choices = 1;       // answers; the seed of the i-th is the sampling's + i
  int64_t most_tokens = 16;  // of an answer; 0: the prompt is only read
  std::vector<std::string> stops = {};
  std::shared_ptr<const Grammar> grammar = {};  // what its answers are held to
  bool begins_text = false;                     // its answers are texts of their own, and not the prompt's next words
  bool ignore_end = false;                      // the model's own stop tokens do not end an answer
  std::optional<int64_t> likeliest = {};        // scores of tokens are wanted, and of so many of the likeliest
  bool score_prompt = false;                    // of the prompt's tokens too: it is read from the beginning then
  bool wants_state = false;                     // WrittenAnswer::snapshot is wanted
  double seconds = 0;                           // the answer ends after so long; 0: never
  StateCache::Found start = {};                 // a snapshot of a beginning of `tokens` that the cache need not have
};

// A token with its logarithm of probability (natural), among all, without the sampling's options.
struct ScoredToken {
  int32_t token = 0;
  std::optional<double> logprob = {};  // none: the first of a text
  std::vector<std::pair<int32_t, double>> likeliest = {};
  // What of the text it is, where that is not its piece: less at a text's beginning, and where a stop has cut it; nothing
  // of a mark.
  std::optional<std::string> text = {};
};

enum class Finish { kStop, kLength, kCancelled, kTimeout };

// A step of one of the answers.
struct AnswerPart {
  int64_t choice = 0;
  std::string text = {};                 // whole UTF-8 characters
  std::vector<ScoredToken> scores = {};  // of the tokens whose text has been told of, where wanted
  std::optional<Finish> finish = {};
};

// How an answer has ended.
struct WrittenAnswer {
  std::vector<int32_t> tokens = {};               // written, the one that ended it included
  std::shared_ptr<const Snapshot> snapshot = {};  // of the sequence without its last token, where wanted
};

// What the engine writes and a client's thread reads.
class Answer {
 public:
  explicit Answer(Request request) : request_(std::move(request)), written_(static_cast<size_t>(request_.choices)) {}

  const Request& request() const { return request_; }

  // Waits at most so long for the next part. kNone: nothing yet; kEnd: all have ended. Throws Failure or InputError if
  // the engine could not go on.
  enum class Got { kPart, kNone, kEnd };
  Got next(AnswerPart& part, std::chrono::milliseconds longest);
  // To the engine: nobody waits any more.
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  // Of the prompt, what the cache had, and how far it has been read, that included; 0 until its turn has come.
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t read_tokens() const { return read_tokens_; }
  // There once the first part is.
  const std::vector<ScoredToken>& prompt_scores() const { return prompt_scores_; }
  // There once a choice has finished.
  const WrittenAnswer& written(int64_t choice) const { return written_[static_cast<size_t>(choice)]; }
  int64_t written_tokens() const;  // of all choices

  // The engine's side.
  void begin(int64_t cached_tokens) { cached_tokens_ = read_tokens_ = cached_tokens; }
  void has_read(int64_t tokens) { read_tokens_ = tokens; }
  void add_prompt_scores(std::vector<ScoredToken> scores);
  void push(AnswerPart part);
  void finish(AnswerPart part, WrittenAnswer written);
  void fail(std::exception_ptr error);
  bool late() const;
  double age() const;  // seconds since it was asked for

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
  // Written before the parts that tell of them.
  std::vector<ScoredToken> prompt_scores_;
  std::vector<WrittenAnswer> written_;
};

}  // namespace cortado
