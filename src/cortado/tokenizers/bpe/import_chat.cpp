#include <algorithm>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/bpe/imports.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {
namespace {

std::string read_template(const std::string& file) {
  std::string text = read_file(file);
  fail_input_if(utf8_valid_prefix(text) != text.size(), "[", file, "] is not UTF-8 text");
  return text;
}

void add_template(ChatTemplates& chat, const std::string& name, const std::string& text) {
  if (name == "default") {
    chat.text = text;
    return;
  }
  std::erase_if(chat.named, [&](const auto& known) { return known.first == name; });
  chat.named.emplace_back(name, text);
}

}  // namespace

// Files of templates replace those of tokenizer_config.json.
ChatTemplates chat_templates_of(const std::string& folder, const Json& config) {
  namespace fs = std::filesystem;
  ChatTemplates chat;
  const Json value = config.value("chat_template", Json());
  if (value.is_string()) chat.text = value.get<std::string>();
  for (const auto& item : value.is_array() ? value : Json::array()) {  // several named templates
    if (item.is_object()) add_template(chat, item.value("name", ""), item.value("template", ""));
  }
  const std::string file = folder + "/chat_template.jinja", others = folder + "/additional_chat_templates";
  if (fs::exists(file)) chat.text = read_template(file);
  if (fs::is_directory(others)) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(others)) {
      if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths) add_template(chat, path.stem().string(), read_template(path.string()));
  }
  if (chat.text.empty() && !chat.named.empty()) chat.text = chat.named.front().second;
  return chat;
}

void complete_special(BpeDefinition& definition, const ChatTemplates& chat) {
  SpecialTokens& special = definition.special;
  const auto is_added = [&](std::string_view text) {
    return std::any_of(definition.added.begin(), definition.added.end(),
                       [&](const AddedToken& token) { return token.text == text; });
  };
  if (special.end >= 0) special.stops.push_back(special.end);
  static constexpr std::string_view kEnds[] = {"<|im_end|>",      "<|eot_id|>",    "<|eom_id|>",
                                               "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>"};
  for (const AddedToken& token : definition.added) {
    if (std::find(std::begin(kEnds), std::end(kEnds), token.text) != std::end(kEnds)) special.stops.push_back(token.id);
  }
  std::sort(special.stops.begin(), special.stops.end());
  special.stops.erase(std::unique(special.stops.begin(), special.stops.end()), special.stops.end());
  special.chat = chat;
  if (chat.text == "rwkv-world") special.chat.text = known_chat_template(chat.text);  // older converters write the name
  if (!chat.taught()) special.chat.text = chat_template_by_tokens(is_added);
}

}  // namespace cortado
