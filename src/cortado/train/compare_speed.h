// How fast models train and decode, measured in turns.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/data/token_file.h"
#include "cortado/models/language_model.h"
#include "cortado/train/options.h"

namespace cortado {

struct SpeedContender {
  std::shared_ptr<LanguageModel> model;
  double training_speed = 0;              // tokens a second, forward, backward and update
  std::vector<double> decode_speed = {};  // tokens a second of one sequence, at each depth
  std::vector<int64_t> state_bytes = {};  // of that sequence, at each depth
};

// Every contender in turns, several rounds, the median of the rounds: a machine's speed drifts from minute to minute by
// more than models differ. Each depth (ascending) is reached by reading that many tokens of the training split. The
// models' weights stay as they are. False: stopped.
bool measure_speeds(std::vector<SpeedContender>& contenders, const Dataset& data, const TrainingOptions& options,
                    const std::vector<int64_t>& depths, const std::function<bool()>& stop);

// {"cpu": ..., "threads": ..., "torch": ..., "device": ...}
Json machine_description(at::Device device);

}  // namespace cortado
