#include "cortado/serve/engine.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/serve/engine_parts.h"

namespace cortado {

int64_t vocabulary_of(const ServedModel& served) {
  return served.tokenizer ? served.tokenizer->vocabulary() : served.model->config().vocabulary;
}

// Compiles the models' chat templates.
static std::vector<ServedModel> with_chats(std::vector<ServedModel> models) {
  for (ServedModel& it : models) it.chat = it.tokenizer ? std::make_shared<const Chat>(*it.tokenizer) : nullptr;
  return models;
}

Engine::Engine(std::vector<ServedModel> models, const EngineOptions& options)
    : models_(with_chats(std::move(models))), options_(options), cache_(options.cache_bytes) {
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

// Ends an answer that has not been started if it was cancelled or is out of time.
bool Engine::given_up(Answer& answer) {
  if (!answer.cancelled() && !answer.late()) return false;
  const Finish end = answer.cancelled() ? Finish::kCancelled : Finish::kTimeout;
  for (int64_t i = 0; i < answer.request().choices; ++i) answer.finish({.choice = i, .finish = end}, {});
  metrics_.count("cortado_answers_total", 1, concat("end=\"", word_of(end), "\""));
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
    prefill.pass.emplace(model, numbers_on(piece, model.device()).unsqueeze(0), prefill.state);
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
