// cortado task: shows the tasks that models can be trained on.
#include "cortado/base/files.h"
#include "cortado/base/table.h"
#include "cortado/cli/common.h"
#include "cortado/models/config.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

struct TaskOptions {
  std::string name, split = "train", out;
  std::vector<std::string> settings;
  int64_t index = 0, count = 1, examples = 2000, most = 1000;
  bool json = false;

  std::unique_ptr<TaskExamples> open() const {
    Json task = {{"name", name}};
    for (const std::string& setting : settings) apply_setting(task, setting);
    return open_task(task, "task");
  }
};

void list_tasks(const TaskOptions& options) {
  Json all = Json::array();
  for (const TaskKind& kind : task_kinds()) all.push_back({{"name", kind.name}, {"about", kind.about}});
  const Table table = table_of(all, {{"task", "/name"}, {"what is asked", "/about"}});
  std::cout << (options.json ? all.dump(2) + "\n" : table.text());
}

Json as_json(const Example& example) {
  Json json = Json::object();
  if (!example.tokens.empty()) json["tokens"] = example.tokens;
  if (!example.numbers.empty()) json["numbers"] = example.numbers;
  if (!example.second.empty()) json["second"] = example.second;
  if (!example.targets.empty()) json["targets"] = example.targets;
  if (example.label >= 0) json["label"] = example.label;
  return json;
}

void show(const TaskOptions& options) {
  const auto task = options.open();
  const Split split = value_of(kSplits, options.split, "--split");
  fail_input_if(options.index >= task->size(split), "[task] the ", options.split, " split has ", task->size(split),
                " examples, there is no ", options.index);
  const int64_t end = std::min(options.index + options.count, task->size(split));
  for (int64_t i = options.index; i < end; ++i) {
    const Example example = task->example(split, i);
    if (options.json) {
      std::cout << as_json(example).dump() << "\n";
    } else {
      std::cout << (i > options.index ? "\n" : "") << task->drawn(example);
    }
  }
  std::cout << std::flush;
}

void statistics(const TaskOptions& options) {
  const auto task = options.open();
  const Json found = task->statistics(options.examples);
  Json rows = Json::array();
  for (const auto& [name, value] : found.items()) rows.push_back({{"statistic", name}, {"value", value}});
  for (const Published& known : task->published()) {
    for (Json& row : rows) {
      if (row["statistic"] != known.name) continue;
      row["published"] = known.value;
      row["within"] = known.tolerance;
      row["agrees"] = std::abs(row["value"].get<double>() - known.value) <= known.tolerance ? "yes" : "NO";
    }
  }
  if (options.json) {
    std::cout << rows.dump(2) << std::endl;
    return;
  }
  std::cout << options.examples << " examples of " << options.name << "\n"
            << table_of(rows, {{"statistic", "/statistic"},
                               {"here", "/value", decimals(4)},
                               {"published", "/published"},
                               {"within", "/within"},
                               {"agrees", "/agrees"}})
                   .text();
}

void write_examples(const TaskExamples& task, const std::string& folder, int64_t most) {
  for (const auto& [name, split] : kSplits) {
    std::string lines;
    for (int64_t i = 0; i < std::min(most, task.size(split)); ++i)
      lines += as_json(task.example(split, i)).dump() + "\n";
    write_file(folder + "/" + name + ".jsonl", lines);
  }
}

void export_task(const TaskOptions& options) {
  const auto task = options.open();
  const auto& write = task_kind(options.name).write;
  write_output_folder(options.out, [&](const std::string& folder) {
    (write ? write : write_examples)(*task, folder,
                                     options.most > 0 ? options.most : std::numeric_limits<int64_t>::max());
  });
  std::cout << "written to " << options.out << std::endl;
}

CLI::App& add(CLI::App& app, const char* name, const char* about, const std::shared_ptr<TaskOptions>& options,
              void (*act)(const TaskOptions&)) {
  CLI::App& command = *app.add_subcommand(name, about);
  command.add_option("NAME", options->name, "the task, see `cortado task list`")->required();
  option(command, "--set", options->settings, "change a setting of the task: length=128 (repeatable)", kAssignments);
  command.callback([options, act] { act(*options); });
  return command;
}

}  // namespace

void add_task_command(CLI::App& app) {
  CLI::App& task = *app.add_subcommand("task", "Look at the tasks that models can be trained on");
  task.require_subcommand(1);
  task.footer(
      "Examples:\n"
      "  cortado task list\n"
      "  cortado task show mqar --set length=32 --set pairs=2\n"
      "  cortado task statistics regbench\n"
      "  cortado task export listops --out data/listops\n"
      "  cortado train configs/compare.json --set task.name=mqar --out runs/mqar   trains a model on one");
  const auto options = std::make_shared<TaskOptions>();
  CLI::App& list = *task.add_subcommand("list", "List the tasks");
  list.add_flag("--json", options->json, "print JSON");
  list.callback([options] { list_tasks(*options); });
  CLI::App& shown = add(task, "show", "Print examples", options, show);
  shown.add_option("--split", options->split, "train, validation or test (default train)");
  option(shown, "--index", options->index, "the first example to print (default 0)", CLI::NonNegativeNumber);
  option(shown, "--count", options->count, "how many (default 1)", CLI::PositiveNumber);
  shown.add_flag("--json", options->json, "print JSON, one example per line");
  CLI::App& measured = add(task, "statistics", "Measure statistics of a task's examples, next to the published ones",
                           options, statistics);
  option(measured, "--examples", options->examples, "how many examples (default 2000)", CLI::PositiveNumber);
  measured.add_flag("--json", options->json, "print JSON");
  CLI::App& exported =
      add(task, "export", "Write examples as files, in the public format if there is one", options, export_task);
  option(exported, "--out", options->out, "folder to write; new or empty", kRequired, kind("DIR"));
  option(exported, "--most", options->most, "examples per split (default 1000; 0: all)", CLI::NonNegativeNumber);
}

}  // namespace cortado
