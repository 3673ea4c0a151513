// A sweep as a file: a config, the settings that vary, the metric; and the runs that follow from them.
#pragma once

#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// One run: the settings in which it differs from the others, and the complete config.
struct SweepRun {
  std::string id;  // made of its settings and seed; names its folder
  Json settings;   // {"dim": 64, "mixer.mixer": "gla"}
  int64_t seed = 0;
  Json config;
  std::vector<std::string> words = {};  // for a command: its words without the program's name
};

// The JSON form (unknown keys are errors):
// {
//   "about": "MQAR, T = 512, K = 64", "paper": "Blurry Window Attention, figure 4",
//   "config": {...} or a path relative to the file,       a model's config with "training", and "task" or data
//   "set": {"task.length": 512},                          applies to all runs
//   "vary": {"dim": [64, 128], "training.learning_rate": [1e-3, 1e-2]},   every combination of the values
//   "runs": [{"mixer.mixer": "gla"}, {"mixer.mixer": "softmax", "heads": 1}],   each is combined with each combination
//                                                         of "vary", except for keys that it sets itself
//   "seeds": [1, 2, 3],
//   "match": "state" | "parameters", "targets": [16384, 65536],   each of "runs" has "sizes": {"mixer.window": [8,
//                                                         16]}; for each target it gets the size that comes nearest
//   "metric": "accuracy", "better": "higher" | "lower",   one of the task's metrics; default "validation_loss", lower
//   "also": ["accuracy_to_64"],                           more of the task's metrics, as columns of the table
//   "best_over": ["training.learning_rate"],              each row of the table is the best over these settings
//   "over_seeds": "mean" | "best",
//   "split": "test" | "validation",                       of a task: the split of the final measurement
//   "series": ["mixer.mixer"],                            pictures have one line per value of these settings
//   "x": ["state_bytes"],                                 one picture of the metric against each of these
//   "published": [{"name": "softmax", "value": 1.0, ...}],   copied below the table
//   "scales": {"smoke": {"set", "vary", "runs", "seeds"}, ...}   changes per scale; "set" and "vary" key by key
// }
// For experiments that are no grid of trainings, a sequence of commands of this program:
// {
//   "about", "paper", "published",
//   "variables": {"model": "models/smollm2"},
//   "commands": [{"name": "linear", "command": ["linearize", "{model}", "--out", "{out}"]},
//                {"name": "needles", "command": ["eval", "niah", "{linear}", "--out", "{out}.jsonl"],
//                 "hours": 0.5}],                          as measured once, for --dry-run
//   "scales": {"smoke": {"variables", "commands"}, ...}   "variables" key by key
// }
// {out} is the command's own path in the sweep's folder, {NAME} that of an earlier command, {here} the file's folder.
struct SweepPlan {
  std::string name;  // the file's name with its folder: "blurry-window/mqar"
  std::string about, paper, scale;
  std::string metric = "validation_loss";
  bool higher = false;
  std::vector<std::string> also, best_over, series, x;
  bool best_seed = false;
  std::string split = "test";
  std::string match;             // "state", "parameters" or ""
  std::vector<int64_t> targets;  // bytes or parameters
  Json base;                     // the config with "set" applied
  Json published = Json::array();
  std::vector<std::string> varied;  // keys that differ between runs, in the file's order
  // Keys that tables show: "name" and those of "vary" if every one of "runs" has a "name", otherwise all of `varied`.
  std::vector<std::string> shown;
  std::vector<SweepRun> runs;
  // The runs are commands, to be run one after the other.
  bool commands = false;

  const SweepRun& run(const std::string& id) const;  // throws InputError for an unknown id
};

// Reads a sweep's file. `scale` is one of the file's scales, or "" for none. `settings` adds to "set" or "variables",
// as KEY=VALUE. Throws InputError with the reason and the place.
SweepPlan read_sweep(const std::string& path, const std::string& scale, const std::vector<std::string>& settings = {});

// "match": the quantity that is equal for all models.
enum class Match { kState, kParameters };

// Returns a config's size. kState: bytes of one sequence's state after the task's length (or "training.context"), in
// float32, over all layers, including convolutions and growing caches. kParameters: the parameters, with an embedding
// of two tokens if the vocabulary is not known yet.
int64_t measured_size(Match match, const Json& config, const std::string& name);

}  // namespace cortado
