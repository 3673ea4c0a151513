// cortado bench model: speed and memory of a config's model in training, prefill and decoding.
#include <optional>

#include "cortado/base/human.h"
#include "cortado/base/isa.h"
#include "cortado/base/machine.h"
#include "cortado/base/memory.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/table.h"
#include "cortado/cli/common.h"
#include "cortado/cli/imported.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/config.h"
#include "cortado/nn/dtype.h"
#include "cortado/train/speed.h"

namespace cortado {
namespace {

constexpr int64_t kTokensAStep = 4096;  // of training, without --batch

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

  std::string dtype() const { return common->dtype_or(at::kFloat) == at::kBFloat16 ? "bfloat16" : "float32"; }
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

  // Returns false if stopped.
  bool run() {
    // Narrow weights are for inference only, so training is not measured with them.
    return (options_.weights || train()) && prefill() && decode();
  }
  // Returns the measurements per length or depth, under "training", "prefill" and "decode".
  const Json& results() const { return results_; }

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
      // A backward pass costs two forward passes. Averaged over a sequence, a token attends to half of it.
      const double flops = 3 * model_->flops_per_token(tokens / 2);
      results_["training"].push_back({{"tokens", tokens},
                                      {"batch", training.batch},
                                      {"tokens_per_second", speed},
                                      {"flops_per_second", flops * speed},
                                      {"peak_bytes", peak_resident_bytes()}});
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
      results_["prefill"].push_back({{"tokens", tokens}, {"seconds", median(times)}});
    }
    return true;
  }

  bool decode() {
    stage_ = "decode, ";
    request_.depths = options_.depths;
    request_.budget = options_.budget;
    std::vector<SpeedContender> alone{{.model = model_}};
    const bool done = measure_decode_speeds(alone, request_);
    for (const DecodeSpeed& row : alone[0].decode) {
      results_["decode"].push_back({{"depth", row.depth},
                                    {"seconds", row.seconds},
                                    {"state_bytes", row.state_bytes},
                                    {"resident_bytes", row.resident_bytes}});
    }
    return done;
  }

  const ModelBench& options_;
  std::shared_ptr<LanguageModel> model_;
  std::string stage_, shown_;  // the stage's label "T 256, ", and what the bar shows
  std::optional<ProgressBar> bar_;
  SpeedRequest request_;
  Json results_ = {{"training", Json::array()}, {"prefill", Json::array()}, {"decode", Json::array()}};
};

bool reached_all(const ModelBench& options, const Json& results) {
  const Json& decode = results["decode"];
  return options.depths.empty() || (!decode.empty() && decode.back()["depth"] >= options.depths.back());
}

std::function<std::string(const Json&)> milliseconds(int digits) {
  return [=](double seconds) { return fixed(1e3 * seconds, digits) + " ms"; };
}

std::string time_a_step(const Json& row) {
  const double tokens = row["tokens"].get<double>() * row["batch"].get<double>();
  return milliseconds(1)(tokens / row["tokens_per_second"].get<double>());
}

std::string prefill_speed(const Json& row) {
  return human_count(row["tokens"].get<double>() / row["seconds"].get<double>());
}

void print_text(const ModelBench& options, const LanguageModel& model, const Json& results, bool done) {
  std::cout << options.config << ": " << with_commas(model.parameter_count()) << " parameters; " << this_machine().cpu
            << ", " << selected_isa() << ", " << machine_description(at::kCPU)["threads"] << " threads, "
            << options.dtype() << (options.weights ? ", weights " + *options.weights : "") << "\n\n";
  const Table training = table_of(results["training"], {{"training T", "/tokens"},
                                                        {"batch", "/batch"},
                                                        {"time per step", "", time_a_step},
                                                        {"tokens/s", "/tokens_per_second", human_count},
                                                        {"GFLOP/s", "/flops_per_second", decimals(0, 1e9)},
                                                        {"peak memory", "/peak_bytes", human_bytes}});
  const Table prefill =
      table_of(results["prefill"],
               {{"prefill T", "/tokens"}, {"time", "/seconds", milliseconds(1)}, {"tokens/s", "", prefill_speed}});
  const Table decode =
      table_of(results["decode"], {{"decode at depth", "/depth", with_commas},
                                   {"time per token", "/seconds", milliseconds(3)},
                                   {"tokens/s", "/seconds", [](double s) { return human_count(1 / s); }},
                                   {"state", "/state_bytes", human_bytes},
                                   {"memory", "/resident_bytes", human_bytes}});
  if (!options.weights) std::cout << training.text() << "\n";
  std::cout << prefill.text() << "\n" << decode.text();
  if (done && !reached_all(options, results)) {
    std::cout << "depth " << with_commas(options.depths.back())
              << " was not reached: reading up to it took longer than " << options.budget << " s (--budget)\n";
  }
}

void print_json(const ModelBench& options, const LanguageModel& model, const Json& results) {
  Json json = {{"config", options.config}, {"machine", machine_description(at::kCPU)}};
  json["machine"]["isa"] = selected_isa();
  json["parameters"] = model.parameter_count();
  json["weight_bytes"] = model.weight_bytes();
  if (options.weights) json["weights"] = *options.weights;
  json["dtype"] = options.dtype();
  json.update(results);
  json["all_depths_reached"] = reached_all(options, results);
  std::cout << json.dump(2) << std::endl;
}

void bench_model(ModelBench& options) {
  const at::Device device = options.common->apply();
  fail_input_if(!device.is_cpu(), "[--device] bench measures the CPU");
  at::manual_seed(static_cast<uint64_t>(options.common->seed_or(0)));
  Json settings = read_config(run_of(options.config)).to_json();
  for (const std::string& setting : options.settings) apply_setting(settings, setting);
  ModelConfig config = ModelConfig::from_json(settings, options.config);
  if (const auto memory = options.memory->chosen()) config = with_memory(std::move(config), *memory);
  if (options.vocabulary > 0) config.vocabulary = options.vocabulary;
  if (config.vocabulary == 0) config.vocabulary = kAssumedVocabulary;
  fail_input_if(!config.causal, "[", options.config,
                "] a bidirectional model reads whole sequences: it has no prefill and no decoding");
  std::sort(options.tokens.begin(), options.tokens.end());
  std::sort(options.depths.begin(), options.depths.end());
  const bool limited = config.positions == PositionKind::kLearned;
  for (const int64_t length : {options.tokens.back(), options.depths.empty() ? 0 : options.depths.back()}) {
    fail_input_if(limited && length >= config.context, "[", options.config, "] its learned positions end at ",
                  config.context, " tokens: --tokens and --depth must be below that, got ", length);
  }
  catch_interrupts();
  const auto model = std::make_shared<LanguageModel>(config);
  model->set_weight_format(weight_format_or_plain(options.weights));
  if (options.kv_type) model->set_cache_type(dtype_of(*options.kv_type));
  ModelMeasurement measurement(options, model);
  const bool done = measurement.run();
  if (options.json) {
    print_json(options, *model, measurement.results());
  } else {
    print_text(options, *model, measurement.results(), done);
  }
  exit_if_interrupted();
}

}  // namespace

void add_bench_model_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "model", "Measure a config's model: training steps, prefill, decoding at several depths, and memory");
  auto options = std::make_shared<ModelBench>();
  option(*command, "config", options->config, "a config file, or a run's folder; the weights are random", kRequired);
  option(*command, "--tokens", options->tokens, "lengths for training and prefill (default 256 1024 4096)", kCommas,
         CLI::Range(1, 1 << 24));
  option(*command, "--depth", options->depths,
         "tokens read before decoding is measured (default 0 100 1000 ... 1000000)", kCommas, CLI::NonNegativeNumber);
  option(*command, "--budget", options->budget, "seconds to read up to the next depth", CLI::PositiveNumber, kShown);
  option(*command, "--batch", options->batch, "sequences per training step (default: 4096 tokens in total)",
         CLI::PositiveNumber);
  option(*command, "--rounds", options->rounds, "measurements, whose median is printed", CLI::Range(1, 1000), kShown);
  option(*command, "--vocabulary", options->vocabulary,
         "size of the vocabulary, if the config leaves it to the tokenizer", CLI::Range(1, 1 << 30));
  option(*command, "--set", options->settings, "change the config: dim=256 (repeatable)", kAssignments);
  command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--quiet", options->quiet, "show no progress bar");
  options->memory = add_memory_options(*command);
  options->common = add_common_options(*command);
  add_weights_option(*command, options->weights);
  add_cache_option(*command, options->kv_type);
  command->footer(
      "Depths are reached by reading random tokens. If that takes longer than --budget, the depth reached by then is\n"
      "measured instead. --dtype bfloat16 trains under autocast; prefill and decoding are float32. With --weights,\n"
      "training is not measured.\n"
      "Examples:\n  cortado bench model configs/table1/latte-pp.json --tokens 1024,4096\n"
      "  cortado bench model configs/nanogpt-gpu.json --set positions=rotary --depth 100,10000 --json\n"
      "  cortado bench model runs/linear --memory lola --chunk 256 --cache 256 --weights int8 --depth 1024,32768");
  command->callback([options] { bench_model(*options); });
}

}  // namespace cortado
