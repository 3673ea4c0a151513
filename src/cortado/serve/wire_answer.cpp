#include <algorithm>
#include <ctime>
#include <random>
#include <thread>

#include "cortado/base/error.h"
#include "cortado/generate/defaults.h"
#include "cortado/models/state_growth.h"
#include "cortado/nn/dtype.h"
#include "cortado/serve/wire.h"

namespace cortado {

namespace {

using namespace std::chrono_literals;

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

// OpenAI's finish reasons; a time limit counts as "length".
const char* reason(Finish finish) { return finish == Finish::kStop ? "stop" : "length"; }

int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string piece_of(const ServedModel& served, int32_t token) {
  return served.tokenizer ? served.tokenizer->piece(token) : std::to_string(token);
}

// Whether the token is put before prompts and is not part of any text.
bool begins_prompts(const ServedModel& served, int32_t token) {
  if (!served.tokenizer) return false;
  const auto& special = served.tokenizer->special();
  return token == special.begin ||
         std::find(special.prefix.begin(), special.prefix.end(), token) != special.prefix.end();
}

// Returns the text of a token in a list of scores: as it appears in the answer, if it is the score's own token. Special
// tokens, which do not appear in the answer, keep their names.
std::string name_of(const ServedModel& served, const ScoredToken& score, int32_t token) {
  const bool own = token == score.token && score.text;
  const bool mark = own && (begins_prompts(served, token) || served.tokenizer->is_special(token));
  return own && !mark ? *score.text : piece_of(served, token);
}

void append(Json& to, const Json& scores) {
  if (to.is_null()) {
    to = scores;
    return;
  }
  for (auto& [key, list] : to.items()) {
    if (list.is_array()) list.insert(list.end(), scores.at(key).begin(), scores.at(key).end());
  }
}

}  // namespace

WireError::WireError(int status, const std::string& message, std::string param, std::string code)
    : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

Json WireError::body() const {
  return {{"error",
           {{"message", what()},
            {"type", type_of(status_)},
            {"param", param_.empty() ? Json() : Json(param_)},
            {"code", code_.empty() ? Json() : Json(code_)}}}};
}

Json token_scores(const ServedModel& served, const std::vector<ScoredToken>& scores) {
  const auto entry = [](const std::string& text, double logprob) -> Json {
    return {{"token", text}, {"logprob", logprob}, {"bytes", std::vector<uint8_t>(text.begin(), text.end())}};
  };
  Json list = Json::array();
  for (const ScoredToken& score : scores) {
    Json one = entry(name_of(served, score, score.token), score.logprob.value_or(0));
    one["top_logprobs"] = Json::array();
    for (const auto& [token, logprob] : score.likeliest) {
      one["top_logprobs"].push_back(entry(name_of(served, score, token), logprob));
    }
    list.push_back(std::move(one));
  }
  return list;
}

Json memory_of(const ServedModel& served, const std::vector<std::shared_ptr<Answer>>& answers) {
  const LanguageModel& model = *served.model;
  int64_t state = 0, constant = 0, key_values = 0;
  for (const auto& answer : answers) {
    const auto prompt = static_cast<int64_t>(answer->request().tokens.size());
    for (int64_t choice = 0; choice < answer->request().choices; ++choice) {
      const auto tokens = prompt + static_cast<int64_t>(answer->written(choice).tokens.size());
      state += kept_bytes(model, tokens);
      constant += state_growth(model).constant;
      key_values += key_value_bytes(model.config(), tokens, cache_type(model));
    }
  }
  return {{"state_bytes", state}, {"state_constant_bytes", std::min(state, constant)}, {"kv_cache_bytes", key_values}};
}

size_t marks_before(const ServedModel& served, const std::vector<int32_t>& tokens) {
  const auto text =
      std::find_if_not(tokens.begin(), tokens.end(), [&](int32_t token) { return begins_prompts(served, token); });
  return static_cast<size_t>(text - tokens.begin());
}

std::string text_of_prompt(const ServedModel& served, const std::vector<int32_t>& tokens) {
  if (!served.tokenizer) return "";
  const auto marks = static_cast<std::ptrdiff_t>(marks_before(served, tokens));
  return served.tokenizer->decode({tokens.begin() + marks, tokens.end()});
}

std::string new_id(const std::string& prefix) {
  static constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device random;
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Reply::Reply(Call call, Engine& engine) : call_(std::move(call)), engine_(engine) {
  const auto most = static_cast<size_t>(engine.options().rows);
  for (size_t request = 0; request < call_.requests.size(); ++request) {
    const auto choices = static_cast<size_t>(call_.requests[request].choices);
    for (size_t done = 0; done < choices; done += most) {
      shares_.push_back({.request = request, .first = choices_.size() + done, .count = std::min(most, choices - done)});
    }
    choices_.resize(choices_.size() + choices);
  }
  try {
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (i == 0 || shares_[i - 1].request != shares_[i].request) ask(shares_[i]);
    }
  } catch (...) {
    cancel();
    throw;
  }
}

Reply::~Reply() { cancel(); }

void Reply::cancel() {
  for (const Share& share : shares_) {
    if (share.answer) share.answer->cancel();
  }
}

// The seed of the i-th choice is the request's seed + i.
void Reply::ask(Share& share) {
  Request request = call_.requests[share.request];
  const size_t before = share.first - first_of(share.request).first;
  request.choices = static_cast<int64_t>(share.count);
  request.sampling.seed += static_cast<int64_t>(before);
  share.answer = engine_.ask(std::move(request));
}

// Returns the first share of a prompt.
const Reply::Share& Reply::first_of(size_t request) const {
  return *std::find_if(shares_.begin(), shares_.end(), [&](const Share& it) { return it.request == request; });
}

// Whether the share has been requested. Requests it if the shares before it have ended and the engine has room.
bool Reply::its_turn(size_t share) {
  Share& it = shares_[share];
  if (it.answer) return true;
  if (!shares_[share - 1].ended) return false;
  try {
    ask(it);
  } catch (const Ending&) {
    throw;
  } catch (const Busy&) {
    return false;
  }
  return true;
}

Json Reply::usage() const {
  int64_t prompt = 0, cached = 0, written = 0;
  for (const Share& share : shares_) {
    // The other shares have read the same prompt.
    if (&share == &first_of(share.request)) {
      prompt += static_cast<int64_t>(share.answer->request().tokens.size());
      cached += share.answer->cached_tokens();
    }
    written += share.answer->written_tokens();
  }
  Json usage = {{"prompt_tokens", prompt},
                {"completion_tokens", written},
                {"total_tokens", prompt + written},
                {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  std::vector<std::shared_ptr<Answer>> answers;
  for (const Share& share : shares_) answers.push_back(share.answer);
  usage.update(memory_of(engine_.models()[call_.model], answers));
  return usage;
}

Json Reply::frame(const char* object) const {
  return {
      {"id", call_.id}, {"object", object}, {"created", call_.created}, {"model", engine_.models()[call_.model].name}};
}

// For /v1/completions: parallel lists.
Json Reply::scores_of(const std::vector<ScoredToken>& scores, int64_t& offset) const {
  const ServedModel& served = engine_.models()[call_.model];
  if (call_.chat) return {{"content", token_scores(served, scores)}, {"refusal", nullptr}};
  Json tokens = Json::array(), logprobs = Json::array(), likeliest = Json::array(), offsets = Json::array();
  for (const ScoredToken& score : scores) {
    tokens.push_back(name_of(served, score, score.token));
    logprobs.push_back(score.logprob ? Json(*score.logprob) : Json());
    Json top;  // null for the first token, which has no score
    if (score.logprob) top = Json::object();
    for (const auto& [token, logprob] : score.likeliest) {
      const std::string other = name_of(served, score, token);
      if (!top.contains(other) || top[other].get<double>() < logprob) top[other] = logprob;
    }
    likeliest.push_back(std::move(top));
    offsets.push_back(offset);
    offset += characters(score.text ? *score.text : piece_of(served, score.token));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(likeliest)},
          {"text_offset", std::move(offsets)}};
}

// Returns a stream's event with one choice.
Json Reply::event(size_t index, const Json& content) const {
  Json json = frame(call_.chat ? "chat.completion.chunk" : "text_completion");
  Json choice = {{"index", index}};
  choice.update(content);
  json["choices"] = Json::array({std::move(choice)});
  if (call_.usage) json["usage"] = nullptr;
  return json;
}

void Reply::send(const Json& event, const Write& write) {
  if (!gone_ && !write("data: " + dump(event) + "\n\n")) gone_ = true;
}

// Sends the progress of reading the prompts, if it is requested and has changed, in llama.cpp's format.
void Reply::send_progress(const Write& write) {
  if (!call_.progress || !call_.stream) return;
  int64_t total = 0, cached = 0, processed = 0;
  for (size_t request = 0; request < call_.requests.size(); ++request) {
    const Answer& answer = *first_of(request).answer;
    total += static_cast<int64_t>(answer.request().tokens.size());
    cached += answer.cached_tokens();
    processed += answer.read_tokens();
  }
  Json progress = {{"total", total}, {"cache", cached}, {"processed", processed}};
  if (processed == 0 || progress == progress_) return;
  progress_ = progress;
  progress["time_ms"] = static_cast<int64_t>(1000 * shares_[0].answer->age());
  Json json = frame(call_.chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array();
  json["prompt_progress"] = std::move(progress);
  send(json, write);
}

// Called before the first part of the share's answers.
void Reply::begin(Share& share, const Write& write) {
  send_progress(write);
  share.begun = true;
  for (size_t i = share.first; i < share.first + share.count; ++i) {
    Choice& choice = choices_[i];
    if (call_.echo) {
      choice.text = call_.prompts[share.request];
      auto scores = share.answer->prompt_scores();
      const ServedModel& served = engine_.models()[call_.model];
      const size_t marks = marks_before(served, call_.requests[share.request].tokens);
      for (size_t mark = 0; mark < std::min(marks, scores.size()); ++mark) scores[mark].text = "";
      if (served.tokenizer && marks < scores.size()) {
        scores[marks].text = served.tokenizer->decode({scores[marks].token});
      }
      if (!scores.empty()) choice.logprobs = scores_of(scores, choice.offset);
      choice.offset = characters(choice.text);
    }
    if (!call_.stream) continue;
    if (call_.chat) {
      send(event(i, {{"delta", {{"role", "assistant"}, {"content", ""}}},
                     {"logprobs", nullptr},
                     {"finish_reason", nullptr}}),
           write);
    } else if (call_.echo) {
      send(event(i, {{"text", choice.text}, {"logprobs", choice.logprobs}, {"finish_reason", nullptr}}), write);
    }
  }
}

void Reply::take(Share& share, AnswerPart part, const Write& write) {
  if (!share.begun) begin(share, write);
  const size_t index = share.first + static_cast<size_t>(part.choice);
  Choice& choice = choices_[index];
  const Json scores = part.scores.empty() ? Json() : scores_of(part.scores, choice.offset);
  choice.finish = part.finish;
  if (!call_.stream) {
    choice.text += part.text;
    if (!scores.is_null()) append(choice.logprobs, scores);
    return;
  }
  const Json finish = part.finish ? Json(reason(*part.finish)) : Json();
  if (call_.chat) {
    const Json delta = part.text.empty() ? Json::object() : Json{{"content", part.text}};
    send(event(index, {{"delta", delta}, {"logprobs", scores}, {"finish_reason", finish}}), write);
  } else {
    send(event(index, {{"text", part.text}, {"logprobs", scores}, {"finish_reason", finish}}), write);
  }
}

Json Reply::whole() const {
  Json json = frame(call_.chat ? "chat.completion" : "text_completion");
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    Json entry = {{"index", i}};
    if (call_.chat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] = choice.logprobs;
    entry["finish_reason"] = choice.finish ? Json(reason(*choice.finish)) : Json();
    choices.push_back(std::move(entry));
  }
  json["choices"] = std::move(choices);
  json["usage"] = usage();
  return json;
}

// Takes all available parts of a share; waits up to `longest` for the first one.
void Reply::take_all(Share& share, std::chrono::milliseconds longest, const Write& write) {
  AnswerPart part;
  auto got = share.answer->next(part, longest);
  for (; got == Answer::Got::kPart; got = share.answer->next(part, 0ms)) take(share, std::move(part), write);
  share.ended = got == Answer::Got::kEnd;
}

bool Reply::write_all(const Write& write) {
  for (bool open = true; open && !gone_;) {
    // Waits for one share, and takes the available parts of the others.
    open = false;
    bool asked = false;
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (shares_[i].ended) continue;
      open = true;
      if (!its_turn(i)) continue;
      take_all(shares_[i], asked ? 0ms : kLook, write);
      asked = true;
    }
    if (open && !asked) std::this_thread::sleep_for(kLook);
    send_progress(write);
    if (!gone_ && !write("")) gone_ = true;
  }
  if (gone_) return false;
  if (!call_.stream) return write(dump(whole()));
  if (call_.usage) {
    Json json = frame(call_.chat ? "chat.completion.chunk" : "text_completion");
    json["choices"] = Json::array();
    json["usage"] = usage();
    send(json, write);
  }
  return write("data: [DONE]\n\n");
}

Json model_entry(const ServedModel& served) {
  constexpr int64_t kTokens = 4096;
  const LanguageModel& model = *served.model;
  const ModelConfig& config = model.config();
  const auto [constant, per_token] = state_growth(model);
  const bool taught = served.tokenizer && served.tokenizer->special().chat.taught();
  return {{"id", served.name},
          {"object", "model"},
          {"created", served.created},
          {"owned_by", "cortado"},
          {"parent", served.base.empty() ? Json() : Json(served.base)},  // a model with adapters: its base
          {"parameters", model.parameter_count()},
          {"weight_bytes", model.weight_bytes()},
          {"memory", served.memory},
          {"context", config.context},
          {"chat", taught ? Json("jinja") : Json()},     // null: the model continues texts
          {"sampling", sampling_json(served.sampling)},  // defaults for requests
          {"layers", config.layers.size()},
          {"state_bytes", kept_bytes(model, kTokens)},  // after 4,096 tokens
          {"state_constant_bytes", constant},
          {"state_bytes_per_token", per_token},
          {"kv_cache_bytes", key_value_bytes(config, kTokens, cache_type(model))},
          {"kv_cache_bytes_per_token", key_value_bytes(config, 1, cache_type(model))},
          {"kv_type", dtype_name(cache_type(model))}};
}

Json models_list(const Engine& engine) {
  Json list = Json::array();
  for (const ServedModel& served : engine.models()) list.push_back(model_entry(served));
  return {{"object", "list"}, {"data", std::move(list)}};
}

}  // namespace cortado
