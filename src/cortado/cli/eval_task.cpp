// cortado eval task: scores a model that was trained on a task on new examples of it.
#include <c10/core/InferenceMode.h>

#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/table.h"
#include "cortado/cli/common.h"
#include "cortado/models/checkpoint.h"
#include "cortado/parallel/ranks.h"
#include "cortado/tasks/registry.h"
#include "cortado/train/example_task.h"
#include "cortado/train/options.h"

namespace cortado {
namespace {

struct EvalTask {
  std::string run, checkpoint = "best", split = "test";
  std::vector<std::string> settings;
  int64_t examples = 0;
  bool json = false;
  std::shared_ptr<CommonOptions> common;
};

// Other examples may be longer than those trained on, but must be of the same kind.
void check_fits(const ModelConfig& model, const TaskShape& shape) {
  const bool numbers = shape.vocabulary == 0;
  const auto fits = [](const char* what, int64_t of_task, int64_t of_model) {
    fail_input_if(of_task != of_model, "[--set] the task has ", of_task, " ", what, ", the model ", of_model);
  };
  fits("tokens to choose from", numbers ? 0 : shape.vocabulary, numbers ? 0 : model.vocabulary);
  fits("channels of numbers", shape.channels, model.channels);
  fits("classes", shape.classes, model.head.classes);
  fail_input_if(model.positions == PositionKind::kLearned && shape.length > model.context, "[--set] inputs of ",
                shape.length, ", the model has learned positions for ", model.context);
}

void run(const EvalTask& command) {
  Ranks::world().require_one("eval task");
  const c10::InferenceMode inference;
  const at::Device device = command.common->apply();
  const auto model = open_backbone(command.run, {.which = command.checkpoint, .device = device});
  const ModelConfig& config = model->config();
  fail_input_if(config.task.is_null(), "[", command.run,
                "] was trained on texts, not on a task: use cortado eval RUN --text FILE");
  Json settings = config.task;
  settings.erase("shuffle");
  for (const std::string& setting : command.settings) apply_setting(settings, setting);
  const auto task = open_task(settings, "task");
  check_fits(config, task->shape());
  model->eval();
  const int64_t batch = TrainingOptions::from_json(config.training, "training").batch;
  catch_interrupts();
  ProgressBar bar({.label = command.split, .total = 1, .unit = "examples", .quiet = command.json});
  const Split split = value_of(kSplits, command.split, "--split");
  int64_t asked = 0;
  Json found = score_examples(*model, *task, split, batch, command.examples, [&](int64_t done, int64_t total) {
    exit_if_interrupted();
    asked = total;
    bar.update(done, concat("of ", total));
  });
  bar.finish();
  found["examples"] = asked;
  if (command.json) {
    std::cout << found.dump() << std::endl;
    return;
  }
  Json rows = Json::array();
  for (const auto& [metric, value] : found.items()) rows.push_back({{"metric", metric}, {"value", value}});
  std::cout << table_of(rows, {{"metric", "/metric"}, {"value", "/value"}}).text() << std::flush;
}

}  // namespace

void add_eval_task_command(CLI::App& eval) {
  CLI::App& command = *eval.add_subcommand("task", "Measure a model on the task that it was trained on");
  const auto options = std::make_shared<EvalTask>();
  command.footer(
      "Prints the metrics of the task, with the breakdown of its papers. --set changes the examples, for instance to\n"
      "longer ones or to more pairs.\n\nExamples:\n  cortado eval task runs/recall\n"
      "  cortado eval task runs/recall --set length=1024 --set pairs=64 --examples 500");
  command.add_option("run", options->run, "a folder that `cortado train` made")->required();
  option(command, "--checkpoint", options->checkpoint, "best or last", CLI::IsMember({"best", "last"}), kShown);
  command.add_option("--split", options->split, "train, validation or test")->capture_default_str();
  option(command, "--set", options->settings, "change the task: length=1024 (repeatable)", kAssignments);
  option(command, "--examples", options->examples, "the first N of the split (default: all)", CLI::PositiveNumber);
  command.add_flag("--json", options->json, "print JSON instead of a table");
  options->common = add_common_options(command);
  command.callback([options] { run(*options); });
}

}  // namespace cortado
