#include "cortado/serve/responses.h"

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/serve/wire_parts.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

namespace {

using namespace std::chrono_literals;

constexpr int64_t kMostItems = 100;

Json messages_json(const std::vector<ChatMessage>& messages) {
  Json list = Json::array();
  for (const auto& [role, content] : messages) list.push_back({{"role", role}, {"content", content}});
  return list;
}

std::vector<ChatMessage> messages_of(const Json& list) {
  std::vector<ChatMessage> messages;
  for (const Json& item : list) messages.push_back({item.at("role"), item.at("content")});
  return messages;
}

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
std::vector<ChatMessage> read_input(Body& body, const std::function<std::string(const std::string& id)>& said) {
  const Json& input = body.any("input");
  if (input.is_string()) return {{"user", input.get<std::string>()}};
  if (!input.is_array() || input.empty()) body.fail("input", "must be a text or a list of messages");
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < input.size(); ++i) {
    Body item(input[i], kItem, body.strict(), concat("input[", i, "]"));
    const std::string type = item.text("type", "message");
    if (type == "item_reference") {
      messages.push_back({"assistant", said(item.text("id"))});
      item.finish();
      continue;
    }
    if (type != "message") {
      item.fail("type", concat("can only be \"message\" or \"item_reference\", got ", Json(type).dump()));
    }
    item.ignore({"id"});
    std::string role = item.text("role");
    if (role == "developer") role = "system";
    if (role != "user" && role != "assistant" && role != "system") {
      item.fail("role",
                concat("must be \"user\", \"assistant\", \"system\" or \"developer\", got ", Json(role).dump()));
    }
    messages.push_back({role, read_words(item, role, {"input_text", "output_text", "text"})});
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
  std::vector<ChatMessage> input;  // of this turn
  // Restored from the previous response by read_history(); empty in a first turn.
  std::vector<ChatMessage> messages = {};
  std::vector<int32_t> tokens = {};
  size_t head = 0, head_messages = 0;  // numbers of tokens and of messages in the first turn's prompt
  std::string old_instructions = {};
  bool ended = true;  // whether the last answer closed its turn
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
  turn.messages = messages_of(record.at("messages"));
  turn.head = record.at("head");
  turn.head_messages = record.at("head_messages");
  turn.ended = record.at("ended");
  turn.old_instructions = record.at("instructions");
  turn.tokens = std::move(before.tokens);
  turn.snapshot = before.snapshot;
}

// Makes the conversation's tokens up to the beginning of the answer. Earlier turns are not tokenised again, except for
// the first turn's prompt if the instructions in it have changed or a later system message joins it.
void Responses::start_sequence(Turn& turn) const {
  const Chat chat = Chat::or_text(tokenizer_of(engine_.models()[turn.model]));
  const bool first = turn.messages.empty();
  const auto check_length = [&](const std::string& text) {
    const ServedModel& served = engine_.models()[turn.model];
    check_text(*served.tokenizer, text, most_prompt_tokens(engine_, turn.model, limits_), "input");
  };
  const auto head = [&](std::vector<ChatMessage> messages) {
    if (!turn.instructions.empty()) {
      if (messages[0].role == "system") {
        messages[0].content = turn.instructions + "\n\n" + messages[0].content;
      } else {
        messages.insert(messages.begin(), {"system", turn.instructions});
      }
    }
    check_length(chat.render(messages, true));
    return chat.encode(messages, true);
  };
  for (size_t i = first ? 1 : 0; limits_.strict && i < turn.input.size(); ++i) {
    if (turn.input[i].role == "system")
      throw WireError(400, "a system message can only be the conversation's first", "input");
  }
  std::vector<ChatMessage> input = with_one_system(turn.input);
  if (first) {
    turn.tokens = head(input);
    turn.head = turn.tokens.size();
    turn.head_messages = input.size();
  } else {
    const bool more_system = !input.empty() && input[0].role == "system";
    if (more_system) {  // it joins the first turn's system message
      const auto end = turn.messages.begin() + static_cast<std::ptrdiff_t>(turn.head_messages);
      std::vector<ChatMessage> all(turn.messages.begin(), end);
      all.push_back(input[0]);
      all = with_one_system(all);
      turn.head_messages = all.size();
      all.insert(all.end(), end, turn.messages.end());
      turn.messages = std::move(all);
      input.erase(input.begin());
    }
    if (more_system || turn.instructions != turn.old_instructions) {
      const auto end = turn.messages.begin() + static_cast<std::ptrdiff_t>(turn.head_messages);
      auto tokens = head({turn.messages.begin(), end});
      const size_t length = tokens.size();
      tokens.insert(tokens.end(), turn.tokens.begin() + static_cast<std::ptrdiff_t>(turn.head), turn.tokens.end());
      turn.tokens = std::move(tokens);
      turn.head = length;
      turn.snapshot = {};
    }
    check_length(chat.next(turn.messages, input));
    const auto more = chat.encode_next(turn.messages, input, turn.ended);
    turn.tokens.insert(turn.tokens.end(), more.begin(), more.end());
  }
  turn.messages.insert(turn.messages.end(), input.begin(), input.end());
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
            .input = read_input(body, said)};
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
  request.begins_text = !engine_.models()[turn.model].tokenizer->special().chat.name.empty();
  fit_prompt(request, "input", engine_, limits_);

  running->unknown_ = body.unknown();
  running->id_ = new_id("resp_");
  running->message_id_ = message_id_of(running->id_);
  running->engine_ = &engine_;
  running->response_store_ = store_.get();
  running->response_ = new_object(json, request, *running);
  Json items = Json::array();
  for (const auto& [role, content] : turn.input) items.push_back(item_of(role, content));
  running->record_ = {{"messages", messages_json(turn.messages)},
                      {"head", turn.head},
                      {"head_messages", turn.head_messages},
                      {"instructions", turn.instructions},
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
