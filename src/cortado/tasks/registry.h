// The registry of tasks by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cortado/base/fields.h"
#include "cortado/tasks/examples.h"

namespace cortado {

struct TaskKind {
  std::string name;
  std::string about;  // one line
  std::function<std::unique_ptr<TaskExamples>(const Json& settings, const std::string& place)> open;
  // Writes files of the public format into a folder, at most `most` examples per split. Tasks without it are exported
  // as lines of JSON.
  std::function<void(const TaskExamples& task, const std::string& folder, int64_t most)> write = {};
};

// TaskKind::open for a task whose options have a `fields` function.
template <typename Task, typename Options>
std::unique_ptr<TaskExamples> opens(const Json& settings, const std::string& place) {
  return std::make_unique<Task>(from_fields<Options>(settings, place));
}

// Each task has a folder of its name, with a README.md that describes it.
TaskKind mqar_task();
TaskKind regbench_task();
TaskKind listops_task();
TaskKind pathfinder_task();
TaskKind image_task();
TaskKind text_task();
TaskKind retrieval_task();

const std::vector<TaskKind>& task_kinds();
const TaskKind& task_kind(const std::string& name);  // InputError if unknown

// Opens the task in {"name": "mqar", "shuffle": true, ...settings of the task}. "shuffle" is read by training only.
std::unique_ptr<TaskExamples> open_task(const Json& task, const std::string& place);

}  // namespace cortado
