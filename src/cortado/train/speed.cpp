#include "cortado/train/speed.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "cortado/base/machine.h"
#include "cortado/base/memory.h"
#include "cortado/base/stopwatch.h"
#include "cortado/train/language_task.h"
#include "cortado/train/optimizer.h"

namespace cortado {
namespace {

constexpr int kTrainingSteps = 2;  // per round
constexpr int kDecodeSteps = 20;   // per round

// A training step with a rate of zero: the weights stay, so decoding is measured on the trained model. The Trainer's
// step is not used because contenders take turns, each with its own optimiser.
void train_step(LanguageModel& model, AdamW& optimizer, const TrainingBatch& batch, at::ScalarType dtype) {
  const double targets = learn_batch(model, batch, dtype).targets;
  optimizer.step(0.0, targets * clip_divisor(optimizer.gradient_norm() / targets, 1.0));
  optimizer.clear_gradients();
}

// Returns `count` tokens of the split from `begin` on; wraps around at its end.
std::vector<int32_t> some_tokens(const TokenFile& file, int64_t begin, int64_t count) {
  std::vector<int32_t> result;
  while (count > 0) {
    begin %= file.size();
    const int64_t piece = std::min(count, file.size() - begin);
    const Tensor tokens = file.read(begin, piece);
    result.insert(result.end(), tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + piece);
    begin += piece;
    count -= piece;
  }
  return result;
}

bool stopped(const SpeedRequest& request) { return request.stop && request.stop(); }

// Reads up to `depth`, or as far as the budget allows. Reads in pieces so that a request to stop is noticed; softmax's
// last depth takes by far the longest. Returns false if stopped.
bool read_up_to(Session& session, int64_t depth, const SpeedRequest& request) {
  const Stopwatch watch;
  while (session.depth() < depth && watch.seconds() < request.budget) {
    if (stopped(request)) return false;
    const int64_t piece = std::min<int64_t>(depth - session.depth(), 8 * Session::kChunk);
    session.prefill(request.tokens(session.depth(), piece));
    if (request.progress) request.progress("reading", session.depth(), depth);
  }
  return true;
}

// Measures every session, except those that cannot get further towards `depth` and were already measured where they
// are. Returns false if stopped.
bool measure_decoding(std::vector<Session>& sessions, std::vector<SpeedContender>& contenders, int64_t depth,
                      const SpeedRequest& request) {
  std::vector<std::vector<double>> times(sessions.size());
  std::vector<bool> left_behind(sessions.size());
  for (size_t i = 0; i < sessions.size(); ++i) {
    auto& known = contenders[i].decode;
    const bool moved =
        known.empty() || sessions[i].depth() > known.back().depth + (int64_t{1} + request.rounds) * kDecodeSteps;
    left_behind[i] = sessions[i].depth() < depth && !moved;
    if (left_behind[i]) continue;
    known.push_back(
        {.depth = sessions[i].depth(), .state_bytes = sessions[i].state_bytes(), .resident_bytes = resident_bytes()});
  }
  for (int round = -1; round < request.rounds; ++round) {
    for (size_t i = 0; i < sessions.size(); ++i) {
      if (stopped(request)) return false;
      if (left_behind[i]) continue;
      const auto tokens = request.tokens(sessions[i].depth(), kDecodeSteps);
      const double seconds = seconds_of([&] {
        for (const int32_t token : tokens) sessions[i].step(token);
      });
      if (round >= 0) times[i].push_back(seconds / kDecodeSteps);
    }
  }
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (!left_behind[i]) contenders[i].decode.back().seconds = median(times[i]);
  }
  return true;
}

}  // namespace

bool measure_training_speeds(std::vector<SpeedContender>& contenders, const SpeedRequest& request) {
  const TrainingOptions& options = request.options;
  std::vector<std::vector<double>> times(contenders.size());
  for (int round = -1; round < request.rounds; ++round) {  // round -1 warms up
    for (size_t i = 0; i < contenders.size(); ++i) {
      if (stopped(request)) return false;
      AdamW optimizer(trainable(*contenders[i].model), options);
      const double seconds = seconds_of([&] {
        for (int step = 0; step < kTrainingSteps; ++step) {
          train_step(*contenders[i].model, optimizer, request.next_batch(), options.compute_type());
        }
      });
      if (round >= 0) times[i].push_back(seconds / kTrainingSteps);
    }
    if (request.progress) request.progress("training", round + 2, request.rounds + 1);
  }
  for (size_t i = 0; i < contenders.size(); ++i) {
    contenders[i].training_speed = double(options.batch * options.context) / median(times[i]);
  }
  return true;
}

bool measure_decode_speeds(std::vector<SpeedContender>& contenders, const SpeedRequest& request) {
  std::vector<Session> sessions;
  for (const SpeedContender& contender : contenders) sessions.emplace_back(contender.model, nullptr);
  for (const int64_t depth : request.depths) {
    for (Session& session : sessions) {
      if (!read_up_to(session, depth, request)) return false;
    }
    if (!measure_decoding(sessions, contenders, depth, request)) return false;
  }
  return true;
}

SpeedRequest speed_request(const Dataset& data, const TrainingOptions& options) {
  SpeedRequest request;
  request.options = options;
  request.next_batch = [batches = make_batches(data.train, options), position = DataPosition()]() mutable {
    return batches->next(position);
  };
  request.tokens = [file = data.train](int64_t begin, int64_t count) { return some_tokens(*file, begin, count); };
  return request;
}

Json machine_description(at::Device device) {
  return {{"cpu", this_machine().cpu},
          {"threads", at::get_num_threads()},
          {"torch", TORCH_VERSION},
          {"device", device.str()}};
}

}  // namespace cortado
