// A training run from its description: data, tokenizer, model, folder, loop. What `cortado train` and `cortado compare`
// do.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/train/language_task.h"
#include "cortado/train/resume.h"
#include "cortado/train/run_folder.h"

namespace cortado {

struct TrainRequest {
  Json config;              // a model's config with "training"; null with kResume: the run's own
  std::string config_name;  // for messages
  std::string data;         // a text, or a folder made by `cortado prepare`; "": the config's "training.data"
  std::string out;
  FolderUse use = FolderUse::kFresh;
  at::Device device = at::kCPU;
  int64_t stop_at = -1;          // stop after this step as Ctrl-C would, leaving the schedule as it is; -1: don't
  std::function<bool()> stop;    // asked after every step
  bool progress = true;          // a bar, and a line about what is trained
  bool keep = true;              // false: no checkpoints and no weights, the steps are only made
  bool share_optimizer = false;  // among the processes that train together
  int64_t context_parts = 0;     // processes that share each sequence; 0: each has whole ones
  OpenTaskData task = open_language_data;  // of a config without "task"
};

struct TrainResult {
  bool done = false;  // false: stopped, and --resume goes on
  TrainerState state;
  int64_t steps = 0, parameters = 0;
};

// InputError: config, data or folder are wrong, and then the folder is untouched. Failure: the work failed. Of several
// processes (parallel/ranks.h) each has its part of every batch, and process 0 alone writes.
TrainResult train_run(const TrainRequest& request);

}  // namespace cortado
