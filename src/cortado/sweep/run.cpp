#include "cortado/sweep/run.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/version.h"
#include "cortado/models/checkpoint.h"
#include "cortado/sweep/results.h"
#include "cortado/tasks/registry.h"
#include "cortado/train/example_task.h"
#include "cortado/train/run.h"
#include "cortado/train/speed.h"

namespace cortado {
namespace {

// Returns the next-token "accuracy" of the run's last validation.
Json last_validation(const std::string& folder) {
  Json found = Json::object();
  std::ifstream file(RunFolder{folder}.metrics());
  for (std::string line; std::getline(file, line);) {
    const Json entry = Json::parse(line, nullptr, false);
    if (entry.is_object() && entry.contains("accuracy")) found["accuracy"] = entry["accuracy"];
  }
  return found;
}

// Returns the task's metrics of the final weights; for a text, those of the last validation.
Json measured(const SweepPlan& plan, const Backbone& model, const TrainResult& trained, const std::string& folder) {
  const Json& settings = model.config().task;
  if (settings.is_null()) {
    const double loss = trained.state.validation_loss;
    Json found = {{"validation_loss", loss}, {"perplexity", std::exp(loss)}, {"bits_per_token", loss / std::log(2.0)}};
    found.update(last_validation(folder));
    return found;
  }
  const auto task = open_task(settings, "task");
  const auto options = TrainingOptions::from_json(model.config().training);
  Json found = score_examples(model, *task, value_of(kSplits, plan.split, "split"), options.batch, 0);
  found["validation_loss"] = trained.state.validation_loss;
  return found;
}

// Returns how many distinct tokens the run read: at most all that there are.
int64_t unique_tokens(const TrainerState& state, const TrainingOptions& options, bool examples) {
  if (!examples) return std::min(state.tokens, state.read.tokens);
  const double read = double(state.step * options.batch * options.accumulate), there = double(state.read.tokens);
  return std::llround(double(state.tokens) * std::min(1.0, there / read));
}

Json result_of(const SweepPlan& plan, const TrainResult& trained, const std::string& folder,
               const SweepTraining& training) {
  const auto model = open_backbone(folder, {.which = "last", .device = training.device});
  const ModelConfig& config = model->config();
  Json result = measured(plan, *model, trained, folder);
  fail_input_if(!result.contains(plan.metric), "[sweep] \"metric\": the task has no \"", plan.metric, "\"");
  const auto options = TrainingOptions::from_json(config.training);
  result["parameters"] = model->parameter_count();
  if (config.causal) result["state_bytes"] = model->state_bytes(options.context);
  result["steps"] = trained.state.step;
  result["tokens"] = trained.state.tokens;
  result["unique_tokens"] = unique_tokens(trained.state, options, !config.task.is_null());
  result["seconds"] = trained.state.seconds;
  return result;
}

}  // namespace

TrainRequest train_request(const SweepRun& run, const SweepTraining& training, const std::string& folder) {
  TrainRequest request;
  request.config = run.config;
  request.config_name = run.id;
  request.out = folder;
  request.device = training.device;
  request.stop = training.stop;
  request.progress = training.progress;
  const bool named = run.config.contains("task") ||
                     (run.config.contains("training") && !run.config["training"].value("data", "").empty());
  if (!named) request.data = training.data;
  if (std::filesystem::exists(RunFolder{folder}.config())) request.use = FolderUse::kResume;
  return request;
}

Json circumstances(at::Device device) {
  Json all = {{"machine", machine_description(device)}};
  if (*kCommit) all["commit"] = kCommit;
  return all;
}

std::optional<Json> run_one(const SweepPlan& plan, const SweepRun& run, const SweepPlace& place,
                            const SweepTraining& training) {
  Json result = {{"id", run.id}, {"settings", run.settings}, {"seed", run.seed}, {"status", "done"}};
  try {
    const TrainResult trained = train_run(train_request(run, training, place.folder(run)));
    if (!trained.done) return {};
    result.update(result_of(plan, trained, place.folder(run), training));
  } catch (const std::exception& error) {
    const std::string message = error.what();
    const bool diverged = dynamic_cast<const Failure*>(&error) && message.find(" at step ") != std::string::npos;
    result["status"] = diverged ? "diverged" : "failed";
    result["message"] = message.substr(0, message.find('\n'));
  }
  result.update(circumstances(training.device));
  const Json curve = curve_of(place.folder(run), plan.metric);
  if (!curve.empty()) result["curve"] = curve;
  write_file(place.result(run), result.dump(2) + "\n");
  return result;
}

}  // namespace cortado
