#include "cortado/serve/inspect.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <future>

#include "cortado/analyze/analyze.h"
#include "cortado/analyze/traces.h"
#include "cortado/base/error.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/words.h"
#include "cortado/serve/wire_parts.h"

namespace cortado {

namespace {

const std::vector<std::string> kInspectParts = {"weights", "latents", "memories", "slots", "gates"};

// A request to inspect a text.
struct Inspection {
  size_t model = 0;
  std::vector<int32_t> tokens = {};
  std::vector<int64_t> layers = {}, heads = {};  // no heads: all heads
  std::vector<std::string> parts = kInspectParts;

  bool wants(const std::string& part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }
};

// How many more numbers the answer may contain.
struct Room {
  int64_t left, most;

  void take(int64_t numbers) {
    left -= numbers;
    if (left >= 0) return;
    throw WireError(400,
                    concat("the answer would have more than ", most,
                           " numbers: ask for fewer layers, \"heads\" or \"parts\", or for a shorter text"),
                    "heads", "answer_too_large");
  }
};

std::vector<int64_t> read_numbers(Body& body, const std::string& key, int64_t end) {
  std::vector<int64_t> numbers;
  const Json& list = body.any(key);
  if (list.is_null()) return numbers;
  if (!list.is_array() || list.empty()) body.fail(key, "must be a list of numbers");
  for (const Json& item : list) {
    const bool good = item.is_number_integer() && item.get<int64_t>() >= 0 && item.get<int64_t>() < end;
    if (!good) body.fail(key, concat("must hold numbers from 0 to ", end - 1, ", got ", item.dump()));
    const auto number = item.get<int64_t>();
    if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
  }
  return numbers;
}

// Reads the prompt like the one of a completion or a chat.
std::vector<int32_t> read_inspected(Body& body, const Json& json, const Engine& engine, const WireLimits& limits) {
  const bool chat = body.has("messages");
  if (chat == body.has("prompt")) body.fail("prompt", "or \"messages\" must be there, and not both");
  Json asked = {{"max_tokens", 0}};
  for (const char* key : {"model", "prompt", "messages", "add_special_tokens"}) {
    if (body.has(key)) asked[key] = json.at(key);
  }
  const Call call = chat ? read_chat(asked, engine, limits) : read_completion(asked, engine, limits);
  if (call.requests.size() != 1) body.fail("prompt", "must be one text, or one list of token numbers");
  return call.requests[0].tokens;
}

Inspection read_inspection(const Json& json, const Engine& engine, const WireLimits& wire, int64_t most) {
  Body body(json);
  Inspection asked{.model = find_model(json, engine)};
  const ModelConfig& config = engine.models()[asked.model].model->config();
  asked.layers = read_numbers(body, "layers", static_cast<int64_t>(config.layers.size()));
  if (asked.layers.empty()) asked.layers = {0};
  std::sort(asked.layers.begin(), asked.layers.end());
  asked.heads = read_numbers(body, "heads", 65536);
  if (body.has("parts")) asked.parts = body.texts("parts");
  for (const std::string& part : asked.parts) {
    if (std::find(kInspectParts.begin(), kInspectParts.end(), part) != kInspectParts.end()) continue;
    body.fail("parts", concat("can hold ", alternatives(kInspectParts, "\""), ", got ", Json(part).dump()));
  }
  body.ignore({"model", "prompt", "messages", "add_special_tokens"});
  asked.tokens = read_inspected(body, json, engine, wire);
  body.finish();
  if (static_cast<int64_t>(asked.tokens.size()) > most) {
    throw WireError(400, concat("the text has ", asked.tokens.size(), " tokens, and at most ", most, " are inspected"),
                    body.has("messages") ? "messages" : "prompt", "context_length_exceeded");
  }
  return asked;
}

// Rounds to four digits. Values too small to see become 0, values that are no number become null.
Json rounded(double x) {
  if (!std::isfinite(x)) return nullptr;
  if (std::abs(x) < 1e-6) return 0;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(std::abs(x))));
  return std::round(x * scale) / scale;
}

Json list_of(const at::Tensor& row) {
  const at::Tensor given = row.to(at::kCPU, at::kDouble).contiguous();
  const double* data = given.const_data_ptr<double>();
  Json list = Json::array();
  for (int64_t i = 0; i < given.numel(); ++i) list.push_back(rounded(data[i]));
  return list;
}

Json lists_of(const at::Tensor& matrix) {
  Json rows = Json::array();
  for (int64_t i = 0; i < matrix.size(0); ++i) rows.push_back(list_of(matrix[i]));
  return rows;
}

// Returns the lower triangle of a [T, T] matrix: row t up to column t.
Json past_of(const at::Tensor& matrix) {
  Json rows = Json::array();
  for (int64_t t = 0; t < matrix.size(0); ++t) rows.push_back(list_of(matrix[t].narrow(0, 0, t + 1)));
  return rows;
}

// Returns per row a digit for each past token: the number of the memory that holds it, "-" for none.
Json places_of(const at::Tensor& matrix) {
  const at::Tensor given = matrix.to(at::kCPU, at::kLong).contiguous();
  Json rows = Json::array();
  for (int64_t t = 0; t < given.size(0); ++t) {
    const int64_t* row = given.const_data_ptr<int64_t>() + t * given.size(1);
    std::string digits;
    for (int64_t s = 0; s <= t; ++s) digits += row[s] < 0 ? '-' : static_cast<char>('0' + row[s]);
    rows.push_back(digits);
  }
  return rows;
}

// Returns the moments at which tokens were ranked, their scores, and which of them stayed in their memory instead of
// moving to the last one.
Json decisions_of(const at::Tensor& scores, const at::Tensor& places, int64_t last) {
  Json all = Json::array();
  for (int64_t t = 0; t < scores.size(0); ++t) {
    const at::Tensor ranked = scores[t].isfinite().nonzero().flatten();
    if (ranked.numel() == 0) continue;
    Json decision = {{"before", t}, {"tokens", Json::array()}, {"scores", Json::array()}, {"stays", Json::array()}};
    for (int64_t i = 0; i < ranked.numel(); ++i) {
      const auto s = ranked[i].item<int64_t>();
      decision["tokens"].push_back(s);
      decision["scores"].push_back(rounded(scores[t][s].item<double>()));
      decision["stays"].push_back(places[t][s].item<int64_t>() != last);
    }
    all.push_back(decision);
  }
  return all;
}

// One layer; each quantity is computed once for all heads.
class LayerView {
 public:
  LayerView(const Inspection& asked, const LayerReading& read, std::shared_ptr<Mixer> mixer, Room& room)
      : asked_(asked), read_(read), mixer_(std::move(mixer)), x_(read.x.to(at::kFloat)), room_(room) {}

  Json json() {
    const auto tokens = static_cast<int64_t>(asked_.tokens.size());
    check_heads();
    if (asked_.wants("weights")) room_.take(heads() * tokens * (tokens + 1) / 2);
    look();
    Json layer = {{"layer", read_.layer}, {"mixer", mixer_->name()}, {"head_count", read_.heads}};
    if (weights_) layer["same_for_channels"] = weights_->same_for_channels;
    if (!no_weights_.empty()) layer["no_weights"] = no_weights_;
    if (held_.places.defined()) layer["memories"] = mixer_->memories();
    layer["heads"] = Json::array();
    for (int64_t head = 0; head < read_.heads; ++head) {
      const auto& wanted = asked_.heads;
      if (wanted.empty() || std::find(wanted.begin(), wanted.end(), head) != wanted.end()) {
        layer["heads"].push_back(of_head(head));
      }
    }
    return layer;
  }

 private:
  int64_t heads() const { return asked_.heads.empty() ? read_.heads : static_cast<int64_t>(asked_.heads.size()); }

  void check_heads() const {
    for (const int64_t head : asked_.heads) {
      if (head < read_.heads) continue;
      throw WireError(
          400, concat("\"heads\": layer ", read_.layer, " has heads 0 to ", read_.heads - 1, ", there is no ", head),
          "heads");
    }
  }

  void look() {
    if (asked_.wants("weights")) {
      try {
        weights_ = pair_weights(*mixer_, x_, read_.heads);
      } catch (const InputError& error) {
        no_weights_ = error.what();
      }
    }
    const at::NoGradGuard no_grad;
    if (asked_.wants("memories") && !mixer_->memories().empty()) held_ = mixer_->held(x_);
    const auto calls = calls_of(*mixer_, x_);
    if (asked_.wants("latents")) latents_ = latent_weights(calls);
    if (asked_.wants("slots")) slots_ = slot_trace(calls);
    if (asked_.wants("gates")) gates_ = gate_trace(calls, read_.heads, x_.size(1));
  }

  // Several heads may share one row of `all`.
  at::Tensor head_of(const at::Tensor& all, int64_t head) const { return all[head * all.size(0) / read_.heads]; }

  Json of_head(int64_t head) {
    Json json = {{"head", head}};
    if (weights_) json["weights"] = past_of(head_of(weights_->weights, head));
    if (latents_.defined()) json["latents"] = latents_of(head_of(latents_.transpose(0, 1), head));
    if (held_.places.defined()) {
      const at::Tensor places = head_of(held_.places, head);
      json["places"] = places_of(places);
      if (held_.scores.defined()) {
        const auto last = static_cast<int64_t>(mixer_->memories().size()) - 1;
        json["decisions"] = decisions_of(head_of(held_.scores, head), places, last);
      }
    }
    if (slots_) json["slots"] = slots_of(head);
    if (gates_) {
      room_.take(4 * gates_->norm.size(1));
      json["gates"] = {{"norm", list_of(head_of(gates_->norm, head))},
                       {"decay", list_of(head_of(gates_->decay, head))},
                       {"least", list_of(head_of(gates_->least, head))},
                       {"most", list_of(head_of(gates_->most, head))}};
    }
    return json;
  }

  // [T, L+1]; drops the window's column if there is no window.
  Json latents_of(const at::Tensor& p) {
    const bool window = p.select(1, 0).max().item<double>() > 1e-5;
    room_.take(p.numel());
    return {{"window", window}, {"p", lists_of(window ? p : p.narrow(1, 1, p.size(1) - 1))}};
  }

  Json slots_of(int64_t head) {
    const at::Tensor write = head_of(slots_->write, head);
    room_.take(3 * write.numel() + write.numel());
    return {{"normalized", slots_->normalized},
            {"write", lists_of(write)},
            {"keep", lists_of(head_of(slots_->keep, head))},
            {"read", lists_of(head_of(slots_->read, head))},
            {"contents", lists_of(head_of(slots_->contents(write.size(0) - 1), head))}};
  }

  const Inspection& asked_;
  const LayerReading& read_;
  const std::shared_ptr<Mixer> mixer_;
  const at::Tensor x_;
  Room& room_;
  std::optional<PairWeights> weights_;
  std::string no_weights_;
  HeldPairs held_;
  at::Tensor latents_;  // [T, H, L+1]
  std::optional<SlotTrace> slots_;
  std::optional<GateTrace> gates_;
};

// Lists the mixers of all layers, so that a client can choose one.
Json layers_in_all(const LanguageModel& model) {
  Json layers = Json::array();
  for (size_t i = 0; i < model.mixers().size(); ++i) {
    const Json& settings = model.config().layers[i];
    layers.push_back({{"mixer", model.mixers()[i]->name()}, {"heads", settings.value("heads", model.config().heads)}});
  }
  return layers;
}

Json look_at(const ServedModel& served, const Inspection& asked, const InspectLimits& limits) {
  LanguageModel& model = *served.model;
  const std::vector<int64_t> numbers(asked.tokens.begin(), asked.tokens.end());
  Json pieces = Json::array();
  for (const int32_t token : asked.tokens) pieces.push_back(served.tokenizer ? served.tokenizer->piece(token) : "");
  Json answer = {{"object", "inspection"}, {"model", served.name}, {"memory", served.memory},
                 {"tokens", numbers},      {"pieces", pieces},     {"model_layers", layers_in_all(model)},
                 {"layers", Json::array()}};
  Room room{limits.numbers, limits.numbers};
  const at::Tensor tokens = at::tensor(numbers, at::kLong).unsqueeze(0).to(model.device());
  for (const LayerReading& read : read_layers({model, tokens, {}, asked.layers})) {
    answer["layers"].push_back(LayerView(asked, read, plain_mixer(model, read.layer), room).json());
  }
  return answer;
}

// Lowers the priority of this thread and of the threads that it starts.
void give_way() { ::setpriority(PRIO_PROCESS, 0, 10); }

}  // namespace

Json Inspector::inspect(const Json& body) {
  const Inspection asked = read_inspection(body, engine_, wire_, limits_.tokens);
  if (engine_.load().ending) throw Ending("[inspect] the server is ending");
  if (busy_.exchange(true)) throw Busy("[inspect] another text is being inspected");
  struct Done {
    std::atomic<bool>& busy;
    ~Done() { busy = false; }
  };
  const Done done{busy_};
  const Stopwatch since;
  Json answer = std::async(std::launch::async, [&] {
                  give_way();
                  return look_at(engine_.models()[asked.model], asked, limits_);
                }).get();
  engine_.metrics().observe("cortado_inspect_seconds", since.seconds());
  return answer;
}

}  // namespace cortado
