// torch.ops.cortado.asked_settings: lists the settings that a config can have. scripts/settings.py writes documentation
// from it.
#include <torch/library.h>

#include "cortado/base/asked_keys.h"
#include "cortado/models/config.h"
#include "cortado/nn/initialization.h"
#include "cortado/tasks/registry.h"
#include "cortado/train/options.h"

namespace cortado {
namespace {

void read_settings(const std::string& kind, const Json& settings) {
  if (kind == "config") {
    ModelConfig::from_json(settings, kind);
  } else if (kind == "training") {
    TrainingOptions::from_json(settings, kind);
  } else {
    open_task(settings, kind);
  }
}

// Returns the keys that are asked for when this object is read, in order, as JSON: [{"place": "config.head", "name":
// "classes", "expected": ..., "default": ..., "words": [...]}]. If the object is refused, returns the keys up to the
// error. `kind` is "config", "training" or "task"; "tasks" lists the names of all tasks with descriptions.
std::string asked_settings(const std::string& kind, const std::string& text) {
  Json found = Json::array();
  if (kind == "tasks") {
    for (const TaskKind& task : task_kinds()) found.push_back({{"name", task.name}, {"about", task.about}});
    return found.dump();
  }
  fail_input_if(kind != "config" && kind != "training" && kind != "task",
                "[settings] expected config, training, task or tasks, got ", kind);
  const KeptGenerator kept;
  const Json settings = parse_json(text, "settings");
  const AskedKeys asked;
  try {
    read_settings(kind, settings);
  } catch (const InputError&) {
    // The object lacks another key or has a wrong value. The caller varies the object to reach the remaining keys.
  }
  for (const auto& [place, question] : asked.keys()) {
    found.push_back({{"place", place},
                     {"name", question.key},
                     {"expected", question.expected},
                     {"default", question.fallback},
                     {"words", question.words}});
  }
  return found.dump();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) { m.def("asked_settings(str kind, str settings) -> str", asked_settings); }

}  // namespace cortado
