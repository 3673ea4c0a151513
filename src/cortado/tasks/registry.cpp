#include "cortado/tasks/registry.h"

#include "cortado/base/error.h"

namespace cortado {

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> kinds = {mqar_task(),  regbench_task(), listops_task(),  pathfinder_task(),
                                              image_task(), text_task(),     retrieval_task()};
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
