#include "cortado/tokenizers/chat.h"

#include <algorithm>
#include <ctime>
#include <tuple>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/jinja.h"

namespace cortado {

// A chat style as strings. {bos} and {eos} stand for the texts of these tokens, {date} for today's date.
struct Chat::Form {
  const char* name;
  const char* begin;        // before the conversation
  const char* system_open;  // before the system message
  const char* system_close;
  const char* user_open;
  const char* user_close;
  const char* answer_open;   // asks for the assistant's answer
  const char* answer_space;  // between answer_open and the answer in a finished turn
  const char* answer_close;
  const char* after_answer;  // after the mark that ends the answer
  const char* default_system;
  bool system_apart;          // the system message is a turn of its own, not part of the first user message
  bool trims;                 // strips white space around the contents
  bool keeps_system = false;  // but not around a system message that is a turn of its own
};

namespace {

constexpr const char* kLlama31System =
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
constexpr const char* kLlama32System =
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: {date}\n\n";

const Chat::Form kForms[] = {
    {"chatml", "", "<|im_start|>system\n", "<|im_end|>\n", "<|im_start|>user\n", "<|im_end|>\n",
     "<|im_start|>assistant\n", "", "<|im_end|>", "\n", nullptr, true, false},
    {"llama2", "", "<<SYS>>\n", "\n<</SYS>>\n\n", "{bos}[INST] ", " [/INST]", "", " ", " {eos}", "", nullptr, false,
     true},
    {"mistral", "{bos}", "", "\n\n", " [INST] ", " [/INST]", "", " ", "{eos}", "", nullptr, false, false},
    {"mistral-v1", "{bos}", "", "\n\n", "[INST] ", " [/INST]", "", "", "{eos}", "", nullptr, false, false},
    {"mistral-v3", "{bos}", "", "\n\n", "[INST] ", "[/INST]", "", " ", "{eos}", "", nullptr, false, false},
    {"llama3", "{bos}", "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>",
     "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "", "<|eot_id|>", "", nullptr, true, true},
    {"llama3.1", "{bos}", kLlama31System, "<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n", "", "<|eot_id|>", "", "", true, true},
    {"llama3.2", "{bos}", kLlama32System, "<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n", "", "<|eot_id|>", "", "", true, true},
    {"gemma", "{bos}", "", "\n\n", "<start_of_turn>user\n", "<end_of_turn>\n", "<start_of_turn>model\n", "",
     "<end_of_turn>", "\n", nullptr, false, true},
    {"rwkv-world", "{bos}", "System: ", "\n\n", "User: ", "\n\n", "Assistant:", " ", "\n\n", "", nullptr, true, true,
     true},
};

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

// White space as Python defines it, and so Jinja's trim.
bool is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

std::string trimmed(const std::string& text) {
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(std::string_view(text).substr(at));
    const size_t next = at + static_cast<size_t>(std::max(c.length, 1));  // an invalid byte is no space
    if (c.length == 0 || !is_space(c.code)) {
      begin = std::min(begin, at);
      end = next;
    }
    at = next;
  }
  return begin < end ? text.substr(begin, end - begin) : "";
}

// Equals strftime_now("%d %b %Y") in a template.
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%d %b %Y", &local)};
}

// Converts a string of a form to a Jinja expression.
std::string expression(const std::string& text) {
  static const std::pair<std::string_view, std::string_view> kMarks[] = {
      {"{bos}", "(bos_token or '')"},
      {"{eos}", "(eos_token or '')"},
      {"{date}", "(strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024')"}};
  std::string joined;
  const auto add = [&](std::string_view part) { joined += concat(joined.empty() ? "" : " + ", part); };
  for (size_t at = 0; at < text.size();) {
    size_t next = text.size();
    std::pair<std::string_view, std::string_view> mark;
    for (const auto& known : kMarks) {
      const size_t place = text.find(known.first, at);
      if (place < next) std::tie(next, mark) = std::pair(place, known);
    }
    if (next > at) add(Json(text.substr(at, next - at)).dump());
    if (!mark.first.empty()) add(mark.second);
    at = next + mark.first.size();
  }
  return joined.empty() ? "''" : joined;
}

// The conversation as plain text: an answer directly follows the text that it continues; each other message begins a
// new line.
std::string as_text(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    text += concat(i > 0 && messages[i].role != "assistant" ? "\n" : "", messages[i].content);
  }
  return text;
}

// A model without a chat template is recognised by its tokens.
ChatStyle style_by_tokens(const std::function<bool(std::string_view)>& has_token) {
  for (const auto& [mark, name] :
       {std::pair("<|im_start|>", "chatml"), std::pair("<|start_header_id|>", "llama3"),
        std::pair("<start_of_turn>", "gemma"), std::pair("<<SYS>>", "llama2"), std::pair("[INST]", "mistral-v3")}) {
    if (has_token(mark)) return {name, ""};
  }
  return {};
}

// The white space around the contents shows whether a template trims them. The first two conversations have no system
// message, so they show the model's default one; the last two end with a request for an answer.
const std::vector<TemplateProbe> kProbes = {
    {{{"user", " \u00a0What is\n2+2? \u3000"}, {"assistant", " 4.\n"}}, false},
    {{{"user", "Hello "}}, true},
    {{{"system", " Be brief. "}, {"user", " Name\none. "}, {"assistant", "Tea. "}, {"user", "Why?"}}, true}};

// The system message in `rendered`, a conversation that has none of its own. Only templates of ChatML differ in it.
std::string default_system(const Chat::Form& form, const std::string& rendered) {
  const std::string open = form.system_open, close = concat(form.system_close, form.user_open);
  if (std::string_view(form.name) != "chatml" || !rendered.starts_with(open)) return "";
  const size_t end = rendered.find(close, open.size());
  return end == std::string::npos ? "" : rendered.substr(open.size(), end - open.size());
}

// Whether `chat` renders the probes as the template did. The template may refuse the last probe, which has a system
// message.
bool writes_the_same(const Chat& chat, const std::vector<std::optional<std::string>>& texts) {
  for (size_t i = 0; i < kProbes.size(); ++i) {
    const bool refused = !texts[i] && i + 1 == kProbes.size();
    if (!refused && texts[i] != chat.render(kProbes[i].messages, kProbes[i].ask)) return false;
  }
  return true;
}

}  // namespace

ChatStyle detect_chat_style(const std::string& chat_template, const std::string& begin, const std::string& end,
                            const std::function<bool(std::string_view)>& has_token) {
  if (chat_template.empty()) return style_by_tokens(has_token);
  if (chat_template == "rwkv-world") return {chat_template, ""};  // GGUF files of older converters have the name alone
  const RenderedProbes rendered = render_by_jinja(chat_template, kProbes, begin, end);
  if (!rendered.problem.empty()) return {"", "", rendered.problem};
  std::string known;
  for (const Chat::Form& form : kForms) {
    ChatStyle style{form.name, default_system(form, rendered.texts.front().value_or(""))};
    if (writes_the_same(Chat(style, begin, end), rendered.texts)) return style;
    known += concat(known.empty() ? "" : ", ", form.name);
  }
  return {"", "", concat("its chat template writes conversations as none of those known here: ", known)};
}

Chat::Chat(const ChatStyle& style, const std::string& begin, const std::string& end, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer), begin_(begin) {
  const auto* const form =
      std::find_if(std::begin(kForms), std::end(kForms), [&](const Form& f) { return style.name == f.name; });
  fail_input_if(form == std::end(kForms), "[chat] unknown chat template \"", style.name, "\"");
  form_ = form;
  end_of_turn_ = replaced(form->answer_close, "{eos}", end);
  system_ = style.system;
}

namespace {

// The tokenizer's chat style. InputError if the model was not trained to chat, or in a style that is not known here.
const ChatStyle& chat_of(const Tokenizer& tokenizer) {
  const ChatStyle& style = tokenizer.special().chat;
  fail_input_if(!style.problem.empty(), "[chat] ", style.problem);
  fail_input_if(style.name.empty(),
                "[chat] the model's tokenizer has no chat template: this model was not taught to chat");
  return style;
}

std::string text_of(const Tokenizer& tokenizer, int32_t token) { return token < 0 ? "" : tokenizer.decode({token}); }

}  // namespace

Chat::Chat(const Tokenizer& tokenizer)
    : Chat(chat_of(tokenizer), text_of(tokenizer, tokenizer.special().begin),
           text_of(tokenizer, tokenizer.special().end), &tokenizer) {}

std::string Chat::expanded(const char* text) const {
  return replaced(replaced(text, "{bos}", begin_), "{date}", today());
}

Chat Chat::or_text(const Tokenizer& tokenizer) {
  const ChatStyle& style = tokenizer.special().chat;
  return style.taught() ? Chat(tokenizer) : Chat(&tokenizer);
}

std::string Chat::render(const std::vector<ChatMessage>& messages, bool ask) const {
  if (!form_) return as_text(messages);
  const auto clean = [&](const std::string& content) { return form_->trims ? trimmed(content) : content; };
  std::string text = expanded(form_->begin);
  size_t first = 0;
  std::string system = system_;
  bool has_system = !system_.empty() || form_->default_system;
  if (!messages.empty() && messages[0].role == "system") {
    system = messages[0].content;
    has_system = true;
    first = 1;
  }
  const bool plain = !form_->system_apart || form_->keeps_system;
  std::string head =
      has_system ? concat(expanded(form_->system_open), plain ? system : clean(system), form_->system_close) : "";
  if (form_->system_apart) text += std::exchange(head, "");
  for (size_t i = first; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    fail_input_if(role != "user" && role != "assistant", "[chat] message ", i + 1,
                  ": expected the role user or assistant (or system, of the first), got \"", role, "\"");
    if (role == "user") {
      text += expanded(form_->user_open) + clean(std::exchange(head, "") + content) + form_->user_close;
    } else {
      text += concat(form_->answer_open, form_->answer_space, clean(content), end_of_turn_, form_->after_answer);
    }
  }
  return ask ? text + form_->answer_open : text;
}

std::string Chat::jinja() const {
  const Form& form = *form_;
  const std::string trim = form.trims ? " | trim" : "";
  const bool always = !system_.empty() || form.default_system;
  // The system message with its marks: written at once, or before the first user message.
  const std::string system = expression(form.system_open) + " + " +
                             (form.system_apart && !form.keeps_system ? "(ns.system" + trim + ")" : "ns.system") +
                             " + " + expression(form.system_close);
  return concat(
      "{%- set ns = namespace(system=", Json(system_).dump(), ", has=", always ? "true" : "false", ", head='') -%}\n",
      "{%- if messages and messages[0]['role'] == 'system' -%}\n",
      "{%- set ns.system = messages[0]['content'] -%}{%- set ns.has = true -%}{%- set turns = messages[1:] -%}\n",
      "{%- else -%}{%- set turns = messages -%}{%- endif -%}\n", "{{- ", expression(form.begin), " -}}\n",
      "{%- if ns.has -%}", form.system_apart ? "{{- " + system + " -}}" : "{%- set ns.head = " + system + " -%}",
      "{%- endif -%}\n", "{%- for message in turns -%}\n", "{%- if message['role'] == 'user' -%}\n", "{{- ",
      expression(form.user_open), " + ((ns.head + message['content'])", trim, ") + ", expression(form.user_close),
      " -}}{%- set ns.head = '' -%}\n", "{%- elif message['role'] == 'assistant' -%}\n", "{{- ",
      expression(concat(form.answer_open, form.answer_space)), " + (message['content']", trim, ") + ",
      expression(concat(form.answer_close, form.after_answer)), " -}}\n",
      "{%- else -%}{{- raise_exception('expected the role user or assistant, or system of the first') -}}{%- endif "
      "-%}\n",
      "{%- endfor -%}\n", "{%- if add_generation_prompt -%}{{- ", expression(form.answer_open), " -}}{%- endif -%}\n");
}

std::string Chat::next(const std::vector<ChatMessage>& messages, const std::vector<ChatMessage>& more) const {
  std::vector<ChatMessage> all = messages;
  all.insert(all.end(), more.begin(), more.end());
  return concat(form_ ? form_->after_answer : "", render(all, true).substr(render(messages, false).size()));
}

std::vector<int32_t> Chat::encode(const std::vector<ChatMessage>& messages, bool ask) const {
  const std::string text = render(messages, ask);
  return form_ ? tokenizer_->encode(text) : encode_prompt(*tokenizer_, text);
}

std::vector<std::vector<int32_t>> Chat::encode_beginnings(const std::vector<ChatMessage>& messages,
                                                          const std::vector<size_t>& counts) const {
  const std::string text = render(messages, true);
  std::vector<size_t> lengths = {text.size()};
  for (const size_t count : counts) {
    const std::string part = render({messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count)}, false);
    if (text.starts_with(part)) lengths.push_back(part.size());
  }
  auto all = tokenizer_->encode_beginnings(text, lengths);
  const auto& prefix = tokenizer_->special().prefix;
  for (auto& tokens : all) {
    if (!form_) tokens.insert(tokens.begin(), prefix.begin(), prefix.end());
  }
  return all;
}

std::vector<int32_t> Chat::encode_next(const std::vector<ChatMessage>& messages, const std::vector<ChatMessage>& more,
                                       bool ended) const {
  const std::string text = (ended ? "" : end_of_turn_) + next(messages, more);
  std::vector<int32_t> tokens = tokenizer_->encode(text);
  // Some tokenizers put a space before every text, but this text continues another one.
  const bool space = !form_ && !text.starts_with(' ') && !tokens.empty() && tokenizer_->piece(tokens[0]) == " ";
  if (space) tokens.erase(tokens.begin());
  return tokens;
}

}  // namespace cortado
