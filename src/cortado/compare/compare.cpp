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
#include "cortado/train/data.h"
#include "cortado/train/run.h"
#include "cortado/train/speed.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWidthStep = 8;  // feed-forward widths are multiples of it
constexpr double kParameterTolerance = 0.05;

int64_t parameter_count(const Json& config, const std::string& name) {
  return LanguageModel(ModelConfig::from_json(config, name)).parameter_count();
}

// What one mixer's run needs.
struct Contender {
  Json config;
  std::string run;     // its folder
  std::string losses;  // the file that says it is finished
  Json row;            // what table.json has of it
};

Json with_width(Json config, int64_t width) {
  config["feed_forward"]["dim"] = width;
  return config;
}

// The contender of `mixer`, with the feed-forward that brings its parameters nearest to `target` (they grow linearly
// with it).
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
  fail_input_if(model.feed_forward == FeedForwardKind::kNone, "[", request.config_name,
                "] to compare mixers, the model needs a feed-forward, whose width makes parameters equal");
  const int64_t target =
      parameter_count(with_width(with_mixer(base, kSoftmax.name, model.dim), model.feed_forward_dim), kSoftmax.name);
  std::vector<Contender> result;
  for (const std::string& mixer : request.mixers) {
    Contender contender = make_contender(with_mixer(base, mixer, model.dim, request.bare), mixer, target);
    contender.run = request.out + "/" + mixer;
    contender.losses = contender.run + ".json";
    result.push_back(std::move(contender));
  }
  return result;
}

void say(const CompareRequest& request, const std::string& line) {
  if (request.progress) std::cout << line << std::endl;
}

// What an earlier call wrote down of a finished run with the same config; null if there is none.
Json finished(const Contender& contender) {
  if (!fs::exists(contender.losses)) return nullptr;
  const Json known = read_json_file(contender.losses);
  const auto in_any_order = [](const Json& json) { return nlohmann::json::parse(json.dump()); };
  return in_any_order(known.value("config", Json())) == in_any_order(contender.config) ? known : Json();
}

// Trains one contender, or goes on where an earlier call was stopped. False: stopped again.
bool train_contender(const CompareRequest& request, const Contender& contender) {
  if (!finished(contender).is_null()) return true;
  TrainRequest train;
  train.config = contender.config;
  train.config_name = request.config_name;
  train.data = request.data;
  train.out = contender.run;
  train.use = fs::exists(RunFolder{contender.run}.config()) ? FolderUse::kResume : FolderUse::kFresh;
  train.device = request.device;
  train.stop = request.stop;
  train.progress = request.progress;
  return train_run(train).done;
}

// The losses of a finished run: read back, or measured now and written down. False: stopped.
bool measure_losses(const CompareRequest& request, const Dataset& data, const TrainingOptions& options,
                    Contender& contender) {
  Json known = finished(contender);
  if (known.is_null()) {
    const auto model = open_model(contender.run, {.which = "last", .device = request.device});
    known = {{"config", contender.config}};
    for (const int64_t times : {1, 4, 16}) {
      if (request.stop && request.stop()) return false;
      say(request, concat("  evaluating ", plain(contender.row["mixer"]), " at ", times * options.context, " tokens"));
      known[concat("loss_", times, "x")] =
          evaluate_loss(*model, *data.validation, {.context = times * options.context}).loss();
    }
    write_file(contender.losses, known.dump(2) + "\n");
  }
  contender.row["loss"] = known.at("loss_1x");
  contender.row["loss_4x"] = known.at("loss_4x");
  contender.row["loss_16x"] = known.at("loss_16x");
  return true;
}

void write_result(const CompareRequest& request, const Json& rows) {
  const Json json = {{"machine", machine_description(request.device)},
                     {"config", request.config},
                     {"depths", request.depths},
                     {"rows", rows}};
  write_file(request.out + "/table.json", json.dump(2) + "\n");
  write_file(request.out + "/table.md", comparison_table(rows, request).markdown());
}

std::string short_count(int64_t tokens) {
  return tokens >= 1024 && tokens % 1024 == 0 ? concat(tokens / 1024, "K") : std::to_string(tokens);
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

Json mixer_settings(const std::string& name, int64_t latents) {
  for (const Mechanism* mechanism : mechanisms()) {
    for (const auto& [variant, changes] : mechanism->variants) {
      if (variant != name) continue;
      Json settings = mixer_settings(mechanism->name, latents);
      settings.update(parse_json(changes, name));
      return settings;
    }
  }
  const Mechanism& mechanism = find_mechanism(name);
  fail_input_if(!mechanism.causal, "[compare] ", name, " has no causal form: it can't be a language model");
  Json settings = {{"mixer", mechanism.name}};
  settings.update(parse_json(mechanism.compare, name));
  if (mechanism.latents) settings["latents"] = latents;
  return settings;
}

Json with_mixer(const Json& base, const std::string& mixer, int64_t latents, bool bare) {
  Json config = base;
  config["name"] = mixer;
  config["mixer"] = mixer_settings(mixer, latents);
  const bool orderless = find_mechanism(config["mixer"]["mixer"].get<std::string>()).orderless;
  const std::string positions = config.value("positions", "none");
  if (orderless && !bare && (positions == "none" || positions == "rotary")) config["positions"] = "sinusoidal";
  return config;
}

Comparison compare(const CompareRequest& request) {
  const auto options = TrainingOptions::from_json(request.config.value("training", Json::object()));
  const Dataset data = open_data(request.data, options);
  std::vector<Contender> contenders = make_contenders(request, data);
  claim_output_directory(request.out, /*refuse_used=*/false);
  Comparison result;
  for (Contender& contender : contenders) {
    if (request.stop && request.stop()) return result;
    if (!train_contender(request, contender)) return result;
    if (!measure_losses(request, data, options, contender)) return result;
    result.rows.push_back(contender.row);
  }
  say(request, "measuring speeds");
  std::vector<SpeedContender> racers;
  for (const Contender& contender : contenders) {
    racers.push_back({.model = open_model(contender.run, {.which = "last", .device = request.device})});
  }
  SpeedRequest speeds = speed_request(data, options);
  speeds.depths = request.depths;
  speeds.stop = request.stop;
  if (!measure_training_speeds(racers, speeds) || !measure_decode_speeds(racers, speeds)) return result;
  for (size_t i = 0; i < racers.size(); ++i) {
    Json& row = result.rows[i];
    row["training_tokens_per_second"] = racers[i].training_speed;
    row["decode_tokens_per_second"] = Json::array();
    row["state_bytes"] = Json::array();
    for (const DecodeSpeed& decode : racers[i].decode) {
      row["decode_tokens_per_second"].push_back(1 / decode.seconds);
      row["state_bytes"].push_back(decode.state_bytes);
    }
  }
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
  return table_of(rows, columns);
}

}  // namespace cortado
