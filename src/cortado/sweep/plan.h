// A sweep as a file: one config, what is varied, how it is judged; and the runs that follow from it.
#pragma once

#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// One run: the settings in which it differs from the others, and the config with all of them.
struct SweepRun {
  std::string id;  // of its settings and seed: the name of its folder
  Json settings;   // {"dim": 64, "mixer.mixer": "gla"}
  int64_t seed = 0;
  Json config;
  std::vector<std::string> words = {};  // of a sequence of commands: this one's, the program's name left out
};

// The JSON form (unknown keys are errors):
// {
//   "about": "MQAR, T = 512, K = 64", "paper": "Blurry Window Attention, figure 4",
//   "config": {...} or a path from the file's folder,     a model's config with "training", and "task" or data
//   "set": {"task.length": 512},                          for all runs
//   "vary": {"dim": [64, 128], "training.learning_rate": [1e-3, 1e-2]},   every combination of them
//   "runs": [{"mixer.mixer": "gla"}, {"mixer.mixer": "softmax", "heads": 1}],   each of these with each combination,
//                                                         where it names what varies only with its own value
//   "seeds": [1, 2, 3],
//   "match": "state" | "parameters", "targets": [16384, 65536],   each of "runs" has "sizes": {"mixer.window": [8, 16]},
//                                                         of which it takes the one nearest to the target, for each
//   "metric": "accuracy", "better": "higher" | "lower",   of the task's metrics; default "validation_loss", lower
//   "also": ["accuracy_to_64"],                           of the task's metrics, beside it in the table
//   "best_over": ["training.learning_rate"],              rows of the table are the best of these
//   "over_seeds": "mean" | "best",
//   "split": "test" | "validation",                       of a task: where the metric is measured at the end
//   "series": ["mixer.mixer"],                            what tells lines of a picture apart
//   "x": ["state_bytes"],                                 pictures of the metric against these
//   "published": [{"name": "softmax", "value": 1.0, ...}],   shown under the table as they are
//   "scales": {"smoke": {"set", "vary", "runs", "seeds"}, ...}   what changes at a scale: "set" and "vary" key by key
// }
// Or, of what is no grid of trainings, commands of this program, one after the other:
// {
//   "about", "paper", "published",
//   "variables": {"model": "models/smollm2"},
//   "commands": [{"name": "linear", "command": ["linearize", "{model}", "--out", "{out}"]},
//                {"name": "needles", "command": ["eval", "niah", "{linear}", "--out", "{out}.jsonl"],
//                 "hours": 0.5}],   as measured somewhere, for --dry-run
//   "scales": {"smoke": {"variables", "commands"}, ...}   "variables" key by key
// }
// {out} is a name of the command's own in the sweep's folder, {NAME} that of an earlier one, {here} the file's folder.
struct SweepPlan {
  std::string name;  // the file's, with its folder: "blurry-window/mqar"
  std::string about, paper, scale;
  std::string metric = "validation_loss";
  bool higher = false;
  std::vector<std::string> also, best_over, series, x;
  bool best_seed = false;
  std::string split = "test";
  std::string match;             // "state", "parameters" or nothing
  std::vector<int64_t> targets;  // bytes or parameters
  Json base;                     // the config with "set"
  Json published = Json::array();
  std::vector<std::string> varied;  // keys that differ between runs, in the file's order
  std::vector<std::string> shown;   // those that tables have: where every one of "runs" has a "name", that and "vary"'s
  std::vector<SweepRun> runs;
  bool commands = false;  // its runs are commands, one after the other

  const SweepRun& run(const std::string& id) const;  // InputError: there is none
};

// `scale`: one of the file's, or "" for the file as it is. `settings`: more of "set" or "variables", as KEY=VALUE. InputError: what is
// wrong, and where.
SweepPlan read_sweep(const std::string& path, const std::string& scale, const std::vector<std::string>& settings = {});

// What makes models equal: "match".
enum class Match { kState, kParameters };

// Of a config: bytes of the state of one sequence of the task's length (or "training.context"), float32, all layers,
// convolutions included, growing caches at that length; or parameters, the embedding's of two tokens where the
// vocabulary is not known yet.
int64_t measured_size(Match match, const Json& config, const std::string& name);

}  // namespace cortado
