// The engine's answers: each step writes a token of every one, as one batch.
#include <algorithm>
#include <iterator>
#include <utility>

#include "cortado/nn/narrow/weight.h"
#include "cortado/serve/engine_parts.h"

namespace cortado {

namespace {

// Returns one row of a batch as a view.
ModelState row_of(const ModelState& states, int64_t row) {
  ModelState result;
  for (const SequenceState& layer : states.layers) result.layers.push_back(layer.row(row));
  result.position = states.position.narrow(0, row, 1);
  return result;
}

}  // namespace

at::Tensor last_logits(const LanguageModel& model, const at::Tensor& hidden) {
  return model.logits(hidden.slice(1, hidden.size(1) - 1)).squeeze(1).to(at::kCPU, at::kFloat);  // [rows, V]
}

at::Tensor numbers_on(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

const char* word_of(Finish finish) {
  constexpr const char* kWords[] = {"stop", "length", "cancelled", "timeout"};
  return kWords[static_cast<int>(finish)];
}

int64_t Engine::DecodeBatch::bytes() const {
  int64_t total = 0;
  for (const Row& row : rows) total += row.own ? row.own->bytes() : 0;
  return !rows.empty() && !rows.front().own ? total + state.bytes() : total;
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
  metrics_.count("cortado_answers_total", 1, concat("end=\"", word_of(writer.end()), "\""));
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
    if (old.size() < batch.rows.size() && !old.empty())
      batch.state = batch.state.index(numbers_on(old, model.device()));
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
  const auto inputs = numbers_on(tokens, model.device()).view({-1, 1});
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
  const auto end = static_cast<int64_t>(batch.rows.size());
  for (int64_t row = end - request.choices; row < end; ++row) choose(batch, row);
}

}  // namespace cortado
