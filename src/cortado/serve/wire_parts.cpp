#include "cortado/serve/wire_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "cortado/base/error.h"
#include "cortado/base/words.h"

namespace cortado {

namespace {

// Default length for models without a chat template: they do not know where an answer ends.
constexpr int64_t kUntaughtAnswer = 200;
constexpr size_t kMostStops = 16, kLongestStop = 1000;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t random_seed() {
  std::random_device random;
  return static_cast<int64_t>(random()) << 20 ^ static_cast<int64_t>(random());
}

// {"123": -5}, as in OpenAI's API.
std::vector<std::pair<int32_t, double>> read_bias(Body& body, int64_t vocabulary) {
  const Json& bias = body.any("logit_bias");
  std::vector<std::pair<int32_t, double>> all;
  if (bias.is_null()) return all;
  if (!bias.is_object())
    body.fail("logit_bias", "must be an object of token numbers and what is added to their logits");
  for (const auto& [token, value] : bias.items()) {
    const bool number =
        !token.empty() && token.size() < 10 && token.find_first_not_of("0123456789") == std::string::npos;
    if (!number) body.fail("logit_bias", concat("must have token numbers as its keys, got ", Json(token).dump()));
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100)) {
      body.fail("logit_bias", concat("must be from -100 to 100 for token ", token, ", got ", value.dump()));
    }
    if (std::stoi(token) >= vocabulary) {
      body.fail("logit_bias", concat("has token ", token, ", and there are ", vocabulary));
    }
    all.emplace_back(std::stoi(token), value.get<double>());
  }
  return all;
}

// Fields that OpenAI's API does not have.
void read_others(Body& body, SamplingOptions& sampling) {
  if (!body.boolean("do_sample", true)) sampling.temperature = 0;
  const auto window = body.optional_integer("repeat_last_n", -1, kNoLimit);
  if (window) sampling.repetition_window = *window < 0 ? kNoLimit : *window;
}

}  // namespace

SamplingOptions read_sampling(Body& body, const ServedModel& it) {
  SamplingOptions sampling = it.sampling;
  sampling.temperature = body.number("temperature", 0, 100, sampling.temperature);
  sampling.top_p = body.number("top_p", 0, 1, sampling.top_p);
  if (sampling.top_p == 0) sampling.top_k = 1;  // allowed by OpenAI: only the likeliest token
  sampling.top_p = sampling.top_p == 0 ? 1 : sampling.top_p;
  if (const auto top_k = body.optional_integer("top_k", -1, kNoLimit)) sampling.top_k = std::max<int64_t>(*top_k, 0);
  sampling.min_p = body.number("min_p", 0, 1, sampling.min_p);
  sampling.presence_penalty = body.number("presence_penalty", -2, 2, 0.0);
  sampling.frequency_penalty = body.number("frequency_penalty", -2, 2, 0.0);
  sampling.repetition_penalty = body.number("repetition_penalty", 0.01, 100, sampling.repetition_penalty);
  if (!body.strict()) read_others(body, sampling);
  sampling.bias = read_bias(body, vocabulary_of(it));
  // Large seeds are halved, so that adding the numbers of many answers cannot overflow.
  const auto seed = body.optional_integer("seed", std::numeric_limits<int64_t>::min(), kNoLimit);
  sampling.seed = seed ? (*seed > kNoLimit / 2 || *seed < -kNoLimit / 2 ? *seed / 2 : *seed) : random_seed();
  return sampling;
}

std::vector<std::string> read_stops(Body& body) {
  std::vector<std::string> stops;
  for (const Json& stop : body.list("stop")) {
    const bool nothing = stop.is_null() || stop == "";
    if (nothing && !body.strict()) continue;
    if (!stop.is_string()) body.fail("stop", "must be a text or a list of texts");
    if (nothing) body.fail("stop", "must not be an empty text");
    stops.push_back(stop.get<std::string>());
    if (stops.back().size() > kLongestStop) {
      body.fail("stop", concat("must be texts of at most ", kLongestStop, " bytes"));
    }
  }
  // Every stop text is searched for at every token, while all other answers wait.
  if (stops.size() > kMostStops)
    body.fail("stop", concat("must be at most ", kMostStops, " texts, not ", stops.size()));
  return stops;
}

void check_tool_choice(Body& body) {
  const Json& choice = body.any("tool_choice");
  if (choice.is_null() || choice == "none" || choice == "auto") return;
  body.fail("tool_choice", R"(is not supported by this server; it can be left out, or be "none" or "auto")");
}

int64_t most_prompt_tokens(const Engine& engine, size_t model, const WireLimits& limits) {
  return std::min(limits.prompt_tokens, engine.longest(model).value_or(limits.prompt_tokens));
}

void check_text(const Tokenizer& tokenizer, std::string_view text, int64_t most_tokens, const std::string& param) {
  // Few texts have more than this many bytes per token (such as long runs of spaces); only these are tokenised as a
  // whole. Cutting a text may split its last word into a few more tokens.
  constexpr int64_t kBytesOfToken = 8, kAtCut = 64;
  auto part = static_cast<size_t>(kBytesOfToken * (std::min(most_tokens, int64_t{1} << 40) + kAtCut));
  if (text.size() <= part) return;
  while (part > 0 && (static_cast<unsigned char>(text[part]) & 0xC0) == 0x80) --part;
  if (static_cast<int64_t>(tokenizer.encode(text.substr(0, part)).size()) <= most_tokens + kAtCut) return;
  throw WireError(400,
                  concat("the prompt of ", text.size(), " bytes has more than ", most_tokens,
                         " tokens, and this server reads no more of it"),
                  param, "context_length_exceeded");
}

std::vector<int32_t> read_token_numbers(const Json& list, Body& body, const std::string& key, int64_t vocabulary) {
  std::vector<int32_t> tokens;
  for (const Json& item : list) {
    const bool good = item.is_number_integer() && item.get<int64_t>() >= 0 && item.get<int64_t>() < vocabulary;
    if (!good) body.fail(key, concat("must hold token numbers from 0 to ", vocabulary - 1, ", got ", item.dump()));
    tokens.push_back(item.get<int32_t>());
  }
  return tokens;
}

std::vector<std::vector<int32_t>> read_prompts(Body& body, const std::string& key, const PromptRules& rules) {
  constexpr const char* kForms = "must be a text, a list of texts, of token numbers, or of lists of token numbers";
  const Json& prompt = body.any(key);
  const ServedModel& it = rules.engine.models()[rules.model];
  const auto text = [&](const Json& item) {
    const std::string& words = item.get_ref<const std::string&>();
    check_text(tokenizer_of(it), words, most_prompt_tokens(rules.engine, rules.model, rules.limits), key);
    return rules.begin ? encode_prompt(tokenizer_of(it), words) : tokenizer_of(it).encode(words);
  };
  const int64_t vocabulary = it.model->config().vocabulary;
  if (prompt.is_string()) return {text(prompt)};
  if (!prompt.is_array() || prompt.empty()) body.fail(key, kForms);
  if (prompt[0].is_number()) return {read_token_numbers(prompt, body, key, vocabulary)};
  if (prompt.size() > rules.most) {
    body.fail(key, concat("has ", prompt.size(), " texts, and this server takes ", rules.most, " at once"));
  }
  std::vector<std::vector<int32_t>> all;
  for (const Json& item : prompt) {
    if (item.is_string() != prompt[0].is_string() || !(item.is_string() || item.is_array())) body.fail(key, kForms);
    all.push_back(item.is_string() ? text(item) : read_token_numbers(item, body, key, vocabulary));
  }
  return all;
}

void fit_prompt(Request& request, const std::string& param, const Engine& engine, const WireLimits& limits) {
  const auto tokens = static_cast<int64_t>(request.tokens.size());
  if (tokens == 0) throw WireError(400, concat("\"", param, "\" has no tokens"), param);
  if (tokens > limits.prompt_tokens) {
    throw WireError(400,
                    concat("the prompt has ", tokens, " tokens, and this server reads at most ", limits.prompt_tokens),
                    param, "context_length_exceeded");
  }
  const auto longest = engine.longest(request.model);
  if (longest && !limits.strict && tokens < *longest) {
    request.most_tokens = std::min(request.most_tokens, *longest - tokens);
  }
  if (longest && tokens + request.most_tokens > *longest) {
    throw WireError(400,
                    concat("the model has positions for ", *longest, " tokens, and the prompt's ", tokens, " with ",
                           request.most_tokens, " of the answer are more"),
                    param, "context_length_exceeded");
  }
}

int64_t usual_answer(const std::vector<int32_t>& prompt, size_t model, const Engine& engine, const WireLimits& limits) {
  const ServedModel& it = engine.models()[model];
  const bool taught = it.tokenizer && it.tokenizer->special().chat.taught();
  const int64_t most = std::min(limits.answer_tokens, taught ? limits.answer_tokens : kUntaughtAnswer);
  const auto longest = engine.longest(model);
  const int64_t room = longest ? *longest - static_cast<int64_t>(prompt.size()) : most;
  return std::clamp<int64_t>(room, 1, most);
}

const Tokenizer& tokenizer_of(const ServedModel& it) {
  if (!it.tokenizer) {
    throw WireError(400, concat("the model ", it.name, " has no tokenizer: its prompts are lists of token numbers"),
                    "prompt");
  }
  return *it.tokenizer;
}

jinja::Text render_chat(const ServedModel& it, const Json& messages, const ChatOptions& options,
                        const std::string& param) {
  tokenizer_of(it);
  try {
    return it.chat->render(messages, options);
  } catch (const InputError& error) {
    throw WireError(400, error.what(), param);
  }
}

Json read_template_options(Body& body) {
  const Json& options = body.any("chat_template_kwargs");
  if (!options.is_null() && !options.is_object()) body.fail("chat_template_kwargs", "must be an object");
  return options.is_null() ? Json::object() : options;
}

std::string read_content(Body& message, const std::vector<std::string>& types) {
  const Json& content = message.any("content");
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) message.fail("content", "must be a text or a list of parts");
  std::string joined;
  for (size_t i = 0; i < content.size(); ++i) {
    Body part(content[i], kPart, message.strict(), message.place_of(concat("content[", i, "]")));
    const std::string type = part.text("type");
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      part.fail("type", concat("can only be ", alternatives(types, "\""), ", got ", Json(type).dump()));
    }
    joined += part.text("text");
    part.finish();
    message.note(part);
  }
  return joined;
}

std::string read_role(Body& message) {
  static const std::vector<std::string> kRoles = {"system", "developer", "user", "assistant", "tool"};
  std::string role = message.text("role");
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    message.fail("role", concat("must be ", alternatives(kRoles, "\""), ", got ", Json(role).dump()));
  }
  return role;
}

std::string read_words(Body& message, const std::string& role, const std::vector<std::string>& types) {
  if (role == "assistant" && !message.strict() && !message.has("content")) return "";
  return read_content(message, types);
}

}  // namespace cortado
