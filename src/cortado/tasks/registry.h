// The tasks by their names.
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
  // Writes the public format's files into a folder, at most `most` examples of each split; none: lines of JSON.
  std::function<void(const TaskExamples& task, const std::string& folder, int64_t most)> write = {};
};

// TaskKind::open of a task whose options say their fields.
template <typename Task, typename Options>
std::unique_ptr<TaskExamples> opens(const Json& settings, const std::string& place) {
  return std::make_unique<Task>(from_fields<Options>(settings, place));
}

// Each is in the folder of its name, whose README.md says what is asked and how it is drawn.
TaskKind mqar_task();
TaskKind regbench_task();
TaskKind listops_task();
TaskKind pathfinder_task();
TaskKind image_task();
TaskKind text_task();
TaskKind retrieval_task();

const std::vector<TaskKind>& task_kinds();
const TaskKind& task_kind(const std::string& name);  // InputError: unknown

// {"name": "mqar", "shuffle": true, ...settings of that task}: "shuffle" is for whoever trains.
std::unique_ptr<TaskExamples> open_task(const Json& task, const std::string& place);

}  // namespace cortado
