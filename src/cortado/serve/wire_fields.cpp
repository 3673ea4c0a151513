#include "cortado/serve/wire_fields.h"

#include <algorithm>

#include "cortado/base/edit_distance.h"
#include "cortado/base/error.h"
#include "cortado/base/words.h"

namespace cortado {

namespace {

constexpr unsigned kWriting = kCompletion | kChat, kCalls = kWriting | kResponse, kWords = kMessage | kItem;

constexpr Field done(const char* name, unsigned places, const char* none = "[]") {
  return {.name = name, .places = places, .use = Use::kDone, .values = none, .strict = true};
}
// Fields beyond OpenAI's API and this server's original ones.
constexpr Field added(const char* name, unsigned places, const char* none = "[]") {
  return {.name = name, .places = places, .use = Use::kDone, .values = none};
}
constexpr Field same(const char* name, unsigned places, const char* other) {
  return {.name = name, .places = places, .use = Use::kSame, .other = other};
}
constexpr Field any(const char* name, unsigned places) { return {.name = name, .places = places, .use = Use::kAny}; }
constexpr Field ignored(const char* name, unsigned places) {
  return {.name = name, .places = places, .use = Use::kAny, .strict = true};
}
constexpr Field only(const char* name, unsigned places, const char* values = "[]", Place inner = kNoPlace) {
  return {.name = name, .places = places, .use = Use::kNeutral, .values = values, .inner = inner};
}
// Features that this server lacks: false, an empty list and an empty object ask for nothing.
constexpr Field missing(const char* name, unsigned places, const char* unless = "", const char* values = "[]",
                        Place inner = kNoPlace) {
  return {.name = name,
          .places = places,
          .use = Use::kNeutral,
          .values = values,
          .other = unless,
          .inner = inner,
          .strict = true};
}

// clang-format off
const Field kFields[] = {
    // Fields of OpenAI's API.
    done("model", kCalls | kTokenize | kDetokenize | kEmbedding),
    done("prompt", kCompletion | kTokenize),
    done("messages", kChat),
    done("input", kResponse | kEmbedding),
    done("encoding_format", kEmbedding),
    done("dimensions", kEmbedding),
    done("instructions", kResponse),
    done("previous_response_id", kResponse),
    done("background", kResponse),
    done("store", kResponse),
    done("include", kResponse),
    done("truncation", kResponse, R"(["auto"])"),
    done("text", kResponse),
    done("max_tokens", kWriting),
    done("max_completion_tokens", kChat),
    done("max_output_tokens", kResponse),
    done("temperature", kCalls),
    done("top_p", kCalls),
    done("presence_penalty", kCalls),
    done("frequency_penalty", kCalls),
    done("logit_bias", kCalls, "[[]]"),
    done("seed", kCalls),
    done("n", kWriting),
    done("stop", kCalls),
    done("stream", kCalls),
    done("stream_options", kWriting),
    done("logprobs", kWriting, "[false]"),
    done("top_logprobs", kChat, "[0]"),
    done("top_logprobs", kResponse),
    done("echo", kCompletion),
    done("best_of", kCompletion),
    done("response_format", kWriting),
    done("modalities", kChat),
    done("tool_choice", kChat | kResponse),
    ignored("user", kCalls | kEmbedding),
    ignored("metadata", kCalls),
    ignored("store", kWriting),
    ignored("service_tier", kCalls),
    ignored("safety_identifier", kCalls),
    ignored("prompt_cache_key", kCalls),
    ignored("prompt_cache_retention", kCalls),
    ignored("parallel_tool_calls", kCalls),
    ignored("stream_options", kResponse),
    any("verbosity", kCalls),
    any("prediction", kChat),
    any("image", kResponse),
    any("background_options", kResponse),
    missing("suffix", kCompletion, "", R"([""])"),
    missing("tools", kChat | kResponse, "tool_choice"),
    missing("functions", kChat, "function_call"),
    missing("function_call", kChat, "", R"(["none", "auto"])"),
    missing("audio", kChat),
    missing("web_search_options", kChat),
    missing("reasoning_effort", kChat, "", R"(["none"])"),
    missing("reasoning", kResponse, "", "[]", kReasoning),
    missing("prompt", kResponse),
    missing("conversation", kResponse),
    any("max_tool_calls", kResponse),
    missing("context_management", kResponse),
    only("moderation", kCalls),
    only("access_programs", kResponse, "[{}]"),
    only("prompt_cache_options", kCalls, "[]", kCacheOptions),

    // Fields of OpenAI's nested objects.
    done("role", kWords), done("content", kWords), done("type", kItem | kPart), done("text", kPart),
    done("format", kText), ignored("verbosity", kText),
    done("include_usage", kStreamOptions), ignored("include_obfuscation", kStreamOptions),
    done("name", kMessage), ignored("refusal", kMessage), ignored("annotations", kMessage | kPart),
    ignored("logprobs", kPart),
    done("id", kItem), ignored("status", kItem), ignored("phase", kItem),
    done("tool_calls", kMessage, "[[]]"), done("tool_call_id", kMessage, R"([""])"), missing("function_call", kMessage), missing("audio", kMessage),
    only("effort", kReasoning, R"(["none"])"), any("summary", kReasoning), any("generate_summary", kReasoning),
    any("context", kReasoning), only("mode", kReasoning, R"(["standard"])"), any("exclude", kReasoning),
    only("enabled", kReasoning, "[false]"), only("max_tokens", kReasoning, "[0]"),
    any("mode", kCacheOptions), any("ttl", kCacheOptions), any("comparison_response_id", kCacheOptions),
    only("prewarm", kCacheOptions, "[false]"),

    // Fields that other servers' answers leave in messages, and caching hints.
    any("name", kItem), any("id", kMessage | kPart), any("cache_control", kWords | kPart),
    any("prompt_cache_breakpoint", kWords | kPart), done("reasoning_content", kMessage), done("reasoning", kMessage), done("thinking", kMessage),
    any("reasoning_content", kItem), any("reasoning", kItem), any("thinking", kItem),
    any("reasoning_details", kWords), any("thinking_blocks", kWords),
    any("provider_specific_fields", kWords), any("weight", kMessage), any("parsed", kWords | kPart),
    only("images", kMessage, "[[]]"), only("prefix", kMessage, "[false]"), only("partial", kMessage, "[false]"),
    only("refusal", kItem, R"([""])"),

    // Fields of vLLM, SGLang, llama.cpp, Ollama, text-generation-inference and transformers.
    done("top_k", kCalls), done("min_p", kCalls), done("repetition_penalty", kCalls), done("ignore_eos", kWriting),
    done("return_progress", kWriting),
    done("add_special_tokens", kCompletion | kTokenize | kEmbedding), added("pooling", kEmbedding),
    added("normalize", kEmbedding), same("pooling_type", kEmbedding, "pooling"), any("input_type", kEmbedding),
    only("truncate_prompt_tokens", kEmbedding, "[-1]"), only("embd_normalize", kEmbedding, "[2]"), done("add_special", kTokenize), done("content", kTokenize),
    done("tokens", kDetokenize),
    added("repeat_last_n", kCalls), added("do_sample", kCalls),
    same("repeat_penalty", kCalls, "repetition_penalty"), same("random_seed", kCalls, "seed"),
    same("stop_sequences", kCalls, "stop"),
    same("n_predict", kWriting, "max_tokens"), same("num_predict", kWriting, "max_tokens"),
    same("max_new_tokens", kWriting, "max_tokens"), same("max_completion_tokens", kCompletion, "max_tokens"),
    same("max_tokens", kResponse, "max_output_tokens"), same("max_completion_tokens", kResponse, "max_output_tokens"),
    same("num_return_sequences", kWriting, "n"), same("n_cmpl", kWriting, "n"),
    missing("guided_json", kCompletion), missing("guided_regex", kCompletion), missing("guided_choice", kCompletion),
    missing("guided_grammar", kCompletion), missing("grammar", kCompletion, "", R"([""])"),
    missing("use_beam_search", kCompletion),
    missing("chat_template", kChat, "", R"([""])"), added("chat_template_kwargs", kChat | kResponse),
    // Constraints on the output.
    only("guided_json", kChat | kResponse), only("guided_regex", kChat | kResponse),
    only("guided_choice", kChat | kResponse), only("guided_grammar", kChat | kResponse),
    only("guided_whitespace_pattern", kCalls), any("guided_decoding_backend", kCalls),
    only("structured_outputs", kCalls, "[{}]"), only("grammar", kChat | kResponse, R"([""])"),
    only("json_schema", kCalls), only("regex", kCalls, R"([""])"), only("ebnf", kCalls, R"([""])"),
    only("structural_tag", kCalls), only("format", kWriting, R"([""])"),
    only("min_tokens", kCalls, "[0]"), only("min_new_tokens", kCalls, "[0]"), only("min_length", kCalls, "[0]"),
    only("max_length", kCalls), only("stop_token_ids", kCalls, "[[]]"), only("bad_words", kCalls, "[[]]"),
    only("bad_words_ids", kCalls, "[[]]"), only("banned_tokens", kCalls, "[[]]"), only("banned_strings", kCalls, "[[]]"),
    only("allowed_token_ids", kCalls, "[[]]"), only("logits_processors", kCalls, "[[]]"),
    only("custom_logit_processor", kCalls, R"([""])"), only("thinking_token_budget", kCalls),
    // Sampling.
    only("use_beam_search", kChat | kResponse, "[false]"), only("num_beams", kCalls, "[1]"),
    only("num_beam_groups", kCalls, "[1]"), only("diversity_penalty", kCalls, "[0]"), any("length_penalty", kCalls),
    any("early_stopping", kCalls), only("best_of", kChat, "[1]"), only("n", kResponse, "[1]"),
    only("typical_p", kCalls, "[1]"), only("typ_p", kCalls, "[1]"), only("tfs_z", kCalls, "[1]"),
    only("top_a", kCalls, "[0]"), only("top_n_sigma", kCalls, "[-1, 0]"), only("epsilon_cutoff", kCalls, "[0]"),
    only("eta_cutoff", kCalls, "[0]"), only("smoothing_factor", kCalls, "[0]"), only("min_keep", kCalls, "[0, 1]"),
    only("dynatemp_range", kCalls, "[0]"), any("dynatemp_exponent", kCalls), only("xtc_probability", kCalls, "[0]"),
    any("xtc_threshold", kCalls), only("dry_multiplier", kCalls, "[0]"), any("dry_base", kCalls),
    any("dry_allowed_length", kCalls), any("dry_penalty_last_n", kCalls), any("dry_sequence_breakers", kCalls),
    only("mirostat", kCalls, "[0]"), only("mirostat_mode", kCalls, "[0]"), any("mirostat_tau", kCalls),
    any("mirostat_eta", kCalls), only("adaptive_target", kCalls, "[-1]"), any("adaptive_decay", kCalls),
    only("penalize_nl", kCalls, "[true]"), only("penalize_newline", kCalls, "[true]"), only("samplers", kCalls),
    only("no_repeat_ngram_size", kCalls, "[0]"), only("encoder_no_repeat_ngram_size", kCalls, "[0]"),
    only("encoder_repetition_penalty", kCalls, "[1]"), only("repetition_penalty_range", kCalls, "[0]"),
    only("penalty_alpha", kCalls, "[0]"), only("guidance_scale", kCalls, "[1]"), only("cfg_scale", kCalls, "[1]"),
    only("negative_prompt", kCalls, R"([""])"), only("watermark", kCalls, "[false]"),
    only("lora", kCalls, "[[]]"), only("lora_path", kCalls, R"([""])"),
    // Fields that would change the prompt: accepted only at values that change nothing.
    only("echo", kChat | kResponse, "[false]"), only("add_special_tokens", kChat, "[false]"),
    added("add_generation_prompt", kChat), added("continue_final_message", kChat), added("documents", kChat),
    only("template", kWriting, R"([""])"), only("system", kWriting, R"([""])"),
    only("context", kWriting, "[[]]"), only("images", kWriting, "[[]]"), only("safe_prompt", kCalls, "[false]"),
    only("prompt_mode", kCalls), only("prompt_embeds", kWriting), any("raw", kCompletion), only("raw", kChat, "[false]"),
    only("transforms", kCalls, "[[]]"), only("truncate_prompt_tokens", kCalls, "[-1]"), any("truncation_side", kCalls),
    only("truncate", kCalls, "[true, false]"), any("shift", kCalls), any("mm_processor_kwargs", kCalls),
    any("media_io_kwargs", kCalls), only("plugins", kCalls, "[[]]"), only("models", kCalls, "[[]]"),
    only("data_sources", kCalls, "[[]]"), only("suffix", kChat | kResponse, R"([""])"),
    // Reasoning, which no model has here.
    only("reasoning_effort", kCompletion | kResponse, R"(["none"])"), only("reasoning", kWriting, "[]", kReasoning),
    only("think", kCalls, "[false]"), only("enable_thinking", kCalls, "[false]"),
    only("thinking", kCalls, R"([false, {"type": "disabled"}])"),
    only("thinking_forced_open", kCalls, "[false]"), only("reasoning_budget", kCalls, "[-1, 0]"),
    any("include_reasoning", kCalls),
    any("reasoning_format", kCalls), any("reasoning_in_content", kCalls), any("separate_reasoning", kCalls),
    any("stream_reasoning", kCalls),
    // Contents of the answer.
    only("include_stop_str_in_output", kCalls, "[false]"), only("no_stop_trim", kCalls, "[false]"),
    only("skip_special_tokens", kCalls | kDetokenize, "[true]"), any("spaces_between_special_tokens", kCalls),
    only("detokenize", kCalls, "[true]"), only("prompt_logprobs", kCalls), only("logprob_token_ids", kCalls),
    only("top_logprobs", kCompletion, "[0]"), only("logprobs", kResponse, "[false]"), only("n_probs", kCalls, "[0]"),
    only("post_sampling_probs", kCalls, "[false]"), only("return_tokens", kCalls, "[false]"),
    only("return_token_ids", kCalls, "[false]"), only("return_tokens_as_token_ids", kCalls, "[false]"),
    only("return_full_text", kCalls, "[false]"), only("return_hidden_states", kCalls, "[false]"),
    only("return_progress", kResponse, "[false]"), only("timings_per_token", kCalls, "[false]"),
    only("response_fields", kCalls, "[[]]"), only("details", kCalls, "[false]"), only("top_n_tokens", kCalls, "[0]"),
    only("decoder_input_details", kCalls, "[false]"), any("usage", kCalls), any("parse_tool_calls", kCalls),
    only("continuous_usage_stats", kStreamOptions, "[false]"), only("with_pieces", kTokenize, "[false]"),
    only("return_token_strs", kTokenize, "[false]"), only("parse_special", kTokenize, "[true]"),
    // Scheduling and caching.
    any("cache_prompt", kCalls), any("id_slot", kCalls), any("slot_id", kCalls), any("priority", kCalls),
    any("request_id", kCalls), any("rid", kCalls), any("session_id", kCalls), any("keep_alive", kCalls),
    any("provider", kCalls), any("route", kCalls), any("use_cache", kCalls), any("n_keep", kCalls),
    any("n_discard", kCalls), any("backend_sampling", kCalls), any("drop_params", kCalls),
    only("n_indent", kCalls, "[0]"), only("t_max_predict_ms", kCalls, "[-1, 0]"),
    only("t_max_prompt_ms", kCalls, "[-1, 0]"), only("cache_salt", kCalls, R"([""])"),
    only("kv_transfer_params", kCalls, "[{}]"), only("vllm_xargs", kCalls, "[{}]"), only("extra_body", kCalls, "[{}]"),
    only("repetition_detection", kCalls), only("options", kCalls, "[]", kOllama),
    any("num_ctx", kCalls | kOllama), any("num_keep", kCalls | kOllama), any("num_batch", kCalls | kOllama),
    any("num_gpu", kCalls | kOllama), any("main_gpu", kCalls | kOllama), any("num_thread", kCalls | kOllama),
    any("use_mmap", kCalls | kOllama), any("use_mlock", kCalls | kOllama), any("low_vram", kCalls | kOllama),
    any("numa", kCalls | kOllama), any("f16_kv", kCalls | kOllama),
};
// clang-format on

// The values that `serve` has always accepted as absent.
bool asks_for_nothing(const Json& value) {
  const bool nothing = value.is_null() || (value.is_boolean() && !value.get<bool>());
  return nothing || (value.is_structured() && value.empty());
}

// Returns the object's first field that is not neutral; "" if all are.
std::string first_loud(const Json& object, Place place) {
  for (const auto& [key, value] : object.items()) {
    const Field* field = find_field(key, place);
    const bool quiet = field ? is_neutral(*field, value) : value.is_null();
    if (!quiet) return key;
  }
  return "";
}

}  // namespace

const std::vector<Field>& all_fields() {
  static const std::vector<Field> kAll(std::begin(kFields), std::end(kFields));
  return kAll;
}

const Field* find_field(const std::string& name, unsigned place) {
  const auto found = std::find_if(std::begin(kFields), std::end(kFields),
                                  [&](const Field& it) { return (it.places & place) != 0 && name == it.name; });
  return found == std::end(kFields) ? nullptr : found;
}

bool is_neutral(const Field& field, const Json& value, bool strict, std::string* why) {
  if (value.is_null() || field.use == Use::kAny) return true;
  if (field.use == Use::kNeutral && field.strict && asks_for_nothing(value)) return true;
  if (strict) return false;
  const Json values = Json::parse(field.values);
  if (std::find(values.begin(), values.end(), value) != values.end()) return true;
  if (field.inner != kNoPlace && value.is_object()) {
    const std::string loud = first_loud(value, field.inner);
    if (loud.empty()) return true;
    if (why) *why = concat(": \"", loud, "\" of it");
  } else if (why && !values.empty()) {
    std::vector<std::string> words;
    for (const Json& it : values) words.push_back(it.dump());
    *why = concat("; it can be left out, or be ", alternatives(words));
  }
  return false;
}

std::optional<std::string> slip_of(const std::string& word, const std::vector<std::string>& known) {
  for (const std::string& name : known) {
    if (name.size() >= 4 && edit_distance(word, name) == 1) return name;
  }
  return std::nullopt;
}

std::vector<std::string> field_names(unsigned place, bool strict) {
  std::vector<std::string> names;
  for (const Field& it : kFields) {
    if ((it.places & place) != 0 && (it.strict || !strict)) names.emplace_back(it.name);
  }
  return names;
}

}  // namespace cortado
