// Runs one run of a sweep in this process: training, measuring, recording.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <optional>

#include "cortado/sweep/plan.h"
#include "cortado/train/run.h"

namespace cortado {

// OUT/runs/ID/         the run (train/run_folder.h)
// OUT/runs/ID.json     its result; exists once it has ended
// OUT/runs/ID.claim    exists while a process works on it
// OUT/runs/ID.log      its output
struct SweepPlace {
  std::string out;
  std::string folder(const SweepRun& run) const { return out + "/runs/" + run.id; }
  std::string result(const SweepRun& run) const { return folder(run) + ".json"; }
  std::string claim(const SweepRun& run) const { return folder(run) + ".claim"; }
  std::string log(const SweepRun& run) const { return folder(run) + ".log"; }
};

// The circumstances that all runs of a sweep share.
struct SweepTraining {
  at::Device device = at::kCPU;
  std::string data;                 // the text for language models without "training.data"
  std::function<bool()> stop = {};  // asked after every step
  bool progress = false;            // show each run's progress bar
};

// Returns how a result was obtained: {"machine", "commit"}.
Json circumstances(at::Device device);

// Returns the request to train the run in that folder, or to resume it there.
TrainRequest train_request(const SweepRun& run, const SweepTraining& training, const std::string& folder);

// Trains a run, or resumes it, and measures it. Returns {"id", "settings", "seed", "status": "done" | "diverged" |
// "failed", "message", METRIC and others, "parameters", "state_bytes" (float32 bytes of one sequence after the task's
// longest input), "steps", "tokens", "unique_tokens", "seconds", "machine", "commit", "curve"}. A run that diverges or
// fails has a result with that status. Returns nothing if stopped; calling again resumes it.
std::optional<Json> run_one(const SweepPlan& plan, const SweepRun& run, const SweepPlace& place,
                            const SweepTraining& training);

}  // namespace cortado
