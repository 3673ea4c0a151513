// Measures how fast models train and decode; the models take turns.
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

// The decoding speed of one sequence that has read `depth` tokens.
struct DecodeSpeed {
  int64_t depth = 0;
  double seconds = 0;  // per token
  int64_t state_bytes = 0;
  int64_t resident_bytes = 0;  // of the whole process
};

// A model whose speed is measured, with the results so far.
struct SpeedContender {
  std::shared_ptr<LanguageModel> model;
  double training_speed = 0;  // tokens per second of forward, backward and update
  std::vector<DecodeSpeed> decode = {};
};

// What to measure.
struct SpeedRequest {
  TrainingOptions options;  // batch and context determine the tokens per batch
  std::function<TrainingBatch()> next_batch;
  // Returns tokens at any place of the text that is read.
  std::function<std::vector<int32_t>(int64_t begin, int64_t count)> tokens;
  std::vector<int64_t> depths;  // ascending
  // Seconds that a contender may spend reading from one depth to the next. If it does not get there, it is measured
  // where it is, and deeper ones are left out.
  double budget = std::numeric_limits<double>::infinity();
  int rounds = 5;
  std::function<bool()> stop = {};
  std::function<void(const std::string& what, int64_t done, int64_t total)> progress = {};
};

// Measure the contenders in turns over several rounds and take the median of the rounds, because a machine's speed
// drifts from minute to minute by more than models differ. The models' weights stay unchanged. Return false if stopped.
bool measure_training_speeds(std::vector<SpeedContender>& contenders, const SpeedRequest& request);
bool measure_decode_speeds(std::vector<SpeedContender>& contenders, const SpeedRequest& request);

// Returns a request on a data set: crops for training, and its training split as the text for decoding.
SpeedRequest speed_request(const Dataset& data, const TrainingOptions& options);

// Returns {"cpu": ..., "threads": ..., "torch": ..., "device": ...}.
Json machine_description(at::Device device);

}  // namespace cortado
