#include "cortado/tokenizers/fitted_messages.h"

#include <algorithm>

namespace cortado {
namespace {

bool has_role(const Json& message, const char* role) {
  return message.is_object() && message.value("role", "") == role;
}

// Joins two contents, each a text or a list of parts, with an empty line between them.
Json joined(const Json& first, const Json& second) {
  if (first.is_string() && second.is_string()) return first.get<std::string>() + "\n\n" + second.get<std::string>();
  Json parts = Json::array();
  for (const Json* content : {&first, &second}) {
    if (content->is_string()) parts.push_back({{"type", "text"}, {"text", *content}});
    if (content->is_array()) parts.insert(parts.end(), content->begin(), content->end());
  }
  return parts;
}

}  // namespace

FittedMessages with_system_role(const Json& messages) {
  FittedMessages fitted{.messages = messages};
  for (size_t i = 0; i < messages.size(); ++i) {
    fitted.sources.push_back(static_cast<int32_t>(i));
    if (has_role(messages[i], "developer")) fitted.messages[i]["role"] = "system";
  }
  return fitted;
}

FittedMessages with_one_system(const Json& messages) {
  const FittedMessages all = with_system_role(messages);
  FittedMessages system, fitted;
  for (size_t i = 0; i < all.messages.size(); ++i) {
    const Json& message = all.messages[i];
    FittedMessages& to = has_role(message, "system") ? system : fitted;
    if (&to == &system && !system.messages.empty()) {
      Json& content = system.messages[0]["content"];
      content = joined(content, message.value("content", Json("")));
      continue;
    }
    to.messages.push_back(message);
    to.sources.push_back(all.sources[i]);
  }
  fitted.messages.insert(fitted.messages.begin(), system.messages.begin(), system.messages.end());
  fitted.sources.insert(fitted.sources.begin(), system.sources.begin(), system.sources.end());
  return fitted;
}

FittedMessages without_system(const Json& messages) {
  FittedMessages fitted = with_one_system(messages);
  if (fitted.messages.empty() || !has_role(fitted.messages[0], "system")) return fitted;
  const auto user = std::ranges::find_if(fitted.messages, [](const Json& it) { return has_role(it, "user"); });
  if (user == fitted.messages.end()) return fitted;
  (*user)["content"] = joined(fitted.messages[0].value("content", Json("")), user->value("content", Json("")));
  fitted.messages.erase(0);
  fitted.sources.erase(fitted.sources.begin());
  return fitted;
}

}  // namespace cortado
