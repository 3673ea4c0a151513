#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/base/words.h"
#include "cortado/serve/wire_parts.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

namespace {

constexpr int64_t kMostLikeliest = 20, kMostChoices = 128;

const ServedModel& served(const Engine& engine, size_t model) { return engine.models()[model]; }

// Reads the fields that all calls share.
Request read_common(Body& body, const Json& json, const Engine& engine, const WireLimits& limits) {
  Request request;
  request.sampling = read_sampling(body, engine.models()[find_model(json, engine)]);
  // If there are more than are generated at once, they are generated group by group.
  request.choices = body.integer("n", 1, limits.strict ? engine.options().rows : kMostChoices, 1);
  request.stops = read_stops(body);
  request.ignore_end = body.boolean("ignore_eos", false);
  request.seconds = limits.seconds;
  return request;
}

void read_stream(Body& body, Call& call) {
  call.stream = body.boolean("stream", false);
  call.progress = body.boolean("return_progress", false);
  const Json& options = body.any("stream_options");
  if (options.is_null()) return;
  if (!call.stream && body.strict()) body.fail("stream_options", "is for streams: \"stream\" must be true");
  Body inner(options, kStreamOptions, body.strict(), "stream_options");
  call.usage = inner.boolean("include_usage", false);
  inner.finish();
  body.note(inner);
}

// OpenAI's API has a call's arguments as a text of JSON, and templates read the object.
Json read_calls(Body& message, const Json& given) {
  if (!given.is_array()) message.fail("tool_calls", "must be a list of calls");
  Json calls = given;
  for (Json& call : calls) {
    const bool object = call.is_object() && call.contains("function") && call["function"].is_object();
    if (!object) message.fail("tool_calls", "must have an object \"function\" in every call");
    Json& arguments = call["function"]["arguments"];
    if (!arguments.is_string()) continue;
    const std::string& text = arguments.get_ref<const std::string&>();
    try {
      check_json_depth(text, "arguments");
    } catch (const InputError&) {
      continue;
    }
    Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) arguments = std::move(parsed);
  }
  return calls;
}

Json read_messages(Body& body) {
  const Json& list = body.any("messages");
  if (!list.is_array() || list.empty()) body.fail("messages", "must be a list of at least one message");
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = concat("messages[", i, "]");
    Body message(list[i], kMessage, body.strict(), place);
    const std::string role = read_role(message);
    Json read = chat_message(role, read_words(message, role, {"text"}));
    for (const char* key : {"name", "tool_call_id", "reasoning_content", "reasoning", "thinking"}) {
      const Json& value = message.any(key);
      if (!value.is_null()) read[key] = value;
    }
    const Json& calls = message.any("tool_calls");
    if (!calls.is_null()) read["tool_calls"] = read_calls(message, calls);
    message.finish();
    body.note(message);
    messages.push_back(std::move(read));
  }
  return messages;
}

ChatOptions read_chat_options(Body& body) {
  ChatOptions options{.fits = true, .more = read_template_options(body)};
  options.continues = body.boolean("continue_final_message", false);
  options.ask = body.boolean("add_generation_prompt", !options.continues);
  if (options.continues && options.ask) body.fail("continue_final_message", "needs \"add_generation_prompt\": false");
  const Json& documents = body.any("documents");
  if (!documents.is_null() && !documents.is_array()) body.fail("documents", "must be a list of objects");
  options.documents = documents;
  return options;
}

// Sets the request's tokens, and as marks the depths where other conversations may diverge from this one: before its
// second message and before each of the last ones.
void encode_chat(Request& request, const Chat& chat, const jinja::Text& text, size_t messages) {
  std::vector<size_t> divergences;
  for (size_t i = 1; i < messages; ++i) {
    if (i == 1 || i + 2 >= messages) divergences.push_back(i);
  }
  auto [tokens, shared] = chat.encode(text, divergences);
  for (const int64_t depth : shared) {
    if (depth > 0 && depth < static_cast<int64_t>(tokens.size())) request.marks.push_back(depth);
  }
  request.tokens = std::move(tokens);
}

Call new_call(bool chat, const Json& body, const Engine& engine) {
  return {.chat = chat,
          .id = new_id(chat ? "chatcmpl-" : "cmpl-"),
          .created = static_cast<int64_t>(std::time(nullptr)),
          .model = find_model(body, engine)};
}

}  // namespace

size_t find_model(const Json& body, const Engine& engine, std::optional<size_t> unnamed) {
  Body fields(body);
  const std::string name = fields.text("model", "");
  const auto& models = engine.models();
  if (name.empty() && models.size() == 1) unnamed = 0;
  if (name.empty() && unnamed) return *unnamed;
  std::vector<std::string> names;
  for (size_t i = 0; i < models.size(); ++i) {
    if (models[i].name == name) return i;
    names.push_back(models[i].name);
  }
  throw WireError(name.empty() ? 400 : 404,
                  concat("the model ", dump(name), " is not served here: ", alternatives(names, "\"")), "model",
                  "model_not_found");
}

Call read_completion(const Json& json, const Engine& engine, const WireLimits& limits) {
  Body body(json, kCompletion, limits.strict);
  Call call = new_call(false, json, engine);
  body.ignore({"model"});
  Request request = read_common(body, json, engine, limits);
  request.model = call.model;
  request.most_tokens = body.most("max_tokens", 0, limits.answer_tokens).value_or(16);
  request.likeliest = body.optional_integer("logprobs", 0, kMostLikeliest);
  call.echo = body.boolean("echo", false);
  request.score_prompt = call.echo && request.likeliest;
  read_stream(body, call);
  const auto best_of = body.optional_integer("best_of", 1, 1000);
  if (best_of && *best_of != request.choices) body.fail("best_of", "can only be what \"n\" is");
  request.grammar = read_format(body, "response_format", true, engine, call.model);
  // Scores are computed without a begin token, as lm-eval counts tokens.
  const bool begin = body.boolean("add_special_tokens", !request.score_prompt);
  const ServedModel& it = served(engine, call.model);
  const auto most = static_cast<size_t>(engine.options().rows + engine.options().waiting);
  for (auto& tokens : read_prompts(body, "prompt", {engine, call.model, limits, begin, most})) {
    Request one = request;
    one.tokens = std::move(tokens);
    fit_prompt(one, "prompt", engine, limits);
    if (call.echo) call.prompts.push_back(text_of_prompt(it, one.tokens));
    call.requests.push_back(std::move(one));
  }
  body.finish();
  call.unknown = body.unknown();
  return call;
}

Call read_chat(const Json& json, const Engine& engine, const WireLimits& limits) {
  Body body(json, kChat, limits.strict);
  Call call = new_call(true, json, engine);
  body.ignore({"model"});
  Request request = read_common(body, json, engine, limits);
  request.model = call.model;
  const auto most = body.most("max_completion_tokens", 0, limits.answer_tokens);
  const auto older = body.most("max_tokens", 0, limits.answer_tokens);
  const bool scores = body.boolean("logprobs", false);
  const auto likeliest = body.optional_integer("top_logprobs", 0, kMostLikeliest);
  if (likeliest && !scores) body.fail("top_logprobs", "needs \"logprobs\": true");
  if (scores) request.likeliest = likeliest.value_or(0);
  read_stream(body, call);
  check_tool_choice(body);
  const auto modalities = body.texts("modalities");
  if (std::any_of(modalities.begin(), modalities.end(), [](const auto& it) { return it != "text"; })) {
    body.fail("modalities", "can only be [\"text\"]");
  }
  request.grammar = read_format(body, "response_format", true, engine, call.model);
  const Json messages = read_messages(body);
  const ChatOptions options = read_chat_options(body);
  body.finish();
  call.unknown = body.unknown();
  const ServedModel& it = served(engine, call.model);
  const jinja::Text text = render_chat(it, messages, options, "messages");
  check_text(*it.tokenizer, text.bytes(), most_prompt_tokens(engine, call.model, limits), "messages");
  encode_chat(request, *it.chat, text, messages.size());
  request.begins_text = it.tokenizer->special().chat.taught();
  request.most_tokens = most ? *most : older ? *older : usual_answer(request.tokens, call.model, engine, limits);
  fit_prompt(request, "messages", engine, limits);
  call.requests.push_back(std::move(request));
  return call;
}

Json tokenize(const Json& json, const Engine& engine, const WireLimits& limits) {
  Body body(json, kTokenize, limits.strict);
  const ServedModel& it = served(engine, find_model(json, engine, 0));
  body.ignore({"model"});
  const std::string key = body.has("content") ? "content" : "prompt";  // llama.cpp's name, vLLM's name
  const std::string text = body.text(key);
  const bool begin = body.boolean("add_special_tokens", key == "prompt") || body.boolean("add_special", false);
  body.finish();
  const auto tokens = begin ? encode_prompt(tokenizer_of(it), text) : tokenizer_of(it).encode(text);
  return {{"tokens", tokens}, {"count", tokens.size()}, {"max_model_len", it.model->config().context}};
}

Json detokenize(const Json& json, const Engine& engine, const WireLimits& limits) {
  Body body(json, kDetokenize, limits.strict);
  const ServedModel& it = served(engine, find_model(json, engine, 0));
  body.ignore({"model"});
  const Json& list = body.any("tokens");
  if (!list.is_array()) body.fail("tokens", "must be a list of token numbers");
  const auto tokens = read_token_numbers(list, body, "tokens", tokenizer_of(it).vocabulary());
  body.finish();
  const std::string text = it.tokenizer->decode(tokens);
  return {{"prompt", text}, {"content", text}};
}

Json tokenizer_info(const std::string& model, const Engine& engine) {
  const ServedModel& it = served(engine, find_model({{"model", model}}, engine, 0));
  const Tokenizer& tokenizer = tokenizer_of(it);
  const SpecialTokens& special = tokenizer.special();
  const auto mark = [&](int32_t token) { return token < 0 ? Json() : Json(tokenizer.decode({token})); };
  // If the tokenizer has no end token, use the first stop token.
  const int32_t end = special.end >= 0 ? special.end : special.stops.empty() ? -1 : special.stops.front();
  return {{"model", it.name},
          {"tokenizer", tokenizer.kind()},
          {"vocabulary", tokenizer.vocabulary()},
          {"eos_token", mark(end)},
          {"bos_token", mark(special.begin)},
          {"pad_token", mark(special.padding)},
          {"chat_template", special.chat.taught() ? Json(special.chat.text) : Json()}};
}

}  // namespace cortado
