#include "cortado/tasks/registry.h"

#include "cortado/base/error.h"
#include "cortado/base/fields.h"
#include "cortado/tasks/image/image.h"
#include "cortado/tasks/listops/listops.h"
#include "cortado/tasks/mqar/mqar.h"
#include "cortado/tasks/pathfinder/files.h"
#include "cortado/tasks/pathfinder/pathfinder.h"
#include "cortado/tasks/regbench/regbench.h"
#include "cortado/tasks/retrieval/retrieval.h"
#include "cortado/tasks/text/text.h"

namespace cortado {
namespace {

// A task whose options say their fields.
template <typename Options>
auto opens(std::unique_ptr<TaskExamples> (*open)(const Options&)) {
  return [open](const Json& json, const std::string& place) { return open(from_fields<Options>(json, place)); };
}

}  // namespace

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> kinds = {
      {"mqar", "multi-query associative recall: keys and values, then keys whose value is asked for",
       [](const Json& json, const std::string& place) { return mqar_examples(mqar_options(json, place)); }},
      {"regbench", "in-context language learning: the next letter of strings of an automaton never seen",
       opens(regbench_examples)},
      {"listops", "Long Range Arena: the value of a long nested expression", opens(listops_examples), write_listops},
      {"pathfinder", "Long Range Arena: are two marked ends those of one snake, pixel by pixel",
       opens(pathfinder_examples), write_pathfinder},
      {"image", "Long Range Arena: what a picture of CIFAR-10 shows, pixel by pixel", opens(image_examples)},
      {"text", "Long Range Arena: is a film review of IMDB good, byte by byte", opens(text_examples)},
      {"retrieval", "Long Range Arena: does one of two papers of AAN cite the other, byte by byte",
       opens(retrieval_examples)},
  };
  return kinds;
}

const TaskKind& task_kind(const std::string& name) {
  std::vector<std::string> names;
  for (const TaskKind& kind : task_kinds()) names.push_back(kind.name);
  return task_kinds()[word_index(name, names, "task")];
}

std::unique_ptr<TaskExamples> open_task(const Json& task, const std::string& place) {
  fail_input_if(!task.is_object() || !task.contains("name") || !task["name"].is_string(), "[", place,
                "] expected an object with the task's \"name\"");
  Json settings = task;
  settings.erase("name");
  settings.erase("shuffle");
  return task_kind(task["name"].get<std::string>()).open(settings, place);
}

}  // namespace cortado
