#include "cortado/tokenizers/jinja/jinja.h"

#include "cortado/tokenizers/jinja/renderer.h"

namespace cortado::jinja {
namespace {

// The bytes of all texts in a value, about.
size_t text_bytes(const Json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().size();
  size_t bytes = 16;
  for (const Json& item : json) {
    if (item.is_structured() || item.is_string()) bytes += text_bytes(item);
  }
  return bytes;
}

}  // namespace

Template::Template(const std::string& source) : program_(std::make_shared<const Program>(parse(source))) {}

Text Template::render(const Json& given, const Json& written, std::time_t now) const {
  Budget budget(text_bytes(given));
  Renderer run(*program_, budget, now);
  for (const auto& [name, value] : given.items()) {
    if (name != "messages" || !value.is_array()) {
      run.define(name, run.heap().from_json(value, Typed::kOther));
      continue;
    }
    std::vector<Value> messages;
    for (const Json& message : value) {
      messages.push_back(run.heap().from_json(message, static_cast<int32_t>(messages.size())));
    }
    run.define(name, run.heap().list(std::move(messages)));
  }
  for (const auto& [name, value] : written.items()) run.define(name, run.heap().from_json(value, {}));
  return run.run();
}

}  // namespace cortado::jinja
