// cortado bench model: training, prefill and decoding of a config's model, with memory.
#include <iostream>
#include <optional>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/isa.h"
#include "cortado/base/machine.h"
#include "cortado/base/memory.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/table.h"
#include "cortado/cli/commands.h"
#include "cortado/cli/common.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/config.h"
#include "cortado/nn/dtype.h"
#include "cortado/train/speed.h"

namespace cortado {
namespace {

constexpr int64_t kTokensAStep = 4096;  // of training, where --batch doesn't say

struct ModelBench {
  std::string config;
  std::vector<std::string> settings;
  std::vector<int64_t> tokens = {256, 1024, 4096};
  std::vector<int64_t> depths = {0, 100, 1000, 10000, 100000, 1000000};
  int64_t batch = 0, vocabulary = 0;
  int rounds = 5;
  double budget = 60;
  bool json = false, quiet = false;
  std::optional<std::string> weights, kv_type;
  std::shared_ptr<MemoryOptions> memory;
  std::shared_ptr<CommonOptions> common;

  std::string types() const {
    return (common->dtype_or(at::kFloat) == at::kBFloat16 ? "bfloat16" : "float32") +
           (weights ? ", weights " + *weights : std::string());
  }
};

struct TrainingRow {
  int64_t tokens = 0, batch = 0;
  double tokens_per_second = 0, flops = 0;  // a second
  int64_t peak_bytes = 0;
};

struct PrefillRow {
  int64_t tokens = 0;
  double seconds = 0;
};

struct ModelResult {
  std::vector<TrainingRow> training;
  std::vector<PrefillRow> prefill;
  std::vector<DecodeSpeed> decode;
  bool done = false;  // false: stopped
};

class ModelMeasurement {
 public:
  ModelMeasurement(const ModelBench& options, std::shared_ptr<LanguageModel> model)
      : options_(options), model_(std::move(model)) {
    request_.rounds = options.rounds;
    request_.stop = interrupt_requested;
    request_.progress = [this](const std::string& what, int64_t done, int64_t total) {
      const std::string label = stage_ + what, aim = concat(label, " ", total);
      if (!bar_ || aim != std::exchange(shown_, aim)) {
        bar_.emplace(
            ProgressBar::Options{.label = label, .total = total, .units_per_count = 0, .quiet = options_.quiet});
        bar_->start_at(done);
      }
      bar_->update(done);
    };
    request_.tokens = [this](int64_t, int64_t count) {
      const Tensor tokens = random_tokens({count});
      return std::vector<int32_t>(tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + count);
    };
  }

  ModelResult run() {
    // Narrow weights are for inference.
    result_.done = (options_.weights || train()) && prefill() && decode();
    return result_;
  }

 private:
  Tensor random_tokens(at::IntArrayRef shape) const {
    return at::randint(model_->config().vocabulary, shape, at::kLong);
  }
  bool stopped() const { return request_.stop(); }

  bool train() {
    for (const int64_t tokens : options_.tokens) {
      stage_ = concat("T ", tokens, ", ");
      TrainingOptions& training = request_.options;
      training = TrainingOptions();
      training.context = tokens;
      training.batch = options_.batch > 0 ? options_.batch : std::max<int64_t>(1, kTokensAStep / tokens);
      training.dtype = options_.common->dtype_or(at::kFloat);
      request_.next_batch = [this, shape = std::vector<int64_t>{training.batch, tokens}] {
        return TrainingBatch{random_tokens(shape), random_tokens(shape), {}};
      };
      std::vector<SpeedContender> alone{{.model = model_}};
      reset_peak_resident_bytes();
      if (!measure_training_speeds(alone, request_)) return false;
      const double speed = alone[0].training_speed;
      // A backward pass is two forward passes; on the average over a sequence a token sees half of it.
      const double flops = 3 * model_->flops_per_token(tokens / 2);
      result_.training.push_back({tokens, training.batch, speed, flops * speed, peak_resident_bytes()});
    }
    return true;
  }

  bool prefill() {
    for (const int64_t tokens : options_.tokens) {
      stage_ = concat("T ", tokens, ", ");
      std::vector<double> times;
      for (int round = -1; round < options_.rounds; ++round) {
        if (stopped()) return false;
        Session session(model_, nullptr);
        const auto text = request_.tokens(0, tokens);
        const double seconds = seconds_of([&] { session.prefill(text); });
        if (round >= 0) times.push_back(seconds);
        request_.progress("prefill", round + 2, options_.rounds + 1);
      }
      result_.prefill.push_back({tokens, median(times)});
    }
    return true;
  }

  bool decode() {
    stage_ = "decode, ";
    request_.depths = options_.depths;
    request_.budget = options_.budget;
    std::vector<SpeedContender> alone{{.model = model_}};
    const bool done = measure_decode_speeds(alone, request_);
    result_.decode = alone[0].decode;
    return done;
  }

  const ModelBench& options_;
  std::shared_ptr<LanguageModel> model_;
  std::string stage_, shown_;  // "T 256, "; what the bar shows
  std::optional<ProgressBar> bar_;
  SpeedRequest request_;
  ModelResult result_;
};

bool reached_all(const ModelBench& options, const ModelResult& result) {
  return options.depths.empty() || (!result.decode.empty() && result.decode.back().depth >= options.depths.back());
}

void print_text(const ModelBench& options, const LanguageModel& model, const ModelResult& result) {
  std::cout << options.config << ": " << with_commas(model.parameter_count()) << " parameters; " << this_machine().cpu
            << ", " << selected_isa() << ", " << machine_description(at::kCPU)["threads"] << " threads, "
            << options.types() << "\n\n";
  Table training({"training T", "batch", "time a step", "tokens/s", "GFLOP/s", "peak memory"});
  for (const TrainingRow& row : result.training) {
    training.add_row({std::to_string(row.tokens), std::to_string(row.batch),
                      fixed(1e3 * double(row.tokens * row.batch) / row.tokens_per_second, 1) + " ms",
                      human_count(row.tokens_per_second), fixed(row.flops / 1e9, 0),
                      human_bytes(double(row.peak_bytes))});
  }
  Table prefill({"prefill T", "time", "tokens/s"});
  for (const PrefillRow& row : result.prefill) {
    prefill.add_row({std::to_string(row.tokens), fixed(1e3 * row.seconds, 1) + " ms",
                     human_count(double(row.tokens) / row.seconds)});
  }
  Table decode({"decode at depth", "time a token", "tokens/s", "state", "memory"});
  for (const DecodeSpeed& row : result.decode) {
    decode.add_row({with_commas(row.depth), fixed(1e3 * row.seconds, 3) + " ms", human_count(1 / row.seconds),
                    human_bytes(double(row.state_bytes)), human_bytes(double(row.resident_bytes))});
  }
  if (!options.weights) std::cout << training.text() << "\n";
  std::cout << prefill.text() << "\n" << decode.text();
  if (result.done && !reached_all(options, result)) {
    std::cout << "depth " << with_commas(options.depths.back()) << " was not reached: reading on took longer than "
              << options.budget << " s (--budget)\n";
  }
}

void print_json(const ModelBench& options, const LanguageModel& model, const ModelResult& result) {
  Json json = {{"config", options.config}, {"machine", machine_description(at::kCPU)}};
  json["machine"]["isa"] = selected_isa();
  json["parameters"] = model.parameter_count();
  json["weight_bytes"] = model.weight_bytes();
  if (options.weights) json["weights"] = *options.weights;
  json["dtype"] = options.common->dtype_or(at::kFloat) == at::kBFloat16 ? "bfloat16" : "float32";
  json["training"] = json["prefill"] = json["decode"] = Json::array();
  for (const TrainingRow& row : result.training) {
    json["training"].push_back({{"tokens", row.tokens},
                                {"batch", row.batch},
                                {"tokens_per_second", row.tokens_per_second},
                                {"flops_per_second", row.flops},
                                {"peak_bytes", row.peak_bytes}});
  }
  for (const PrefillRow& row : result.prefill) {
    json["prefill"].push_back({{"tokens", row.tokens}, {"seconds", row.seconds}});
  }
  for (const DecodeSpeed& row : result.decode) {
    json["decode"].push_back({{"depth", row.depth},
                              {"seconds", row.seconds},
                              {"state_bytes", row.state_bytes},
                              {"resident_bytes", row.resident_bytes}});
  }
  json["all_depths_reached"] = reached_all(options, result);
  std::cout << json.dump(2) << std::endl;
}

void bench_model(ModelBench& options) {
  const at::Device device = options.common->apply();
  fail_input_if(!device.is_cpu(), "[--device] bench measures the CPU");
  at::manual_seed(static_cast<uint64_t>(options.common->seed_or(0)));
  Json settings = read_config(options.config).to_json();
  for (const std::string& setting : options.settings) apply_setting(settings, setting);
  ModelConfig config = ModelConfig::from_json(settings, options.config);
  if (const auto memory = options.memory->chosen()) config = with_memory(std::move(config), *memory);
  if (options.vocabulary > 0) config.vocabulary = options.vocabulary;
  if (config.vocabulary == 0) config.vocabulary = kAssumedVocabulary;
  fail_input_if(!config.causal, "[", options.config,
                "] an encoder reads whole sequences: it can't be prefilled or decode");
  std::sort(options.tokens.begin(), options.tokens.end());
  std::sort(options.depths.begin(), options.depths.end());
  const bool limited = config.positions == PositionKind::kLearned;
  for (const int64_t length : {options.tokens.back(), options.depths.empty() ? 0 : options.depths.back()}) {
    fail_input_if(limited && length >= config.context, "[", options.config, "] its learned positions end at ",
                  config.context, " tokens: name shorter --tokens and --depth than ", length);
  }
  catch_interrupts();
  const auto model = std::make_shared<LanguageModel>(config);
  model->set_weight_format(weight_format_or_plain(options.weights));
  if (options.kv_type) model->set_cache_type(dtype_of(*options.kv_type));
  const ModelResult result = ModelMeasurement(options, model).run();
  if (options.json) {
    print_json(options, *model, result);
  } else {
    print_text(options, *model, result);
  }
  exit_if_interrupted();
}

}  // namespace

void add_bench_model_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "model", "Measure a config's model: a step of training, prefill, decoding at depths, and memory");
  auto options = std::make_shared<ModelBench>();
  command->add_option("config", options->config, "a config file, or a run's folder; the weights are random")
      ->required();
  command->add_option("--tokens", options->tokens, "lengths for training and prefill (default 256 1024 4096)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_option("--depth", options->depths, "tokens before those decoded (default 0 100 1000 ... 1000000)")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  command->add_option("--budget", options->budget, "seconds to read on to the next depth")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--batch", options->batch, "sequences in a training step (default: 4096 tokens in all)")
      ->check(CLI::PositiveNumber);
  command->add_option("--rounds", options->rounds, "the median of so many is printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--vocabulary", options->vocabulary, "tokens, where the config leaves them to the tokenizer")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--set", options->settings, "change the config: dim=256 (repeatable)")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--quiet", options->quiet, "show no progress bar");
  options->memory = add_memory_options(*command);
  options->common = add_common_options(*command);
  add_weights_option(*command, options->weights);
  add_cache_option(*command, options->kv_type);
  command->footer(
      "Depths are reached by reading random tokens; one that takes longer than --budget is not waited for, and what "
      "was\nreached is measured instead. --dtype bfloat16 trains under autocast; prefill and decoding are float32.\n"
      "With --weights nothing is trained.\n"
      "Examples:\n  cortado bench model configs/table1/latte-pp.json --tokens 1024,4096\n"
      "  cortado bench model configs/nanogpt-gpu.json --set positions=rotary --depth 100,10000 --json\n"
      "  cortado bench model runs/linear --memory lola --chunk 256 --cache 256 --weights int8 --depth 1024,32768");
  command->callback([options] { bench_model(*options); });
}

}  // namespace cortado
