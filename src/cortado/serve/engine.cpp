#include "cortado/serve/engine.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/base/stopwatch.h"
#include "cortado/nn/narrow/weight.h"
#include "cortado/serve/writer.h"

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

namespace {

at::Tensor last_logits(const LanguageModel& model, const at::Tensor& hidden) {
  return model.logits(hidden.slice(1, hidden.size(1) - 1)).squeeze(1).to(at::kCPU, at::kFloat);  // [rows, V]
}

at::Tensor numbers(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

// Returns one row of a batch as a view.
ModelState row_of(const ModelState& states, int64_t row) {
  ModelState result;
  for (const SequenceState& layer : states.layers) result.layers.push_back(layer.row(row));
  result.position = states.position.narrow(0, row, 1);
  return result;
}

const char* word(Finish finish) {
  constexpr const char* kWords[] = {"stop", "length", "cancelled", "timeout"};
  return kWords[static_cast<int>(finish)];
}

}  // namespace

int64_t Engine::DecodeBatch::bytes() const {
  int64_t total = 0;
  for (const Row& row : rows) total += row.own ? row.own->bytes() : 0;
  return !rows.empty() && !rows.front().own ? total + state.bytes() : total;
}

int64_t vocabulary_of(const ServedModel& served) {
  return served.tokenizer ? served.tokenizer->vocabulary() : served.model->config().vocabulary;
}

Engine::Engine(std::vector<ServedModel> models, const EngineOptions& options)
    : models_(std::move(models)), options_(options), cache_(options.cache_bytes) {
  fail_input_if(models_.empty(), "[serve] there is no model");
  fail_input_if(options.rows < 1 || options.waiting < 0 || options.prefill_tokens < 1,
                "[serve] rows and prefill tokens must be >= 1, waiting >= 0, got ", options.rows, ", ",
                options.prefill_tokens, " and ", options.waiting);
  fail_input_if(options.piece < 1 || options.piece % kPiece != 0, "[serve] a piece must be a multiple of ", kPiece,
                " tokens, got ", options.piece);
  for (size_t i = 0; i < models_.size(); ++i) {
    batches_.push_back(std::make_unique<DecodeBatch>(DecodeBatch{.number = i, .state = {}, .rows = {}}));
  }
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = ending_ = true;
  }
  work_.notify_all();
  thread_.join();
}

std::optional<int64_t> Engine::longest(size_t model) const {
  const ModelConfig& config = models_[model].model->config();
  return config.positions == PositionKind::kLearned ? std::optional(config.context) : std::nullopt;
}

void Engine::check(const Request& request) const {
  fail_input_if(request.tokens.empty(), "[serve] the prompt has no tokens");
  const ServedModel& served = models_.at(request.model);
  const int64_t rows = served.model->config().vocabulary;
  for (const int32_t token : request.tokens) {
    fail_input_if(token < 0 || token >= rows, "[serve] token ", token, " is not in the vocabulary of ", rows);
  }
  const int64_t vocabulary = vocabulary_of(served);
  for (const auto& [token, bias] : request.sampling.bias) {
    fail_input_if(token >= vocabulary, "[serve] a bias is for token ", token, ", and there are ", vocabulary);
  }
  fail_input_if(request.choices < 1 || request.choices > options_.rows, "[serve] from 1 to ", options_.rows,
                " answers can be written at once, not ", request.choices);
  const auto most = longest(request.model);
  const auto tokens = static_cast<int64_t>(request.tokens.size());
  fail_input_if(most && tokens + request.most_tokens > *most, "[serve] the model has positions for ", most.value_or(0),
                " tokens, and the prompt's ", tokens, " with ", request.most_tokens, " of the answer are more");
  Sampler{request.sampling};
  StopFilter{request.stops};
}

std::shared_ptr<Answer> Engine::ask(Request request) {
  check(request);
  auto answer = std::make_shared<Answer>(std::move(request));
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Ending("[serve] the server is ending");
    if (static_cast<int64_t>(waiting_.size()) >= options_.waiting + options_.rows) {
      throw Busy(concat("[serve] ", waiting_.size(), " requests are waiting already"));
    }
    waiting_.push_back(answer);
    load_.waiting = static_cast<int64_t>(waiting_.size());
    idle_ = false;
  }
  work_.notify_all();
  return answer;
}

bool Engine::drain(double seconds) {
  std::unique_lock lock(mutex_);
  closed_ = true;
  return idle_changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return idle_; });
}

void Engine::cut() { cut_ = true; }

void Engine::cancel_all() {
  for (const auto& prefill : prefills_) prefill->answer->cancel();
  for (const auto& batch : batches_) {
    for (auto& row : batch->rows) row.writer.cancel();
  }
  const std::lock_guard lock(mutex_);
  for (const auto& answer : waiting_) answer->cancel();
}

Engine::Load Engine::load() const {
  const std::lock_guard lock(mutex_);
  Load load = load_;
  load.ending = closed_;
  return load;
}

void Engine::run() {
  const c10::InferenceMode inference;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return ending_ || !idle_; });
      if (ending_) break;
    }
    iterate();
    publish();
  }
  // Fails all open requests, so that no client waits for an answer that will not come.
  const auto error = std::make_exception_ptr(Failure("[serve] the server has ended"));
  for (const auto& answer : waiting_) answer->fail(error);
  for (const auto& prefill : prefills_) prefill->answer->fail(error);
  for (const auto& batch : batches_) {
    for (auto& row : batch->rows) row.writer.fail(error);
  }
}

void Engine::iterate() {
  if (cut_) cancel_all();
  admit();
  step_seconds_ = 0;
  for (const auto& batch : batches_) {
    if (!batch->rows.empty()) write(*batch);
  }
  read();
}

int64_t Engine::rows() const {
  int64_t count = 0;
  for (const auto& batch : batches_) count += static_cast<int64_t>(batch->rows.size());
  for (const auto& prefill : prefills_) count += prefill->answer->request().choices;
  return count;
}

// Fails an answer, or its writer, with the current exception.
template <typename Whose>
void Engine::fail(Whose& whose) {
  whose.fail(std::current_exception());
  metrics_.count("cortado_answers_total", 1, "end=\"failed\"");
}

// Ends an answer that has not been started if it was cancelled or is out of time.
bool Engine::given_up(Answer& answer) {
  if (!answer.cancelled() && !answer.late()) return false;
  const Finish end = answer.cancelled() ? Finish::kCancelled : Finish::kTimeout;
  for (int64_t i = 0; i < answer.request().choices; ++i) answer.finish({.choice = i, .finish = end}, {});
  metrics_.count("cortado_answers_total", 1, concat("end=\"", word(end), "\""));
  return true;
}

// Starts waiting requests in the order of their arrival.
void Engine::admit() {
  while (true) {
    std::shared_ptr<Answer> next;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(waiting_, [&](const auto& answer) { return given_up(*answer); });
      if (waiting_.empty()) return;
      if (rows() > 0 && rows() + waiting_.front()->request().choices > options_.rows) return;
      next = waiting_.front();
      waiting_.pop_front();
    }
    try {
      start(next);
    } catch (const std::exception&) {
      fail(*next);
    }
  }
}

void Engine::start(const std::shared_ptr<Answer>& answer) {
  const Request& request = answer->request();
  const auto model = static_cast<int64_t>(request.model);
  auto prefill = std::make_unique<Prefill>();
  prefill->answer = answer;
  if (request.pooling) prefill->pooled.emplace(*request.pooling);
  StateCache::Found found;
  // Scores of the prompt need every token's logits, and a vector may need every hidden state.
  if (!request.score_prompt && !request.pooling) {
    found = cache_.find(model, request.tokens);
    if (request.start.snapshot && request.start.depth > found.depth) {
      found = request.start;
      cache_.keep(model, std::span(request.tokens).first(static_cast<size_t>(found.depth)), found.snapshot);
    }
    const int64_t junction = cache_.seen(model, request.tokens) / options_.piece * options_.piece;
    if (junction > found.depth) prefill->junction = junction;
    cache_.see(model, request.tokens);
  }
  prefill->done = found.depth;
  if (found.snapshot) {
    prefill->state = models_[request.model].model->fork(found.snapshot->state);
    prefill->logits = found.snapshot->logits;
  } else {
    prefill->state = models_[request.model].model->zero_state(1);
  }
  answer->begin(found.depth);
  metrics_.count("cortado_prompt_tokens_total", static_cast<double>(request.tokens.size()));
  metrics_.count("cortado_cached_tokens_total", static_cast<double>(found.depth));
  prefills_.push_back(std::move(prefill));
}

// Adds one token to every answer; finished answers leave the batch.
void Engine::write(DecodeBatch& batch) {
  std::vector<int64_t> staying, tokens;
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    if (!batch.rows[i].chosen) choose(batch, static_cast<int64_t>(i));
    if (const auto token = batch.rows[i].next) {
      staying.push_back(static_cast<int64_t>(i));
      tokens.push_back(*token);
    }
  }
  try {
    step(batch, staying, tokens);
  } catch (const std::exception&) {
    fail_all(batch);
  }
}

// Chooses a row's next token and sends it. A row that fails does so alone.
void Engine::choose(DecodeBatch& batch, int64_t row) {
  DecodeBatch::Row& own = batch.rows[static_cast<size_t>(row)];
  own.next.reset();
  own.chosen = true;
  try {
    own.next = write(batch, row);
  } catch (const std::exception&) {
    fail(own.writer);
  }
}

// Returns a row's next token; nothing if its answer has ended.
std::optional<int64_t> Engine::write(DecodeBatch& batch, int64_t row) {
  Writer& writer = batch.rows[static_cast<size_t>(row)].writer;
  Stopwatch& since = batch.rows[static_cast<size_t>(row)].since;
  const int64_t before = writer.tokens();
  const auto token = writer.write();
  if (writer.tokens() > before) {
    metrics_.observe(before == 0 ? "cortado_time_to_first_token_seconds" : "cortado_time_per_token_seconds",
                     before == 0 ? writer.answer().age() : since.seconds());
    metrics_.count("cortado_written_tokens_total");
    since = Stopwatch();
  }
  if (!token) finish(batch, row);
  return token;
}

// Sends the answer's end before copying the state, unless the client wants the state.
void Engine::finish(DecodeBatch& batch, int64_t row) {
  Writer& writer = batch.rows[static_cast<size_t>(row)].writer;
  const auto begin = batch.rows[static_cast<size_t>(row)].begin;
  const Request& request = writer.answer().request();
  metrics_.count("cortado_answers_total", 1, concat("end=\"", word(writer.end()), "\""));
  metrics_.observe("cortado_request_seconds", writer.answer().age());
  if (!request.wants_state) writer.finish(nullptr);
  if (request.score_prompt) return;
  if (begin) {  // nothing has been read since
    if (request.wants_state) writer.finish(begin);
    return;
  }
  const auto tokens = writer.read_tokens();
  const LanguageModel& model = *models_[batch.number].model;
  // The last remaining row's state has no other user and need not be copied.
  const ModelState state = batch.rows.size() == 1 ? std::move(batch.state) : model.join({row_of(batch.state, row)});
  const auto snapshot = snapshot_of(model, state, writer.logits().clone(), static_cast<int64_t>(tokens.size()));
  cache_.keep(static_cast<int64_t>(batch.number), tokens, snapshot);
  if (request.wants_state) writer.finish(snapshot);
}

// Drops the other rows than those that stay. New ones join the batch's state; a row that is alone brings its own.
void Engine::gather(DecodeBatch& batch, const std::vector<int64_t>& staying) {
  const LanguageModel& model = *models_[batch.number].model;
  std::vector<DecodeBatch::Row> rows;
  std::vector<int64_t> old;
  std::vector<ModelState> parts;
  bool shared = false;
  for (const int64_t number : staying) {
    DecodeBatch::Row& row = rows.emplace_back(std::move(batch.rows[static_cast<size_t>(number)]));
    row.begin.reset();
    row.chosen = false;
    if (row.own) {
      shared = shared || row.shared;
      parts.push_back(*std::exchange(row.own, std::nullopt));
    } else {
      old.push_back(number);
    }
  }
  if (parts.empty()) {
    if (old.empty()) batch.state = {};
    if (old.size() < batch.rows.size() && !old.empty()) batch.state = batch.state.index(numbers(old, model.device()));
  } else if (parts.size() == 1 && old.empty() && !shared) {
    batch.state = std::move(parts[0]);
  } else {
    std::vector<ModelState> all;
    for (const int64_t number : old) all.push_back(row_of(batch.state, number));
    std::move(parts.begin(), parts.end(), std::back_inserter(all));
    batch.state = model.join(all, kPiece);
  }
  batch.rows = std::move(rows);
}

// Reads `tokens` into the rows that stay and drops the other rows.
void Engine::step(DecodeBatch& batch, const std::vector<int64_t>& staying, const std::vector<int64_t>& tokens) {
  const LanguageModel& model = *models_[batch.number].model;
  gather(batch, staying);
  if (staying.empty()) return;
  const Stopwatch since;
  const RowsApart apart;
  const auto inputs = numbers(tokens, model.device()).view({-1, 1});
  const auto logits = last_logits(model, model.hidden(inputs, {}, &batch.state));
  for (size_t i = 0; i < batch.rows.size(); ++i) batch.rows[i].writer.set_logits(logits[static_cast<int64_t>(i)]);
  metrics_.count("cortado_steps_total");
  step_seconds_ += since.seconds();
}

// An error of a batch fails all of its rows.
void Engine::fail_all(DecodeBatch& batch) {
  for (auto& row : batch.rows) fail(row.writer);
  batch.rows.clear();
  batch.state = {};
}

// Reads prompts, one piece of each in turn, for as much work as prefill_tokens tokens take in all layers. Answers that
// are being generated wait meanwhile, so it stops after about two of their steps. The amount does not influence where
// pieces end, because it stops between two layers.
void Engine::read() {
  const Stopwatch since;
  const auto late = [&] { return step_seconds_ > 0 && since.seconds() > 2 * step_seconds_; };
  for (auto left = static_cast<double>(options_.prefill_tokens); left > 0 && !prefills_.empty() && !late();) {
    auto prefill = std::move(prefills_.front());
    prefills_.pop_front();
    if (given_up(*prefill->answer)) continue;
    try {
      if (!prefill->whole()) left -= read_on(*prefill, left);
      if (prefill->whole()) {
        prefill->pooled ? end_pooling(*prefill) : begin_writing(*prefill);
      } else {
        prefills_.insert(prefill->in_piece() ? prefills_.begin() : prefills_.end(), std::move(prefill));
      }
    } catch (const std::exception&) {
      fail(*prefill->answer);
    }
  }
}

int64_t Engine::piece_end(const Prefill& prefill) const {
  const Request& request = prefill.answer->request();
  int64_t end =
      std::min((prefill.done / options_.piece + 1) * options_.piece, static_cast<int64_t>(request.tokens.size()));
  for (const int64_t mark : request.marks) {
    if (mark > prefill.done) end = std::min(end, mark);
  }
  return end;
}

// Runs one layer of a piece, or scores about `tokens` tokens. Returns the work done, in tokens through all layers.
double Engine::read_on(Prefill& prefill, double tokens) {
  const Request& request = prefill.answer->request();
  const LanguageModel& model = *models_[request.model].model;
  if (prefill.unscored.defined()) return score(prefill, tokens);
  if (!prefill.pass) {
    prefill.end = piece_end(prefill);
    const std::vector<int64_t> piece(request.tokens.begin() + prefill.done, request.tokens.begin() + prefill.end);
    prefill.pass.emplace(model, numbers(piece, model.device()).unsqueeze(0), prefill.state);
  }
  prefill.pass->advance();
  const int64_t piece = prefill.end - prefill.done, left = prefill.pass->layers_left();
  const auto layers = static_cast<int64_t>(model.mixers().size());
  prefill.answer->has_read(prefill.done + piece * (layers - left) / layers);
  if (left == 0) end_piece(prefill);
  return static_cast<double>(piece) / static_cast<double>(layers);
}

void Engine::end_piece(Prefill& prefill) {
  const Request& request = prefill.answer->request();
  const at::Tensor hidden = prefill.pass->hidden();
  prefill.pass.reset();
  metrics_.count("cortado_read_tokens_total", static_cast<double>(prefill.end - prefill.done));
  if (request.score_prompt) {
    prefill.unscored = hidden[0];
    return;
  }
  if (prefill.pooled) prefill.pooled->add(hidden[0]);
  prefill.done = prefill.end;
  if (request.pooling || (!prefill.whole() && !is_kept(prefill))) return;
  prefill.logits = last_logits(*models_[request.model].model, hidden)[0];
  if (!prefill.whole()) keep(prefill, models_[request.model].model->fork(prefill.state));
}

// Scores at most `tokens` of a piece's next tokens. Returns their number.
double Engine::score(Prefill& prefill, double tokens) {
  const Request& request = prefill.answer->request();
  const ServedModel& served = models_[request.model];
  const int64_t first = prefill.unscored.size(0) - (prefill.end - prefill.done);
  const auto count = std::min(prefill.end - prefill.done, std::max(int64_t{1}, static_cast<int64_t>(tokens)));
  const auto logits = served.model->logits(prefill.unscored.narrow(0, first, count)).to(at::kCPU, at::kFloat);
  std::vector<ScoredToken> scores;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t token = request.tokens[static_cast<size_t>(prefill.done + i)];
    const at::Tensor before = i == 0 ? prefill.logits : logits[i - 1];
    scores.push_back(before.defined() ? score_token(before, token, request.likeliest.value_or(0), vocabulary_of(served))
                                      : ScoredToken{.token = token});
  }
  prefill.answer->add_prompt_scores(std::move(scores));
  prefill.logits = logits[-1].clone();
  prefill.done += count;
  if (prefill.done == prefill.end) prefill.unscored.reset();
  return static_cast<double>(count);
}

// Whether to keep a snapshot here, in the middle of a prompt.
bool Engine::is_kept(const Prefill& prefill) const {
  const auto& marks = prefill.answer->request().marks;
  return prefill.done == prefill.junction || std::find(marks.begin(), marks.end(), prefill.done) != marks.end();
}

std::shared_ptr<const Snapshot> Engine::keep(const Prefill& prefill, const ModelState& state) {
  const Request& request = prefill.answer->request();
  auto snapshot = snapshot_of(*models_[request.model].model, state, prefill.logits, prefill.done);
  cache_.keep(static_cast<int64_t>(request.model), std::span(request.tokens).first(static_cast<size_t>(prefill.done)),
              snapshot);
  return snapshot;
}

// The whole prompt has been read: its answers join the batch, and send their first tokens, which need not wait until the
// others' prompts have been read.
void Engine::begin_writing(Prefill& prefill) {
  const auto& answer = prefill.answer;
  const Request& request = answer->request();
  const ServedModel& served = models_[request.model];
  DecodeBatch& batch = *batches_[request.model];
  std::vector<DecodeBatch::Row> rows;
  for (int64_t i = 0; i < request.choices; ++i) {
    rows.push_back({.writer = Writer(answer, i, served.tokenizer, vocabulary_of(served), prefill.logits)});
  }
  // Everything that may fail comes before the batch changes.
  batch.rows.reserve(batch.rows.size() + rows.size());
  const bool alone = batch.rows.empty() && prefills_.empty() && request.choices == 1;
  std::shared_ptr<const Snapshot> begin;
  if (!request.score_prompt) begin = keep(prefill, alone ? served.model->fork(prefill.state) : prefill.state);
  for (DecodeBatch::Row& row : rows) {
    row.own = prefill.state;
    row.shared = !alone;
    row.begin = begin;
  }
  std::move(rows.begin(), rows.end(), std::back_inserter(batch.rows));
  for (auto row = static_cast<int64_t>(batch.rows.size() - rows.size()); row < static_cast<int64_t>(batch.rows.size());
       ++row) {
    choose(batch, row);
  }
}

void Engine::end_pooling(Prefill& prefill) {
  prefill.answer->set_pooled(prefill.pooled->numbers());
  metrics_.count("cortado_answers_total", 1, "end=\"pooled\"");
  metrics_.observe("cortado_request_seconds", prefill.answer->age());
  prefill.answer->finish({.finish = Finish::kStop}, {});
}

void Engine::publish() {
  Load load;
  for (const auto& batch : batches_) {
    load.writing += static_cast<int64_t>(batch->rows.size());
    load.state_bytes += batch->bytes();
  }
  load.reading = static_cast<int64_t>(prefills_.size());
  load.cache_bytes = cache_.bytes();
  load.snapshots = cache_.snapshots();
  load.evicted = cache_.evicted();
  {
    const std::lock_guard lock(mutex_);
    load.waiting = static_cast<int64_t>(waiting_.size());
    load_ = load;
    idle_ = load.waiting + load.reading + load.writing == 0;
  }
  idle_changed_.notify_all();
}

}  // namespace cortado
