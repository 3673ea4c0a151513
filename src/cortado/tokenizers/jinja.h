// Chat templates in Jinja's language, rendered by its own library.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cortado/tokenizers/chat.h"

namespace cortado {

struct TemplateProbe {
  std::vector<ChatMessage> messages;
  bool ask;  // add_generation_prompt
};

struct RenderedProbes {
  std::vector<std::optional<std::string>> texts;  // none: the template refuses the conversation
  std::string problem;                            // not empty: why there is nothing
};

// As transformers renders them, by the jinja2 of a Python: $CORTADO_PYTHON, or the one whose torch this is (torch needs
// jinja2), or python3. In a sandbox: no template can do more than take ten seconds.
RenderedProbes render_by_jinja(const std::string& chat_template, const std::vector<TemplateProbe>& probes,
                               const std::string& begin, const std::string& end);

}  // namespace cortado
