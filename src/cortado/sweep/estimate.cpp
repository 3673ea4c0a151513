#include "cortado/sweep/estimate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/stopwatch.h"
#include "cortado/models/config.h"
#include "cortado/tasks/registry.h"
#include "cortado/train/run.h"

namespace cortado {
namespace {

constexpr size_t kTrialSteps = 4;
constexpr double kTrialSeconds = 3;        // seconds after which a trial makes no further step
constexpr int64_t kTrialTokens = 4096;     // tokens per trial batch; at least one example
constexpr double kForwardShare = 1.0 / 3;  // of a training step's time: backward takes twice as long as forward

// How much a run trains: `steps` of `accumulate` batches each.
struct Work {
  TrainingOptions options;
  int64_t steps = 0;
  int64_t example_tokens = 1;  // largest number of tokens per example
  int64_t validated = 0;       // batches per validation
};

int64_t batches_of(int64_t examples, int64_t batch) { return (examples + batch - 1) / batch; }

Work work_of(const Json& config) {
  Work work{TrainingOptions::from_json(config.value("training", Json::object()))};
  TrainingOptions& options = work.options;
  work.steps = options.steps;
  work.validated = options.evaluate_batches;
  work.example_tokens = options.context;
  if (!config.contains("task")) {
    const bool said = config.contains("training") && config["training"].contains("context");
    if (!said) work.example_tokens = config.value("context", options.context);
    return work;
  }
  const auto task = open_task(config["task"], "task");
  const TaskShape shape = task->shape();
  work.example_tokens = std::max<int64_t>(1, shape.length * (shape.pairs ? 2 : 1));
  const auto segments = task->segments(Split::kTrain);
  options.batch = std::min(options.batch, *std::max_element(segments.begin(), segments.end()));
  const int64_t all = batches_of(task->size(Split::kValidation), options.batch);
  work.validated = work.validated > 0 ? std::min(work.validated, all) : all;
  if (options.epochs == 0) return work;
  int64_t batches = 0;
  for (const int64_t segment : segments) batches += batches_of(segment, options.batch);
  work.steps = batches_of(options.epochs * batches, options.accumulate);
  return work;
}

// Returns the config with smaller batches, and with a vocabulary of the stated size instead of one learned from the
// text.
Json trial_config(Json config, int64_t batch) {
  for (const char* key : {"evaluate_batches", "accumulate"}) set(config, concat("training.", key), 1);
  set(config, "training.target", 0);
  set(config, "training.batch", batch);
  const std::string tokenizer = config["training"].value("tokenizer", ""), pieces = "sentencepiece:";
  if (tokenizer.starts_with(pieces)) {
    config["training"]["tokenizer"] = "byte";
    if (!config.contains("vocabulary")) apply_setting(config, "vocabulary=" + tokenizer.substr(pieces.size()));
  }
  return config;
}

Estimate estimate(const SweepRun& run, const SweepTraining& training) {
  const Work work = work_of(run.config);
  const int64_t batch = std::clamp<int64_t>(kTrialTokens / work.example_tokens, 1, work.options.batch);
  const TemporaryDirectory folder;
  SweepRun trial = run;
  trial.config = trial_config(run.config, batch);
  TrainRequest request = train_request(trial, training, folder.path() + "/run");
  request.progress = false;
  request.keep = false;
  const Stopwatch watch;
  std::vector<double> ends;  // when each step ended; the first also includes the setup
  request.stop = [&] {
    ends.push_back(watch.seconds());
    return ends.size() == kTrialSteps || ends.back() > kTrialSeconds || (training.stop && training.stop());
  };
  const TrainResult found = train_run(request);
  if (found.state.step == 0) return {};
  const double step = ends.size() > 1 ? (ends.back() - ends.front()) / double(ends.size() - 1) : found.state.seconds;
  // The numbers of one full batch of the run.
  const double share = double(work.options.batch) / double(batch);
  const double tokens = share * double(found.state.tokens) / double(found.state.step);
  const double learned = double(work.steps * work.options.accumulate);
  const double every = double(std::max<int64_t>(1, work.options.evaluate_every));
  const double validated = double(work.validated) * std::ceil(double(work.steps) / every);
  return {std::llround(tokens * learned), step * share * (learned + kForwardShare * validated), ""};
}

// Returns a key that is equal for runs that take equally long.
std::string cost_of(Json config) {
  for (const char* key : {"seed", "learning_rate", "minimum_rate", "warmup", "schedule", "beta1", "beta2", "epsilon",
                          "weight_decay", "decay_steps", "target"}) {
    if (config.contains("training")) config["training"].erase(key);
  }
  config.erase("name");
  return config.dump();
}

// Returns the training that a command "train CONFIG --set ... --data ..." describes.
std::optional<std::pair<SweepRun, SweepTraining>> training_of(const SweepRun& command, SweepTraining training) {
  const auto& words = command.words;
  if (words.size() < 2 || words[0] != "train" || words[1].starts_with("-")) return {};
  SweepRun run = command;
  run.config = read_json_file(words[1]);
  for (size_t i = 2; i + 1 < words.size(); ++i) {
    if (words[i] == "--set") apply_setting(run.config, words[i + 1]);
    if (words[i] == "--data") training.data = words[i + 1];
  }
  return {{run, training}};
}

}  // namespace

std::vector<Estimate> estimate_runs(const std::vector<SweepRun>& runs, const SweepTraining& training,
                                    const std::function<void(int64_t done)>& progress) {
  std::map<std::string, Estimate> known;
  std::vector<Estimate> all;
  for (const SweepRun& run : runs) {
    const auto [found, fresh] = known.try_emplace(cost_of(run.config));
    try {
      if (fresh) found->second = estimate(run, training);
    } catch (const std::exception& error) {
      const std::string message = error.what();
      found->second.problem = message.substr(0, message.find('\n'));
    }
    if (training.stop && training.stop()) break;
    all.push_back(found->second);
    if (progress) progress(int64_t(all.size()));
  }
  return all;
}

std::vector<Estimate> estimate_commands(const std::vector<SweepRun>& commands, const SweepTraining& training) {
  std::vector<Estimate> all;
  for (const SweepRun& command : commands) {
    Estimate known;
    if (command.config.is_object() && command.config.contains("hours")) {
      known.seconds = 3600 * command.config["hours"].get<double>();
    } else if (const auto train = training_of(command, training)) {
      const auto found = estimate_runs({train->first}, train->second);
      if (found.empty()) break;  // asked to stop
      known = found[0];
    } else {
      known.problem = "the file doesn't say how long it takes";
    }
    all.push_back(known);
  }
  return all;
}

}  // namespace cortado
