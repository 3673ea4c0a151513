// The templates of models that come without one, and those that earlier versions stored by their names.
#include <utility>

#include "cortado/tokenizers/chat.h"

namespace cortado {
namespace {

constexpr const char* kChatml =
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n";

// {head}: what precedes the conversation's own system message, or stands in its place.
constexpr const char* kLlama3 =
    "{{- bos_token or '' -}}\n"
    "{head}"
    "{%- for message in turns -%}\n"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + (message['content'] or '') | trim + "
    "'<|eot_id|>' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}\n";
constexpr const char* kDated =
    "{%- set ns = namespace(system='', turns=messages) -%}\n"
    "{%- if messages and messages[0]['role'] == 'system' -%}\n"
    "{%- set ns.system = messages[0]['content'] | trim -%}{%- set ns.turns = messages[1:] -%}\n"
    "{%- endif -%}{%- set turns = ns.turns -%}\n"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\nToday Date: ' + "
    "{date} + '\\n\\n' + "
    "ns.system + '<|eot_id|>' -}}\n";

// The system message is a part of the first question. {head}, {system}, {user}, {answer}: how the parts are written.
constexpr const char* kJoined =
    "{%- set ns = namespace(head='', turns=messages) -%}\n"
    "{%- if messages and messages[0]['role'] == 'system' -%}\n"
    "{%- set ns.head = {system} -%}{%- set ns.turns = messages[1:] -%}\n"
    "{%- endif -%}\n"
    "{{- {head} -}}\n"
    "{%- for message in ns.turns -%}\n"
    "{%- if message['role'] == 'user' -%}\n"
    "{%- set content = ns.head + message['content'] -%}{%- set ns.head = '' -%}\n"
    "{{- {user} -}}\n"
    "{%- elif message['role'] == 'assistant' -%}\n"
    "{%- set content = message['content'] or '' -%}\n"
    "{{- {answer} -}}\n"
    "{%- else -%}{{- raise_exception('expected the role user or assistant, or system of the first message, got ' + "
    "message['role']) -}}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- {ask} -}}{%- endif -%}\n";

constexpr const char* kRwkvWorld =
    "{%- for message in messages -%}\n"
    "{%- if message['role'] == 'system' -%}{{- 'System: ' + message['content'] -}}\n"
    "{%- elif message['role'] == 'user' -%}{{- 'User: ' + message['content'] | trim -}}\n"
    "{%- elif message['role'] == 'assistant' -%}{{- 'Assistant: ' + (message['content'] or '') | trim -}}\n"
    "{%- else -%}{{- raise_exception('expected the role system, user or assistant, got ' + message['role']) -}}\n"
    "{%- endif -%}{{- '\\n\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}\n";

using Parts = std::vector<std::pair<std::string_view, std::string_view>>;

std::string filled(std::string text, const Parts& parts) {
  for (const auto& [name, part] : parts) {
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + part.size())) {
      text.replace(at, name.size(), part);
    }
  }
  return text;
}

std::string mistral(std::string_view user, std::string_view answer) {
  return filled(kJoined, {{"{head}", "bos_token or ''"},
                          {"{system}", "messages[0]['content'] + '\\n\\n'"},
                          {"{user}", user},
                          {"{answer}", answer},
                          {"{ask}", "''"}});
}

}  // namespace

std::string known_chat_template(const std::string& name, const std::string& system) {
  if (name == "chatml") {
    const std::string own = "{%- if messages and messages[0]['role'] != 'system' -%}{{- '<|im_start|>system\\n' + " +
                            Json(system).dump() + " + '<|im_end|>\\n' -}}{%- endif -%}\n";
    return (system.empty() ? "" : own) + kChatml;
  }
  if (name == "llama3") return filled(kLlama3, {{"{head}", "{%- set turns = messages -%}\n"}});
  if (name == "llama3.1") return filled(kLlama3, {{"{head}", kDated}, {"{date}", "'26 Jul 2024'"}});
  if (name == "llama3.2") return filled(kLlama3, {{"{head}", kDated}, {"{date}", "strftime_now('%d %b %Y')"}});
  if (name == "llama2") {
    return filled(kJoined, {{"{head}", "''"},
                            {"{system}", "'<<SYS>>\\n' + messages[0]['content'] | trim + '\\n<</SYS>>\\n\\n'"},
                            {"{user}", "(bos_token or '') + '[INST] ' + content | trim + ' [/INST]'"},
                            {"{answer}", "' ' + content | trim + ' ' + (eos_token or '')"},
                            {"{ask}", "''"}});
  }
  if (name == "mistral") return mistral("' [INST] ' + content + ' [/INST]'", "' ' + content + (eos_token or '')");
  if (name == "mistral-v1") return mistral("'[INST] ' + content + ' [/INST]'", "content + (eos_token or '')");
  if (name == "mistral-v3") return mistral("'[INST] ' + content + '[/INST]'", "' ' + content + (eos_token or '')");
  if (name == "gemma") {
    return filled(kJoined, {{"{head}", "bos_token or ''"},
                            {"{system}", "messages[0]['content'] | trim + '\\n\\n'"},
                            {"{user}", "'<start_of_turn>user\\n' + content | trim + '<end_of_turn>\\n'"},
                            {"{answer}", "'<start_of_turn>model\\n' + content | trim + '<end_of_turn>\\n'"},
                            {"{ask}", "'<start_of_turn>model\\n'"}});
  }
  return name == "rwkv-world" ? kRwkvWorld : "";
}

std::string chat_template_by_tokens(const std::function<bool(std::string_view)>& has_token) {
  for (const auto& [mark, name] :
       {std::pair("<|im_start|>", "chatml"), std::pair("<|start_header_id|>", "llama3"),
        std::pair("<start_of_turn>", "gemma"), std::pair("<<SYS>>", "llama2"), std::pair("[INST]", "mistral-v3")}) {
    if (has_token(mark)) return known_chat_template(name);
  }
  return "";
}

}  // namespace cortado
