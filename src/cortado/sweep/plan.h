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
};

// The JSON form (unknown keys are errors):
// {
//   "about": "MQAR, T = 512, K = 64", "paper": "Blurry Window Attention, figure 4",
//   "config": {...} or a path from the file's folder,     a model's config with "training", and "task" or data
//   "set": {"task.length": 512},                          for all runs
//   "vary": {"dim": [64, 128], "training.learning_rate": [1e-3, 1e-2]},   every combination of them
//   "runs": [{"mixer.mixer": "gla"}, {"mixer.mixer": "softmax", "heads": 1}],   each of these with each combination
//   "seeds": [1, 2, 3],
//   "metric": "accuracy", "better": "higher" | "lower",   of the task's metrics; default "validation_loss", lower
//   "best_over": ["training.learning_rate"],              rows of the table are the best of these
//   "over_seeds": "mean" | "best",
//   "split": "test" | "validation",                       of a task: where the metric is measured at the end
//   "series": ["mixer.mixer"],                            what tells lines of a picture apart
//   "x": ["state_bytes"],                                 pictures of the metric against these
//   "published": [{"name": "softmax", "value": 1.0, ...}],   shown under the table as they are
//   "scales": {"smoke": {"set", "vary", "runs", "seeds"}, ...}   what changes at a scale: "set" and "vary" key by key
// }
struct SweepPlan {
  std::string name;  // the file's, with its folder: "blurry-window/mqar"
  std::string about, paper, scale;
  std::string metric = "validation_loss";
  bool higher = false;
  std::vector<std::string> best_over, series, x;
  bool best_seed = false;
  std::string split = "test";
  Json base;  // the config with "set"
  Json published = Json::array();
  std::vector<std::string> varied;  // keys that differ between runs, in the file's order
  std::vector<std::string> shown;   // those that tables have: where every one of "runs" has a "name", that and "vary"'s
  std::vector<SweepRun> runs;

  const SweepRun& run(const std::string& id) const;  // InputError: there is none
};

// `scale`: one of the file's, or "" for the file as it is. `settings`: more of "set", as KEY=VALUE. InputError: what is
// wrong, and where.
SweepPlan read_sweep(const std::string& path, const std::string& scale, const std::vector<std::string>& settings = {});

}  // namespace cortado
