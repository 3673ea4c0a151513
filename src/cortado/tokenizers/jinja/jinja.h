// Jinja, the language of chat templates: a template is compiled once and rendered for each conversation.
#pragma once

#include <ctime>
#include <memory>
#include <string>

#include "cortado/base/json.h"
#include "cortado/tokenizers/jinja/error.h"
#include "cortado/tokenizers/jinja/text.h"

namespace cortado::jinja {

struct Program;

// Renders like jinja2's ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks, loop controls, and the filters and
// functions that transformers adds. Safe to use from several threads.
class Template {
 public:
  // Throws Error (an InputError) with the line.
  explicit Template(const std::string& source);

  // `given` (an object) are the client's variables: their texts are typed. In the list `messages` of it, those of a
  // message are typed by its index. `written` (an object) are the server's own, such as bos_token. Throws Error if the
  // template refuses them or exceeds a limit.
  Text render(const Json& given, const Json& written, std::time_t now) const;

 private:
  std::shared_ptr<const Program> program_;
};

}  // namespace cortado::jinja
