// A training run made from its description: data, tokenizer, model, folder and loop. Used by `cortado train` and
// `cortado compare`.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/train/language_task.h"
#include "cortado/train/resume.h"
#include "cortado/train/run_folder.h"

namespace cortado {

// The description of a training run.
struct TrainRequest {
  Json config;              // a model's config with "training"; null with kResume: the run's own, after `change`
  std::string config_name;  // for messages
  std::function<void(Json& config)> change = [](Json&) {};
  std::string data;  // a text, or a folder made by `cortado prepare`; "": the config's "training.data"
  std::string out;
  FolderUse use = FolderUse::kFresh;
  at::Device device = at::kCPU;
  int64_t stop_at = -1;          // stop after this step as Ctrl-C would, with the schedule unchanged; -1: don't
  std::function<bool()> stop;    // asked after every step
  bool progress = true;          // show a progress bar, and a line about what is trained
  bool keep = true;              // false: write no checkpoints and no weights
  bool share_optimizer = false;  // divide the optimiser's state among the processes
  int64_t context_parts = 0;     // processes per sequence (context parallelism); 0: sequences are not split
  OpenTaskData task = open_language_data;  // opens the data of configs without "task"
};

// The result of train_run().
struct TrainResult {
  bool done = false;  // false: stopped; --resume continues
  TrainerState state;
  int64_t steps = 0, parameters = 0;
};

// Trains a run. Throws InputError if the config, data or folder are wrong, and leaves the folder untouched then; throws
// Failure if the work fails. With several processes (parallel/ranks.h), each processes its part of every batch, and
// only process 0 writes.
TrainResult train_run(const TrainRequest& request);

}  // namespace cortado
