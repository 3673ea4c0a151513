#include "cortado/train/compare_speed.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <chrono>
#include <fstream>

#include "cortado/generate/session.h"
#include "cortado/train/autocast.h"
#include "cortado/train/data.h"
#include "cortado/train/optimizer.h"

namespace cortado {
namespace {

constexpr int kRounds = 5;
constexpr int kTrainingSteps = 2;  // a round
constexpr int kDecodeSteps = 20;   // a round

using Clock = std::chrono::steady_clock;

template <typename Work>
double seconds_of(Work&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void train_step(LanguageModel& model, AdamW& optimizer, const TrainingBatch& batch, at::ScalarType dtype) {
  Batch about{.cu_seqlens = batch.cu_seqlens, .training = true};
  Tensor loss;
  {
    const Autocast autocast(model.device(), dtype);
    loss = model.loss(batch.tokens.to(model.device()), batch.targets.to(model.device()), about);
  }
  loss.backward();
  // A rate of zero: the weights stay, so that decoding is measured on the trained model.
  optimizer.step(0.0, clip_divisor(optimizer.gradient_norm(), 1.0));
  optimizer.clear_gradients();
}

bool measure_training(std::vector<SpeedContender>& contenders, const Dataset& data, const TrainingOptions& options,
                      const std::function<bool()>& stop) {
  const auto batches = make_batches(data.train, options);
  DataPosition position;
  std::vector<std::vector<double>> times(contenders.size());
  for (int round = -1; round < kRounds; ++round) {  // round -1 warms up
    for (size_t i = 0; i < contenders.size(); ++i) {
      if (stop && stop()) return false;
      AdamW optimizer(*contenders[i].model, options);
      const double seconds = seconds_of([&] {
        for (int step = 0; step < kTrainingSteps; ++step) {
          train_step(*contenders[i].model, optimizer, batches->next(position), options.dtype);
        }
      });
      if (round >= 0) times[i].push_back(seconds / kTrainingSteps);
    }
  }
  for (size_t i = 0; i < contenders.size(); ++i) {
    contenders[i].training_speed = double(options.batch * options.context) / median(times[i]);
  }
  return true;
}

// `count` tokens of the split from `begin` on, which wraps around.
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

bool measure_decoding(std::vector<SpeedContender>& contenders, const Dataset& data, const std::vector<int64_t>& depths,
                      const std::function<bool()>& stop) {
  std::vector<Session> sessions;
  for (const SpeedContender& contender : contenders) sessions.emplace_back(contender.model, data.tokenizer);
  for (const int64_t depth : depths) {
    std::vector<std::vector<double>> times(contenders.size());
    for (size_t i = 0; i < sessions.size(); ++i) {
      // In pieces, so that a stop is heard; softmax's last depth takes the longest by far.
      while (sessions[i].depth() < depth) {
        if (stop && stop()) return false;
        const int64_t piece = std::min<int64_t>(depth - sessions[i].depth(), 8 * Session::kChunk);
        sessions[i].prefill(some_tokens(*data.train, sessions[i].depth(), piece));
      }
      contenders[i].state_bytes.push_back(sessions[i].state_bytes());
    }
    for (int round = -1; round < kRounds; ++round) {
      for (size_t i = 0; i < sessions.size(); ++i) {
        if (stop && stop()) return false;
        const auto tokens = some_tokens(*data.train, sessions[i].depth(), kDecodeSteps);
        const double seconds = seconds_of([&] {
          for (const int32_t token : tokens) sessions[i].step(token);
        });
        if (round >= 0) times[i].push_back(seconds / kDecodeSteps);
      }
    }
    for (size_t i = 0; i < sessions.size(); ++i) contenders[i].decode_speed.push_back(1.0 / median(times[i]));
  }
  return true;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

bool measure_speeds(std::vector<SpeedContender>& contenders, const Dataset& data, const TrainingOptions& options,
                    const std::vector<int64_t>& depths, const std::function<bool()>& stop) {
  return measure_training(contenders, data, options, stop) && measure_decoding(contenders, data, depths, stop);
}

Json machine_description(at::Device device) {
  return {{"cpu", cpu_name()}, {"threads", at::get_num_threads()}, {"torch", TORCH_VERSION}, {"device", device.str()}};
}

}  // namespace cortado
