// What the calls' readers share.
#pragma once

#include <string>
#include <vector>

#include "cortado/serve/body.h"
#include "cortado/serve/wire.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

// temperature, top_p, penalties, logit_bias, seed and what other servers have beside them; what is not there is as the
// model has it.
SamplingOptions read_sampling(Body& body, const ServedModel& it);

// At most 16 texts of at most 1,000 bytes; empty ones are left out.
std::vector<std::string> read_stops(Body& body);

// Without tools "none" and "auto" say the same; anything else is refused.
void check_tool_choice(Body& body);

// WireError where a text must be of far more than `most_tokens`, found by a part of it; how many it is exactly is
// fit_prompt's to ask.
void check_text(const Tokenizer& tokenizer, std::string_view text, int64_t most_tokens, const std::string& param);
// The tokens that a prompt of the model's can have here.
int64_t most_prompt_tokens(const Engine& engine, size_t model, const WireLimits& limits);

// What is wrong with a prompt's length: no token, more than this server reads, or more than the model has positions for
// (WireError). An answer that has no room for all of its tokens gets as many as there is; with `strict` limits it is
// refused.
void fit_prompt(Request& request, const std::string& param, const Engine& engine, const WireLimits& limits);

// Tokens of a conversation's answer where the request does not say.
int64_t usual_answer(const std::vector<int32_t>& prompt, size_t model, const Engine& engine, const WireLimits& limits);

const Tokenizer& tokenizer_of(const ServedModel& it);  // WireError: it has none

// A message's "content": a text, or parts with texts, joined. `types`: the parts' that are known.
std::string read_content(Body& message, const std::vector<std::string>& types);

// Of a message of role `role`: an assistant's may have none, as where it called tools or reasoned.
std::string read_words(Body& message, const std::string& role, const std::vector<std::string>& types);

// The system's messages as one, the first: templates have no place for more.
std::vector<ChatMessage> with_one_system(const std::vector<ChatMessage>& messages);

// "response_format" (`nested`: a schema lies in its "json_schema") or "text"'s "format": what the answer is held to; null:
// nothing. Compiles a schema that is new. WireError: a field of it is wrong, or its schema cannot be held to; Busy.
std::shared_ptr<const Grammar> read_format(Body& outer, const std::string& key, bool nested, const Engine& engine,
                                           size_t model);

}  // namespace cortado
