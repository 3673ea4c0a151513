// Continuous batching: one thread reads the prompts and writes the answers of all requests, of one model or several.
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

namespace cortado {

struct ServedModel {
  std::string name;
  std::shared_ptr<LanguageModel> model;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: it is talked to in token numbers
  std::string memory = {};                     // as MemoryOptions::flags()
  int64_t created = 0;                         // seconds since 1970
  SamplingOptions sampling = {};               // where a request says nothing
};

int64_t vocabulary_of(const ServedModel& served);  // the tokens that may be written

// What prompts are cut at: multiples of it, or of EngineOptions::piece, which is one itself.
inline constexpr int64_t kPiece = 64;

struct EngineOptions {
  int64_t rows = 16;                // answers that are read and written at once
  int64_t waiting = 64;             // requests that wait at most
  int64_t piece = 8 * kPiece;       // tokens of a prompt that are read at a time
  int64_t prefill_tokens = kPiece;  // of prompts, at most, between two tokens of those that write
  int64_t cache_bytes = int64_t{1} << 30;
};

// More than EngineOptions::waiting requests, or the engine is ending.
class Busy : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// No request is taken any more.
class Ending : public Busy {
 public:
  using Busy::Busy;
};

// Every turn of the engine writes a token of every answer, as one batch, and reads a bounded part of the prompts, one
// sequence at a time, in turns. Prompts are read in pieces that end at multiples of EngineOptions::piece tokens of the
// sequence, and at its marks, so that what a sequence becomes does not depend on what else there is to do. Nor does it
// on the rows beside it (RowsApart). A long piece, which computes fast, would hold up the answers: it goes layer by
// layer (Backbone::Pass), in each turn through as many as prefill_tokens are worth and as two of the answers' steps take.
//
// Snapshots are kept at the ends of prompts and answers, at marks, and where a prompt parts from what has been read
// before (at such a multiple).
class Engine {
 public:
  Engine(std::vector<ServedModel> models, const EngineOptions& options);
  ~Engine();  // ends all answers
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::vector<ServedModel>& models() const { return models_; }
  const EngineOptions& options() const { return options_; }

  // InputError: what the model cannot be asked. Busy.
  std::shared_ptr<Answer> ask(Request request);

  // No more requests; waits until all answers have ended, at most so long. False: some had not, and were cut.
  bool drain(double seconds);

  // Ends all answers where they are.
  void cut();

  // What the numbers say at this moment.
  struct Load {
    int64_t waiting = 0, reading = 0, writing = 0;
    int64_t cache_bytes = 0, snapshots = 0, evicted = 0, state_bytes = 0;
    bool ending = false;  // no request is taken any more
  };
  Load load() const;
  Metrics& metrics() { return metrics_; }
  Grammars& grammars() const { return grammars_; }

  // The tokens that a model's sequence can have at most; none: no limit.
  std::optional<int64_t> longest(size_t model) const;

 private:
  struct Reading;  // a prompt
  struct Desk;     // a model and the answers that it writes

  void run();
  void turn();
  bool given_up(Answer& answer);
  template <typename Whose>
  void fail(Whose& whose);
  void cancel_all();
  void admit();
  void start(const std::shared_ptr<Answer>& answer);
  void write(Desk& desk);
  std::optional<int64_t> write(Desk& desk, int64_t row);
  void step(Desk& desk, const std::vector<int64_t>& staying, const std::vector<int64_t>& tokens);
  void finish(Desk& desk, Writer& writer, int64_t row);
  void fail_all(Desk& desk);
  void read();
  double read_on(Reading& reading, double tokens);
  int64_t piece_end(const Reading& reading) const;
  void end_piece(Reading& reading);
  double score(Reading& reading, double tokens);
  bool is_kept(const Reading& reading) const;
  void keep(const Reading& reading, const ModelState& state);
  void begin_writing(Reading& reading);
  void publish();
  int64_t rows() const;
  void check(const Request& request) const;

  const std::vector<ServedModel> models_;
  const EngineOptions options_;
  Metrics metrics_;
  mutable Grammars grammars_;

  // The engine's thread's own.
  StateCache cache_;
  std::vector<std::unique_ptr<Desk>> desks_;
  std::list<std::unique_ptr<Reading>> readings_;
  double step_seconds_ = 0;  // of this turn's tokens; 0: nobody writes

  mutable std::mutex mutex_;
  std::condition_variable work_, idle_changed_;
  std::list<std::shared_ptr<Answer>> waiting_;
  Load load_;
  bool idle_ = true, closed_ = false, ending_ = false;
  std::atomic<bool> cut_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace cortado
