// Renders chat templates with the jinja2 library.
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
  std::vector<std::optional<std::string>> texts;  // nullopt: the template refuses the conversation
  std::string problem;                            // if not empty: why there are no texts
};

// Renders the probes as transformers does, with the jinja2 of a Python: $CORTADO_PYTHON, or else that of the
// environment torch is installed in (torch depends on jinja2), or python3. The template runs in a sandbox, with at most
// ten seconds of CPU time.
RenderedProbes render_by_jinja(const std::string& chat_template, const std::vector<TemplateProbe>& probes,
                               const std::string& begin, const std::string& end);

}  // namespace cortado
