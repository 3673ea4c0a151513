// Parsing shared by several endpoints.
#pragma once

#include <string>
#include <vector>

#include "cortado/serve/body.h"
#include "cortado/serve/wire.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

// Reads temperature, top_p, penalties, logit_bias, seed, and other servers' sampling fields. Absent fields have the
// model's defaults.
SamplingOptions read_sampling(Body& body, const ServedModel& it);

// Reads "stop": at most 16 texts of at most 1,000 bytes; empty ones are dropped.
std::vector<std::string> read_stops(Body& body);

// Accepts "none" and "auto", which mean the same without tools; refuses anything else.
void check_tool_choice(Body& body);

// Throws WireError if a text certainly has far more than `most_tokens` tokens, judging by a part of it. fit_prompt
// checks the exact number.
void check_text(const Tokenizer& tokenizer, std::string_view text, int64_t most_tokens, const std::string& param);
// Returns the largest number of tokens of a prompt for this model.
int64_t most_prompt_tokens(const Engine& engine, size_t model, const WireLimits& limits);

// Reads a list of token numbers.
std::vector<int32_t> read_token_numbers(const Json& list, Body& body, const std::string& key, int64_t vocabulary);

// How texts become prompts: `begin`, with the tokens that a text begins with; at most `most` of them.
struct PromptRules {
  const Engine& engine;
  size_t model;
  const WireLimits& limits;
  bool begin;
  size_t most;
};
// Reads a text, a list of texts, of token numbers, or of lists of token numbers.
std::vector<std::vector<int32_t>> read_prompts(Body& body, const std::string& key, const PromptRules& rules);

// Checks a prompt's length. Throws WireError for an empty prompt, one that is longer than this server reads, or one
// beyond the model's positions. Shortens an answer that does not fit; with `strict` limits, refuses it.
void fit_prompt(Request& request, const std::string& param, const Engine& engine, const WireLimits& limits);

// Returns the number of tokens of a chat answer if the request does not set it.
int64_t usual_answer(const std::vector<int32_t>& prompt, size_t model, const Engine& engine, const WireLimits& limits);

const Tokenizer& tokenizer_of(const ServedModel& it);  // throws WireError if there is none

// Renders a conversation by the model's chat template. Throws WireError for what the template refuses.
jinja::Text render_chat(const ServedModel& it, const Json& messages, const ChatOptions& options,
                        const std::string& param);
// Reads "chat_template_kwargs".
Json read_template_options(Body& body);

// Returns a message's "content": a text, or the joined texts of its parts. `types` are the allowed types of parts.
std::string read_content(Body& message, const std::vector<std::string>& types);

// Returns the role of a message: system, developer, user, assistant or tool.
std::string read_role(Body& message);
// Returns the content of a message. An assistant's message may have none, for example after tool calls or reasoning.
std::string read_words(Body& message, const std::string& role, const std::vector<std::string>& types);

// Reads "response_format" (`nested`: the schema is in its "json_schema") or the "format" of "text". Returns the grammar
// that constrains the answer; null for none. Compiles a new schema. Throws WireError if a field is wrong or the schema
// can't be enforced, and Busy.
std::shared_ptr<const Grammar> read_format(Body& outer, const std::string& key, bool nested, const Engine& engine,
                                           size_t model);

}  // namespace cortado
