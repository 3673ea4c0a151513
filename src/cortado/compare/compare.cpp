#include "cortado/compare/compare.h"

#include <filesystem>
#include <iostream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/human.h"
#include "cortado/evaluate/evaluate.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/softmax/mixer.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/language_model.h"
#include "cortado/sweep/sweep.h"
#include "cortado/train/language_task.h"
#include "cortado/train/speed.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWidthStep = 8;  // feed-forward widths are multiples of this
constexpr double kParameterTolerance = 0.05;

int64_t parameter_count(const Json& config, const std::string& name) {
  return LanguageModel(ModelConfig::from_json(config, name)).parameter_count();
}

// The run of one mixer.
struct Contender {
  Json config;
  Json row;  // its row of table.json
};

Json with_width(Json config, int64_t width) {
  config["feed_forward"]["dim"] = width;
  return config;
}

// Makes the contender of `mixer`. Its feed-forward width brings the parameter count, which is linear in the width,
// nearest to `target`.
Contender make_contender(const Json& config, const std::string& mixer, int64_t target) {
  Contender result;
  const auto count = [&](int64_t width) { return parameter_count(with_width(config, width), mixer); };
  const int64_t least = count(kWidthStep);
  const double per_step = double(count(2 * kWidthStep) - least);
  const auto steps = std::max<int64_t>(0, std::llround(double(target - least) / per_step));
  const int64_t width = kWidthStep * (1 + steps);
  result.config = with_width(config, width);
  const int64_t parameters = parameter_count(result.config, mixer);
  result.row = {{"mixer", mixer}, {"feed_forward", width}, {"parameters", parameters}};
  const double off = double(parameters) / double(target) - 1.0;
  fail_input_if(std::abs(off) > kParameterTolerance, "[compare] ", mixer, " can't be brought to ", target,
                " parameters by its feed-forward alone (nearest: ", parameters, "); choose a larger model");
  return result;
}

std::vector<Contender> make_contenders(const CompareRequest& request, const Dataset& data) {
  Json base = request.config;
  base["vocabulary"] = data.tokenizer->vocabulary();
  const ModelConfig model = ModelConfig::from_json(base, request.config_name);
  fail_input_if(!base.contains("layers") || !base["layers"].is_number_integer(), "[", request.config_name,
                "] to compare mixers, \"layers\" must be a number: every layer gets the mixer");
  fail_input_if(model.feed_forward.kind == FeedForwardKind::kNone, "[", request.config_name,
                "] to compare mixers, the model needs a feed-forward, whose width makes parameters equal");
  const int64_t target =
      parameter_count(with_width(with_mixer(base, kSoftmax.name, model.dim), model.feed_forward.dim), kSoftmax.name);
  std::vector<Contender> result;
  for (const std::string& mixer : request.mixers) {
    result.push_back(make_contender(with_mixer(base, mixer, model.dim, request.bare), mixer, target));
  }
  return result;
}

void say(const CompareRequest& request, const std::string& line) {
  if (request.progress) std::cout << line << std::endl;
}

// A comparison is a sweep over mixers in this process. Each run has its mixer's name.
SweepPlan plan_of(const CompareRequest& request, const std::vector<Contender>& contenders) {
  SweepPlan plan;
  plan.name = "compare";
  plan.base = {{"config", request.config}, {"data", request.data}, {"bare", request.bare}};
  for (const Contender& contender : contenders) {
    const std::string mixer = contender.row["mixer"];
    plan.runs.push_back({.id = mixer, .settings = {{"mixer", mixer}}, .seed = 0, .config = contender.config});
  }
  return plan;
}

// Adds the losses at 1, 4 and 16 times the training length to a finished run's result. Returns false if stopped.
bool measure_lengths(const CompareRequest& request, const Dataset& data, int64_t context, const SweepRun& run,
                     Json& result) {
  const SweepPlace place{request.out};
  const auto model = open_model(place.folder(run), {.which = "last", .device = request.device});
  for (const int64_t times : {1, 4, 16}) {
    if (request.stop && request.stop()) return false;
    say(request, concat("  evaluating ", run.id, " at ", times * context, " tokens"));
    result[concat("loss_", times, "x")] = evaluate_loss(*model, *data.validation, {.context = times * context}).loss();
  }
  write_file(place.result(run), result.dump(2) + "\n");
  return true;
}

// Trains one contender, or resumes it, and evaluates its losses. Returns false if stopped.
bool run_contender(const CompareRequest& request, const Dataset& data, const TrainingOptions& options,
                   const SweepPlan& plan, Contender& contender) {
  const SweepRun& run = plan.run(contender.row["mixer"].get<std::string>());
  const SweepPlace place{request.out};
  const SweepTraining training{request.device, request.data, request.stop, request.progress};
  const auto result = fs::exists(place.result(run)) ? std::optional(read_json_file(place.result(run)))
                                                    : run_one(plan, run, place, training);
  if (!result) return false;
  Json known = *result;
  if (known.value("status", "") != "done") {
    contender.row["message"] = known.value("message", "failed");
    return true;
  }
  if (!known.contains("loss_16x") && !measure_lengths(request, data, options.context, run, known)) return false;
  contender.row["loss"] = known.at("loss_1x");
  contender.row["loss_4x"] = known.at("loss_4x");
  contender.row["loss_16x"] = known.at("loss_16x");
  return true;
}

void write_result(const CompareRequest& request, const Json& rows) {
  Json json = {{"config", request.config}, {"depths", request.depths}, {"rows", rows}};
  json.update(circumstances(request.device));
  write_file(request.out + "/table.json", json.dump(2) + "\n");
  write_file(request.out + "/table.md", comparison_table(rows, request).markdown());
}

std::string short_count(int64_t tokens) {
  return tokens >= 1024 && tokens % 1024 == 0 ? concat(tokens / 1024, "K") : std::to_string(tokens);
}

// Measures the contenders that were trained. Returns false if stopped.
bool measure_speeds(const CompareRequest& request, const Dataset& data, const TrainingOptions& options,
                    const SweepPlan& plan, Json& rows) {
  say(request, "measuring speeds");
  std::vector<SpeedContender> racers;
  std::vector<Json*> measured;
  for (Json& row : rows) {
    if (row.contains("message")) continue;
    const std::string folder = SweepPlace{request.out}.folder(plan.run(row["mixer"].get<std::string>()));
    racers.push_back({.model = open_model(folder, {.which = "last", .device = request.device})});
    measured.push_back(&row);
  }
  if (racers.empty()) return true;
  SpeedRequest speeds = speed_request(data, options);
  speeds.depths = request.depths;
  speeds.stop = request.stop;
  if (!measure_training_speeds(racers, speeds) || !measure_decode_speeds(racers, speeds)) return false;
  for (size_t i = 0; i < racers.size(); ++i) {
    Json& row = *measured[i];
    row["training_tokens_per_second"] = racers[i].training_speed;
    row["decode_tokens_per_second"] = Json::array();
    row["state_bytes"] = Json::array();
    for (const DecodeSpeed& decode : racers[i].decode) {
      row["decode_tokens_per_second"].push_back(1 / decode.seconds);
      row["state_bytes"].push_back(decode.state_bytes);
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> comparable_mixers() {
  std::vector<std::string> names;
  for (const Mechanism* mechanism : mechanisms()) {
    if (!mechanism->causal) continue;
    for (const auto& [name, settings] : mechanism->variants) names.push_back(name);
    names.push_back(mechanism->name);
  }
  return names;
}

Json mixer_settings(const std::string& name, int64_t latents, bool causal) {
  for (const Mechanism* mechanism : mechanisms()) {
    for (const auto& [variant, changes] : mechanism->variants) {
      if (variant != name) continue;
      Json settings = mixer_settings(mechanism->name, latents, causal);
      settings.update(parse_json(changes, name));
      return settings;
    }
  }
  const Mechanism& mechanism = find_mechanism(name);
  fail_input_if(causal && !mechanism.causal, "[compare] ", name, " has no causal form: it can't be a language model");
  Json settings = {{"mixer", mechanism.name}};
  settings.update(parse_json(mechanism.compare, name));
  if (mechanism.latents) settings["latents"] = latents;
  return settings;
}

Json with_mixer(const Json& base, const std::string& mixer, int64_t latents, bool bare) {
  Json config = base;
  config["name"] = mixer;
  config["mixer"] = mixer_settings(mixer, latents, base.value("causal", true));
  const bool orderless = find_mechanism(config["mixer"]["mixer"].get<std::string>()).orderless;
  const std::string positions = config.value("positions", "none");
  if (orderless && !bare && (positions == "none" || positions == "rotary")) config["positions"] = "sinusoidal";
  return config;
}

Comparison compare(const CompareRequest& request) {
  const auto options = TrainingOptions::from_json(request.config.value("training", Json::object()));
  const Dataset data = open_data(request.data, options);
  std::vector<Contender> contenders = make_contenders(request, data);
  const SweepPlan plan = plan_of(request, contenders);
  claim_sweep_folder(plan, request.out, request.said);
  Comparison result;
  for (Contender& contender : contenders) {
    if (request.stop && request.stop()) return result;
    if (!run_contender(request, data, options, plan, contender)) return result;
    result.rows.push_back(contender.row);
  }
  if (!measure_speeds(request, data, options, plan, result.rows)) return result;
  write_result(request, result.rows);
  result.done = true;
  return result;
}

Table comparison_table(const Json& rows, const CompareRequest& request) {
  const auto options = TrainingOptions::from_json(request.config.value("training", Json::object()));
  const auto whole = [](double speed) { return with_commas(std::llround(speed)); };
  std::vector<Column> columns = {{"mixer", "/mixer"},
                                 {"parameters", "/parameters", with_commas},
                                 {concat("loss at ", options.context), "/loss", decimals(4)},
                                 {concat("at ", 4 * options.context), "/loss_4x", decimals(4)},
                                 {concat("at ", 16 * options.context), "/loss_16x", decimals(4)},
                                 {"training tokens/s", "/training_tokens_per_second", whole}};
  const auto at_depths = [&](const std::string& what, const std::string& list, const auto& shown) {
    for (size_t i = 0; i < request.depths.size(); ++i) {
      columns.push_back({concat(what, " at ", short_count(request.depths[i])), concat("/", list, "/", i), shown});
    }
  };
  at_depths("decode tokens/s", "decode_tokens_per_second", whole);
  at_depths("state", "state_bytes", human_bytes);
  columns.push_back({"", "/message"});
  return table_of(rows, columns);
}

}  // namespace cortado
