#include "cortado/serve/responses.h"

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/serve/wire_parts.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

namespace {

using namespace std::chrono_literals;

constexpr int64_t kMostItems = 100;

Json item_of(const std::string& role, const std::string& text) {
  const char* type = role == "assistant" ? "output_text" : "input_text";
  return {{"id", new_id("msg_")},
          {"type", "message"},
          {"status", "completed"},
          {"role", role},
          {"content", Json::array({{{"type", type}, {"text", text}}})}};
}

std::shared_ptr<const Grammar> read_text_format(Body& body, const Engine& engine, size_t model) {
  const Json& text = body.any("text");
  if (text.is_null()) return nullptr;
  Body inner(text, kText, body.strict(), "text");
  inner.any("format");
  inner.finish();
  body.note(inner);
  return read_format(inner, "format", false, engine, model);
}

// A message and its response share the second part of their ids.
std::string message_id_of(const std::string& response) { return "msg_" + response.substr(response.find('_') + 1); }
std::string response_id_of(const std::string& message) { return "resp_" + message.substr(message.find('_') + 1); }

// `said` returns the text of an answer by its item's id.
Json read_input(Body& body, const std::function<std::string(const std::string& id)>& said) {
  const Json& input = body.any("input");
  if (input.is_string()) return Json::array({chat_message("user", input.get<std::string>())});
  if (!input.is_array() || input.empty()) body.fail("input", "must be a text or a list of messages");
  Json messages = Json::array();
  for (size_t i = 0; i < input.size(); ++i) {
    Body item(input[i], kItem, body.strict(), concat("input[", i, "]"));
    const std::string type = item.text("type", "message");
    if (type == "item_reference") {
      messages.push_back(chat_message("assistant", said(item.text("id"))));
      item.finish();
      continue;
    }
    if (type != "message") {
      item.fail("type", concat("can only be \"message\" or \"item_reference\", got ", Json(type).dump()));
    }
    item.ignore({"id"});
    const std::string role = read_role(item);
    messages.push_back(chat_message(role, read_words(item, role, {"input_text", "output_text", "text"})));
    item.finish();
    body.note(item);
  }
  return messages;
}

// Whether log-probabilities are requested. Unknown values of "include" are ignored, but probable typos are refused.
bool wants_scores(Body& body) {
  const std::string known = "message.output_text.logprobs";
  bool wanted = false;
  for (const std::string& what : body.texts("include")) {
    wanted = wanted || what == known;
    if (what == known || (!body.strict() && !slip_of(what, {known}))) continue;
    body.fail("include", concat("can only be [", Json(known).dump(), "], got ", Json(what).dump()));
  }
  return wanted;
}

}  // namespace

// A call's contents, and the conversation that it continues.
struct Responses::Turn {
  size_t model = 0;
  std::string instructions;
  Json input;  // the messages of this turn
  ChatOptions options = {};
  // Restored from the previous response by read_history(); empty in a first turn.
  Json messages = Json::array();
  std::vector<int32_t> tokens = {};
  std::string old_instructions = {};
  Json old_options = Json::object();
  StateCache::Found snapshot = {};
};

Responses::Responses(Engine& engine, const WireLimits& limits, std::unique_ptr<ResponseStore> store)
    : engine_(engine), limits_(limits), store_(std::move(store)) {}

Responses::~Responses() {
  for (auto& work : background_) work.wait();
}

StoredResponse Responses::stored(const std::string& id) {
  auto found = is_response_id(id) ? store_->get(id) : std::nullopt;
  if (!found) throw WireError(404, concat("there is no response ", dump(id)), "response_id", "not_found");
  return std::move(*found);
}

std::shared_ptr<RunningResponse> Responses::running(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(id);
  return found == running_.end() ? nullptr : found->second.lock();
}

void Responses::read_history(Turn& turn, const std::string& previous) {
  StoredResponse before = [&] {
    try {
      return stored(previous);
    } catch (const WireError& error) {
      // As OpenAI's API reports it.
      throw WireError(400, error.what(), "previous_response_id", "previous_response_not_found");
    }
  }();
  if (before.model != turn.model) {
    throw WireError(400, "the response before is another model's: its state means nothing to this one",
                    "previous_response_id");
  }
  const Json& record = before.record;
  if (record.at("response").at("status") == "failed") {
    throw WireError(400, "the response before has failed: there is no answer to go on from", "previous_response_id");
  }
  turn.messages = record.at("messages");
  turn.old_instructions = record.at("instructions");
  turn.old_options = record.value("template_options", Json::object());
  turn.tokens = std::move(before.tokens);
  turn.snapshot = before.snapshot;
}

// Makes the conversation's tokens up to the beginning of the answer. Earlier turns are not tokenised again, unless the
// template now writes them differently: for other instructions, or because it leaves thoughts out of earlier answers.
void Responses::start_sequence(Turn& turn) const {
  const ServedModel& served = engine_.models()[turn.model];
  Json all = Json::array();
  if (!turn.instructions.empty()) all.push_back(chat_message("system", turn.instructions));
  for (const Json& message : turn.messages) all.push_back(message);
  const size_t answered = all.size() - 1;
  const bool first = turn.messages.empty();
  for (const Json& message : turn.input) {
    all.push_back(message);
    turn.messages.push_back(message);
  }
  const jinja::Text text = render_chat(served, all, turn.options, "input");
  check_text(*served.tokenizer, text.bytes(), most_prompt_tokens(engine_, turn.model, limits_), "input");
  const bool same = turn.instructions == turn.old_instructions && turn.options.more == turn.old_options;
  if (!first && same && served.chat->keeps(text, all, answered, turn.options)) {
    const int32_t last = turn.tokens.empty() ? -1 : turn.tokens.back();
    if (const auto more = served.chat->encode_next(text, answered, last)) {
      turn.tokens.insert(turn.tokens.end(), more->begin(), more->end());
      return;
    }
  }
  turn.tokens = served.chat->encode(text).tokens;
  turn.snapshot = {};
}

// Reads the settings of a response, which are everything but its conversation.
Request Responses::read_request(Body& body, size_t model, RunningResponse& response) const {
  Request request;
  request.sampling = read_sampling(body, engine_.models()[model]);
  request.stops = read_stops(body);
  request.seconds = limits_.seconds;
  request.most_tokens = body.most("max_output_tokens", 1, limits_.answer_tokens).value_or(0);
  const auto likeliest = body.optional_integer("top_logprobs", 0, 20);
  if (wants_scores(body) || likeliest) request.likeliest = likeliest.value_or(0);
  response.stream_ = body.boolean("stream", false);
  response.background_ = body.boolean("background", false);
  response.store_ = body.boolean("store", true);
  if (response.background_ && !response.store_) body.fail("background", "needs \"store\": true");
  if (response.background_ && response.stream_) body.fail("background", "cannot be streamed here");
  if (body.text("truncation", "disabled") != "disabled") body.fail("truncation", "can only be \"disabled\"");
  check_tool_choice(body);
  request.grammar = read_text_format(body, engine_, model);
  body.ignore({"model"});
  return request;
}

// Returns the response object as it is at the beginning.
Json Responses::new_object(const Json& body, const Request& request, const RunningResponse& response) const {
  const auto given = [&](const char* key) { return body.contains(key) ? body.at(key) : Json(); };
  const Json text = given("text"), format = text.is_object() ? text.value("format", Json()) : Json();
  return {{"id", response.id_},
          {"object", "response"},
          {"created_at", static_cast<int64_t>(std::time(nullptr))},
          {"status", "in_progress"},
          {"background", response.background_},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", given("instructions")},
          {"max_output_tokens", given("max_output_tokens")},
          {"model", engine_.models()[request.model].name},
          {"output", Json::array()},
          {"parallel_tool_calls", true},
          {"previous_response_id", given("previous_response_id")},
          {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
          {"store", response.store_.load()},
          {"temperature", request.sampling.temperature},
          {"text", {{"format", format.is_null() ? Json{{"type", "text"}} : format}}},
          {"tool_choice", "auto"},
          {"tools", Json::array()},
          {"top_logprobs", request.likeliest.value_or(0)},
          {"top_p", request.sampling.top_p},
          {"truncation", "disabled"},
          {"usage", nullptr},
          {"metadata", given("metadata").is_null() ? Json::object() : given("metadata")}};
}

std::shared_ptr<RunningResponse> Responses::create(const Json& json) {
  Body body(json, kResponse, limits_.strict);
  const auto said = [&](const std::string& id) -> std::string {
    const Json output = stored(response_id_of(id)).record.at("response").at("output");
    if (output.empty() || output[0].at("id") != id) {
      throw WireError(404, concat("there is no item ", dump(id)), "input", "not_found");
    }
    return output[0].at("content")[0].at("text");
  };
  Turn turn{.model = find_model(json, engine_),
            .instructions = body.text("instructions", ""),
            .input = read_input(body, said),
            .options = {.fits = true, .more = read_template_options(body)}};
  const auto running = std::shared_ptr<RunningResponse>(new RunningResponse);
  Request request = read_request(body, turn.model, *running);
  const auto previous = body.optional_text("previous_response_id");
  body.finish();
  if (previous) read_history(turn, *previous);
  start_sequence(turn);

  if (request.most_tokens == 0) request.most_tokens = usual_answer(turn.tokens, turn.model, engine_, limits_);
  request.model = turn.model;
  request.tokens = turn.tokens;
  request.start = turn.snapshot;
  request.wants_state = running->store_;
  request.begins_text = engine_.models()[turn.model].tokenizer->special().chat.taught();
  fit_prompt(request, "input", engine_, limits_);

  running->unknown_ = body.unknown();
  running->id_ = new_id("resp_");
  running->message_id_ = message_id_of(running->id_);
  running->engine_ = &engine_;
  running->response_store_ = store_.get();
  running->response_ = new_object(json, request, *running);
  Json items = Json::array();
  for (const Json& message : turn.input) items.push_back(item_of(message.at("role"), message.at("content")));
  running->record_ = {{"messages", turn.messages},
                      {"instructions", turn.instructions},
                      {"template_options", turn.options.more},
                      {"input", std::move(items)}};
  running->answer_ = engine_.ask(std::move(request));
  const std::lock_guard lock(mutex_);
  std::erase_if(running_, [](const auto& entry) { return entry.second.expired(); });
  running_[running->id_] = running;
  return running;
}

bool Responses::has_store() const {
  try {
    store_->check();
    return true;
  } catch (const Failure&) {
    return false;
  }
}

void Responses::run_in_background(const std::shared_ptr<RunningResponse>& response,
                                  const std::function<void(const std::string& why)>& failed) {
  const std::lock_guard lock(mutex_);
  std::erase_if(background_, [](const auto& work) { return work.wait_for(0s) == std::future_status::ready; });
  try {
    background_.push_back(std::async(std::launch::async, [response, failed] {
      try {
        response->make([](const Json&) { return true; });
      } catch (const std::exception& error) {  // the response's status shows the error, too
        if (failed) failed(error.what());
      }
    }));
  } catch (const std::exception&) {  // no thread could be started
    response->cancel();
    throw;
  }
}

Json Responses::get(const std::string& id) {
  if (const auto response = running(id)) return response->object();
  return stored(id).record.at("response");
}

Json Responses::remove(const std::string& id) {
  const auto response = running(id);
  if (response) {
    response->forget();
    const std::lock_guard lock(mutex_);
    running_.erase(id);
  }
  if (!store_->remove(id) && !response)
    throw WireError(404, concat("there is no response ", dump(id)), "response_id", "not_found");
  return {{"id", id}, {"object", "response"}, {"deleted", true}};
}

Json Responses::cancel(const std::string& id) {
  const auto response = running(id);
  if (!response) {
    stored(id);
    throw WireError(400, "the response has ended already", "response_id");
  }
  response->cancel();
  return response->object();
}

Json Responses::input_items(const std::string& id, const std::string& limit, const std::string& order,
                            const std::string& after) {
  const bool number = limit.size() < 4 && limit.find_first_not_of("0123456789") == std::string::npos;
  const int64_t most = !number ? 0 : limit.empty() ? 20 : std::stoll(limit);
  if (most < 1 || most > kMostItems) throw WireError(400, concat("\"limit\" must be from 1 to ", kMostItems), "limit");
  if (!order.empty() && order != "asc" && order != "desc")
    throw WireError(400, "\"order\" must be asc or desc", "order");
  Json all = stored(id).record.at("input");
  if (order != "asc") std::reverse(all.begin(), all.end());  // OpenAI's default: newest first
  Json data = Json::array();
  bool begun = after.empty(), more = false;
  for (const Json& item : all) {
    if (begun && static_cast<int64_t>(data.size()) == most) more = true;
    if (begun && !more) data.push_back(item);
    begun = begun || item.at("id") == after;
  }
  const Json first = data.empty() ? Json() : data.front().at("id"), last = data.empty() ? Json() : data.back().at("id");
  return {{"object", "list"}, {"data", data}, {"first_id", first}, {"last_id", last}, {"has_more", more}};
}

}  // namespace cortado
