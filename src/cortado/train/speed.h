// How fast models train and decode, measured in turns.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/data/batches.h"
#include "cortado/data/token_file.h"
#include "cortado/generate/session.h"
#include "cortado/models/language_model.h"
#include "cortado/train/options.h"

namespace cortado {

// Of one sequence that has read `depth` tokens.
struct DecodeSpeed {
  int64_t depth = 0;
  double seconds = 0;  // a token
  int64_t state_bytes = 0;
  int64_t resident_bytes = 0;  // of the whole process
};

struct SpeedContender {
  std::shared_ptr<LanguageModel> model;
  double training_speed = 0;  // tokens a second, forward, backward and update
  std::vector<DecodeSpeed> decode = {};
};

struct SpeedRequest {
  TrainingOptions options;  // batch and context say how many tokens a batch has
  std::function<TrainingBatch()> next_batch;
  std::function<std::vector<int32_t>(int64_t begin, int64_t count)> tokens;  // of the text that is read, at any place
  std::vector<int64_t> depths;                                               // ascending
  // Seconds that a contender may read on from one depth to the next. What it reaches by then is measured instead, and
  // deeper ones are left out.
  double budget = std::numeric_limits<double>::infinity();
  int rounds = 5;
  std::function<bool()> stop = {};
  std::function<void(const std::string& what, int64_t done, int64_t total)> progress = {};
};

// Every contender in turns, several rounds, the median of the rounds: a machine's speed drifts from minute to minute by
// more than models differ. The models' weights stay as they are. False: stopped.
bool measure_training_speeds(std::vector<SpeedContender>& contenders, const SpeedRequest& request);
bool measure_decode_speeds(std::vector<SpeedContender>& contenders, const SpeedRequest& request);

// The request that reads a data set: crops for training, its training split for decoding.
SpeedRequest speed_request(const Dataset& data, const TrainingOptions& options);

// {"cpu": ..., "threads": ..., "torch": ..., "device": ...}
Json machine_description(at::Device device);

}  // namespace cortado
