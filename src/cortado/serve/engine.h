// Continuous batching: one thread reads the prompts and generates the answers of all requests, for one or several
// models.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cortado/serve/answer.h"
#include "cortado/serve/grammar.h"
#include "cortado/serve/metrics.h"
#include "cortado/serve/state_cache.h"
#include "cortado/serve/writer.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

// A model that the engine serves.
struct ServedModel {
  std::string name;
  std::shared_ptr<LanguageModel> model;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: requests and answers are token numbers
  std::string memory = {};                     // as MemoryOptions::flags() gives it
  int64_t created = 0;                         // seconds since 1970
  SamplingOptions sampling = {};               // defaults for requests that do not set them
  std::string base = {};                       // the model that its adapters belong to; "": it has none
  std::shared_ptr<const Chat> chat = {};       // made by the engine, if there is a tokenizer
};

int64_t vocabulary_of(const ServedModel& served);  // number of tokens that may be generated

// Pieces of prompts end at multiples of this, or of EngineOptions::piece, which is a multiple of it.
inline constexpr int64_t kPiece = 64;

// Limits of the engine.
struct EngineOptions {
  int64_t rows = 16;                // answers that are read and generated at a time
  int64_t waiting = 64;             // largest number of waiting requests
  int64_t piece = 8 * kPiece;       // tokens per piece of a prompt
  int64_t prefill_tokens = kPiece;  // largest number of prompt tokens read between two tokens of the answers
  int64_t cache_bytes = int64_t{1} << 30;
};

// Thrown if more than EngineOptions::waiting requests wait, or if the engine is ending.
class Busy : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thrown if no more requests are accepted.
class Ending : public Busy {
 public:
  using Busy::Busy;
};

// In each iteration the engine generates one token of every answer, as one batch, and reads a bounded part of the prompts,
// one sequence at a time in rotation. Prompts are read in pieces that end at multiples of EngineOptions::piece tokens
// and at the sequence's marks, so a sequence's result depends neither on the other work nor on the rows beside it
// (RowsApart). A long piece computes faster per token but would delay the answers. So it is read layer by layer
// (Backbone::Pass): each iteration runs as many layers as prefill_tokens are worth, and at most for the time of two steps.
//
// Snapshots are kept at the ends of prompts and answers, at marks, and at the last multiple of the piece before a
// prompt diverges from earlier ones.
class Engine {
 public:
  Engine(std::vector<ServedModel> models, const EngineOptions& options);
  ~Engine();  // ends all answers
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::vector<ServedModel>& models() const { return models_; }
  const EngineOptions& options() const { return options_; }

  // Queues a request. Throws InputError if the model cannot do it, and Busy.
  std::shared_ptr<Answer> ask(Request request);

  // Accepts no more requests and waits up to `seconds` for all answers to end. Returns false if some have not.
  bool drain(double seconds);

  // Ends all answers where they are.
  void cut();

  // The engine's current load.
  struct Load {
    int64_t waiting = 0, reading = 0, writing = 0;
    int64_t cache_bytes = 0, snapshots = 0, evicted = 0, state_bytes = 0;
    bool ending = false;  // no more requests are accepted
  };
  Load load() const;
  Metrics& metrics() { return metrics_; }
  Grammars& grammars() const { return grammars_; }

  // Returns the largest number of tokens of a sequence; nothing if there is no limit.
  std::optional<int64_t> longest(size_t model) const;

 private:
  struct Prefill;      // a prompt that is being read
  struct DecodeBatch;  // a model and the answers that it generates

  void run();
  void iterate();
  bool given_up(Answer& answer);
  template <typename Whose>
  void fail(Whose& whose);
  void cancel_all();
  void admit();
  void start(const std::shared_ptr<Answer>& answer);
  void write(DecodeBatch& batch);
  void choose(DecodeBatch& batch, int64_t row);
  std::optional<int64_t> write(DecodeBatch& batch, int64_t row);
  void step(DecodeBatch& batch, const std::vector<int64_t>& staying, const std::vector<int64_t>& tokens);
  void finish(DecodeBatch& batch, int64_t row);
  void gather(DecodeBatch& batch, const std::vector<int64_t>& staying);
  void fail_all(DecodeBatch& batch);
  void read();
  double read_on(Prefill& prefill, double tokens);
  int64_t piece_end(const Prefill& prefill) const;
  void end_piece(Prefill& prefill);
  double score(Prefill& prefill, double tokens);
  bool is_kept(const Prefill& prefill) const;
  std::shared_ptr<const Snapshot> keep(const Prefill& prefill, const ModelState& state);
  void begin_writing(Prefill& prefill);
  void end_pooling(Prefill& prefill);
  void publish();
  int64_t rows() const;
  void check(const Request& request) const;

  const std::vector<ServedModel> models_;
  const EngineOptions options_;
  Metrics metrics_;
  mutable Grammars grammars_;

  // Only used by the engine's thread.
  StateCache cache_;
  std::vector<std::unique_ptr<DecodeBatch>> batches_;
  std::list<std::unique_ptr<Prefill>> prefills_;
  double step_seconds_ = 0;  // duration of this iteration's step; 0: no answer is being generated

  mutable std::mutex mutex_;
  std::condition_variable work_, idle_changed_;
  std::list<std::shared_ptr<Answer>> waiting_;
  Load load_;
  bool idle_ = true, closed_ = false, ending_ = false;
  std::atomic<bool> cut_ = false;
  std::thread thread_;  // declared last because it uses the other members
};

}  // namespace cortado
