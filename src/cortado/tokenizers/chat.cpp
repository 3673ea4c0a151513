#include "cortado/tokenizers/chat.h"

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/tokenizers/fitted_messages.h"

namespace cortado {
namespace {

constexpr size_t kLongestTemplate = size_t{1} << 20;

// The text of a message: its content, or the joined texts of the content's parts.
std::string words_of(const Json& message) {
  const Json content = message.value("content", Json());
  if (content.is_string()) return content.get<std::string>();
  std::string joined;
  for (const Json& part : content.is_array() ? content : Json::array()) {
    if (part.is_object() && part.value("text", Json()).is_string()) joined += part.at("text").get<std::string>();
  }
  return joined;
}

// The conversation of a model without a template.
jinja::Text plain_text(const Json& messages) {
  jinja::Text text;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i > 0 && messages[i].value("role", "") != "assistant") text.write("\n");
    text.append(jinja::Text::typed(words_of(messages[i]), static_cast<int32_t>(i)));
  }
  return text;
}

// As transformers does: the thoughts of a message under every name that templates read.
void alias_thoughts(Json& message) {
  if (!message.is_object()) return;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Json thoughts = message.value(name, Json());
    if (thoughts.is_null()) continue;
    if (!message.contains("thinking")) message["thinking"] = thoughts;
    message["reasoning_content"] = thoughts;
    return;
  }
}

// As transformers continues a message: a mark at its end shows where the rendered text must stop.
constexpr std::string_view kHere = "CONTINUE_FINAL_MESSAGE_TAG ";

void mark_end(Json& messages) {
  fail_input_if(messages.empty(), "[chat] continue_final_message: there is no message to continue");
  Json& content = messages.back()["content"];
  if (content.is_string()) {
    content = content.get<std::string>() + std::string(kHere);
    return;
  }
  for (size_t i = content.is_array() ? content.size() : 0; i-- > 0;) {
    if (!content[i].is_object() || !content[i].value("text", Json()).is_string()) continue;
    content[i]["text"] = content[i]["text"].get<std::string>() + std::string(kHere);
    return;
  }
  throw InputError("[chat] continue_final_message: the last message has no text to continue");
}

jinja::Text cut_at_mark(jinja::Text text) {
  const std::string_view mark = kHere.substr(0, kHere.size() - 1);
  const size_t at = text.bytes().rfind(mark);
  fail_input_if(at == std::string::npos, "[chat] continue_final_message: the template leaves the last message out");
  const bool whole = std::string_view(text.bytes()).substr(at).starts_with(kHere);
  text.truncate(at);
  return whole ? text : strip(text, false, true);
}

}  // namespace

Json chat_message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

Chat::Chat(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), own_(Json::object()) {
  const SpecialTokens& special = tokenizer.special();
  if (!special.chat.taught()) return;
  const auto compile = [&](const std::string& source) -> std::optional<jinja::Template> {
    try {
      fail_input_if(source.size() > kLongestTemplate, "it is too long");
      return jinja::Template(source);
    } catch (const InputError& error) {
      if (problem_.empty()) problem_ = concat("the model's chat template cannot be used: ", error.what());
      return {};
    }
  };
  default_ = compile(special.chat.text);
  for (const auto& [name, source] : special.chat.named) {
    if (name == "tool_use") tools_ = compile(source);
  }
  for (const auto& [name, id] : {std::pair("bos_token", special.begin), std::pair("eos_token", special.end),
                                 std::pair("unk_token", special.unknown), std::pair("pad_token", special.padding)}) {
    if (id >= 0) own_[name] = tokenizer.decode({id});
  }
}

void Chat::need_template() const {
  fail_input_if(!problem_.empty(), "[chat] ", problem_);
  fail_input_if(!default_, "[chat] the model's tokenizer has no chat template: this model was not taught to chat");
}

const jinja::Template& Chat::template_for(const ChatOptions& options) const {
  return tools_ && !options.tools.is_null() ? *tools_ : *default_;
}

jinja::Text Chat::render(const Json& messages, const ChatOptions& options) const {
  const auto has_role = [&](const char* role) {
    return std::ranges::any_of(messages,
                               [&](const Json& it) { return it.is_object() && it.value("role", "") == role; });
  };
  const bool developer = has_role("developer"), any = developer || has_role("system");
  if (!options.fits || !default_ || !any) return render_as_is(messages, options);
  const auto fitted = [&](const FittedMessages& fit) {
    jinja::Text text = render_as_is(fit.messages, options);
    text.rename_sources(fit.sources);
    return text;
  };
  const bool knows = tokenizer_->special().chat.text.find("developer") != std::string::npos;
  try {
    return developer && !knows ? fitted(with_system_role(messages)) : render_as_is(messages, options);
  } catch (const InputError&) {
    for (const auto& fit : {with_one_system, without_system}) {
      try {
        return fitted(fit(messages));
      } catch (const InputError&) {  // the template's first refusal says most
      }
    }
    throw;
  }
}

jinja::Text Chat::render_as_is(const Json& messages, const ChatOptions& options) const {
  fail_input_if(!problem_.empty(), "[chat] ", problem_);
  if (!default_) return plain_text(messages);
  Json given = options.more;
  given["messages"] = messages;
  for (Json& message : given["messages"]) alias_thoughts(message);
  if (options.continues) mark_end(given["messages"]);
  given["tools"] = options.tools;
  given["documents"] = options.documents;
  given["add_generation_prompt"] = options.ask && !options.continues;
  Json own = Json::object();
  for (const auto& [name, value] : own_.items()) {
    if (!given.contains(name)) own[name] = value;
  }
  try {
    jinja::Text text = template_for(options).render(given, own, options.now);
    return options.continues ? cut_at_mark(std::move(text)) : text;
  } catch (const jinja::Error& error) {
    throw InputError(concat("[chat] the model's chat template refuses the conversation: ", error.what()));
  }
}

EncodedChat Chat::encode(const jinja::Text& text, const std::vector<size_t>& divergences) const {
  std::vector<size_t> lengths;
  for (const size_t message : divergences) {
    const auto first = std::ranges::find_if(
        text.typed(), [&](const jinja::Typed& it) { return it.source == static_cast<int32_t>(message); });
    if (first != text.typed().end()) lengths.push_back(first->begin);
  }
  EncodedChat encoded = tokenizer_->encode_chat(text, tokenizer_->special().chat.text, lengths);
  if (default_) return encoded;
  const auto& prefix = tokenizer_->special().prefix;
  encoded.tokens.insert(encoded.tokens.begin(), prefix.begin(), prefix.end());
  for (int64_t& shared : encoded.shared) shared += static_cast<int64_t>(prefix.size());
  return encoded;
}

// Where the last bytes of a message end in the text.
std::optional<size_t> Chat::end_of(const jinja::Text& text, size_t message) const {
  const auto& typed = text.typed();
  const auto last = std::find_if(typed.rbegin(), typed.rend(),
                                 [&](const jinja::Typed& it) { return it.source == static_cast<int32_t>(message); });
  return last == typed.rend() ? std::nullopt : std::optional(last->end);
}

std::optional<std::vector<int32_t>> Chat::encode_next(const jinja::Text& text, size_t answered, int32_t last) const {
  const auto end = end_of(text, answered);
  if (!end) return {};
  const SpecialTokens& special = tokenizer_->special();
  const std::string_view rest = std::string_view(text.bytes()).substr(*end);
  const auto encoded = [&](size_t begin) {
    return tokenizer_->encode_chat(text.part(begin, text.size()), special.chat.text).tokens;
  };
  std::vector<int32_t> tokens = encoded(*end);
  if (default_ && special.is_stop(last) && !tokens.empty()) {  // the model has written the mark that ends its turn
    const std::string mark = tokenizer_->piece(last);
    if (special.is_stop(tokens[0])) {
      tokens.erase(tokens.begin());
    } else if (!mark.empty() && rest.starts_with(mark)) {
      tokens = encoded(*end + mark.size());
    }
  }
  // Some tokenizers put a space before every text, but this text continues another one.
  const bool space = !default_ && !rest.starts_with(' ') && !tokens.empty() && tokenizer_->piece(tokens[0]) == " ";
  if (space) tokens.erase(tokens.begin());
  return tokens;
}

bool Chat::keeps(const jinja::Text& text, const Json& messages, size_t answered, const ChatOptions& options) const {
  Json before = Json::array();
  for (size_t i = 0; i < answered; ++i) before.push_back(messages[i]);
  const jinja::Text prompt = render(before, options);
  if (!text.bytes().starts_with(prompt.bytes())) return false;
  const auto clean = [](const jinja::Text& some) { return strip(some, true, true).bytes(); };
  const size_t end = end_of(text, answered).value_or(prompt.size());
  return end >= prompt.size() && clean(text.part(prompt.size(), end)) == clean(words_of(messages[answered]));
}

}  // namespace cortado
