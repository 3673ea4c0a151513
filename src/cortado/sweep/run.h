// One run of a sweep, in this process: train, measure, write down.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <optional>

#include "cortado/sweep/plan.h"
#include "cortado/train/run.h"

namespace cortado {

// OUT/runs/ID/         the run (train/run_folder.h)
// OUT/runs/ID.json     its result, there once it has ended
// OUT/runs/ID.claim    while somebody works on it
// OUT/runs/ID.log      what it said
struct SweepPlace {
  std::string out;
  std::string folder(const SweepRun& run) const { return out + "/runs/" + run.id; }
  std::string result(const SweepRun& run) const { return folder(run) + ".json"; }
  std::string claim(const SweepRun& run) const { return folder(run) + ".claim"; }
  std::string log(const SweepRun& run) const { return folder(run) + ".log"; }
};

struct SweepTraining {
  at::Device device = at::kCPU;
  std::string data;                 // of models of language without "training.data": a text
  std::function<bool()> stop = {};  // asked after every step
  bool progress = false;            // shows each run's
};

// Where and with what a result was found: {"machine", "commit"}.
Json circumstances(at::Device device);

// The run's training in that folder, gone on with where it has begun.
TrainRequest train_request(const SweepRun& run, const SweepTraining& training, const std::string& folder);

// {"id", "settings", "seed", "status": "done" | "diverged" | "failed", "message", METRIC and others, "parameters",
// "state_bytes" (of one sequence after the task's longest input, float32), "steps", "tokens", "unique_tokens",
// "seconds", "machine", "commit", "curve"}; none: stopped, and the same call goes on. A run whose losses stop being finite, or that fails
// otherwise, has a result that says so.
std::optional<Json> run_one(const SweepPlan& plan, const SweepRun& run, const SweepPlace& place,
                            const SweepTraining& training);

}  // namespace cortado
