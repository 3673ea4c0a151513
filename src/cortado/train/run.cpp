#include "cortado/train/run.h"

#include <filesystem>
#include <iostream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/human.h"
#include "cortado/base/random.h"
#include "cortado/base/version.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/weights.h"
#include "cortado/train/example_task.h"
#include "cortado/train/trainer.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

// A run's description, complete before anything is written.
struct Plan {
  ModelConfig model;
  TrainingOptions options;
  std::shared_ptr<TaskData> data;
  Json before;  // config.json of the run that is resumed; null: a new run

  Json config() const {
    Json json = model.to_json();
    json["training"] = options.to_json();
    return json;
  }
};

// Returns the first key in which two configs differ, for a message: "dim", "training.batch".
std::string first_difference(const Json& a, const Json& b, const std::string& prefix = "") {
  if (!a.is_object() || !b.is_object()) return a == b ? "" : prefix;
  const std::string dot = prefix.empty() ? "" : prefix + ".";
  for (const auto& [key, value] : a.items()) {
    const std::string found = b.contains(key) ? first_difference(value, b[key], dot + key) : dot + key;
    if (!found.empty()) return found;
  }
  for (const auto& [key, value] : b.items()) {
    if (!a.contains(key)) return dot + key;
  }
  return "";
}

// Reads "training"; its "context" defaults to the model's.
TrainingOptions read_options(const ModelConfig& model) {
  Json training = model.training.is_null() ? Json::object() : model.training;
  if (training.is_object() && !training.contains("context") && model.context > 0) training["context"] = model.context;
  auto options = TrainingOptions::from_json(training, "training");
  options.dtype = options.compute_type();  // the run keeps what this machine chose
  fail_input_if(model.positions == PositionKind::kLearned && options.context > model.context,
                "[training] \"context\" is ", options.context, ", but the model has learned positions for ",
                model.context, " tokens only");
  return options;
}

// A resumed run must have the model, data and settings that it began with. Only its duration and its logging may
// change.
void check_same_run(const RunFolder& folder, Json before, Json now) {
  for (Json* config : {&before, &now}) {
    for (const char* key : TrainingOptions::kMayChange) (*config)["training"].erase(key);
    for (const char* key : {"name", "model_type", "architectures", "transformers"}) config->erase(key);
  }
  const std::string different = first_difference(before, now);
  fail_input_if(!different.empty(), "[--resume] ", folder.path, " was started with another \"", different,
                "\"; leave CONFIG and --set out to go on as it was, or train into another folder");
}

// A resumed run keeps its data, its compute type and the end of its schedule, unless they are given anew. decay_steps
// is stored separately: it need not follow from the config's steps nor pass the checks of a config written by a person.
struct EarlierSettings {
  std::string data;
  std::optional<int64_t> decay_steps;
};
EarlierSettings keep_from_run(const Json& before, Json& config) {
  if (!config.is_object() || before.is_null()) return {};
  const Json training = before.value("training", Json::object());
  EarlierSettings earlier{training.value("data", ""), std::nullopt};
  Json& given = config["training"];
  if (given.is_null()) given = Json::object();
  // Another type may be faster now than when the run began.
  if (given.is_object() && given.value("dtype", Json("auto")) == "auto" && training.contains("dtype")) {
    given["dtype"] = training["dtype"];
  }
  if (!training.contains("decay_steps") || !training["decay_steps"].is_number_integer()) return earlier;
  if (given.is_object()) {
    if (given.contains("decay_steps") && given["decay_steps"] != training["decay_steps"]) return earlier;
    given.erase("decay_steps");
  }
  earlier.decay_steps = training["decay_steps"].get<int64_t>();
  return earlier;
}

// Returns the tokenizer of a resumed run, or of the run whose weights this one starts from.
std::string own_tokenizer(const TrainRequest& request, const std::string& base) {
  const RunFolder folder{request.out};
  if (request.use == FolderUse::kResume && fs::exists(folder.tokenizer() + "/tokenizer.json")) {
    return folder.tokenizer();
  }
  return base.empty() ? "" : base + "/tokenizer";
}

std::string absolute(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

// Converts epochs to steps. The schedule ends with them unless the config says otherwise.
void count_steps(TrainingOptions& options, const TaskData& data, const Json& config) {
  const int64_t batches = data.epoch(options);
  fail_input_if(batches < 1, "[training] \"epochs\": ", data.description(), " have no end, give \"steps\"");
  options.steps = (options.epochs * batches + options.accumulate - 1) / options.accumulate;
  const auto training = config.find("training");
  if (training == config.end() || !training->contains("decay_steps")) options.decay_steps = options.steps;
}

Plan make_plan(const TrainRequest& request) {
  const RunFolder folder{request.out};
  Json config = request.config;
  std::string name = request.config_name;
  Plan plan;
  const bool resume = request.use == FolderUse::kResume;
  fail_input_if(resume && !fs::exists(folder.config()), "[--resume] there is no run in ", folder.path);
  if (resume) plan.before = read_json_file(folder.config());
  if (config.is_null()) {
    name = folder.config();
    config = plan.before;
    request.change(config);
  }
  const EarlierSettings earlier = keep_from_run(plan.before, config);
  plan.model = ModelConfig::from_json(config, name);
  plan.options = read_options(plan.model);
  if (!request.data.empty()) plan.options.data = request.data;
  if (plan.options.data.empty()) plan.options.data = earlier.data;
  // An absolute path lets --resume work from any folder.
  if (!plan.options.data.empty()) plan.options.data = absolute(plan.options.data);
  if (!plan.options.base.empty()) {
    plan.options.base = absolute(plan.options.base);
    fail_input_if(!resume && !fs::is_directory(plan.options.base), "[train] \"base\" must be a run, ",
                  plan.options.base, " is none");
  }
  plan.data = plan.model.task.is_null() ? request.task(plan.options, own_tokenizer(request, plan.options.base))
                                        : open_example_data(plan.model.task);
  plan.data->complete(plan.model, plan.options, name);
  if (plan.options.epochs > 0) count_steps(plan.options, *plan.data, config);
  if (earlier.decay_steps) plan.options.decay_steps = *earlier.decay_steps;
  return plan;
}

// A resumed run takes its weights from its checkpoint, not from the base.
std::shared_ptr<Backbone> make_model(const Plan& plan, at::Device device, bool resume) {
  const TrainingOptions& options = plan.options;
  at::manual_seed(RandomStream(uint64_t(options.seed), "weights").bits(0));
  std::shared_ptr<Backbone> model;
  if (!options.base.empty() && !resume) {
    model = open_backbone(options.base, {.device = device});
    fail_input_if(model->config().architecture_hash() != plan.model.architecture_hash(), "[train] the config is not ",
                  options.base, "'s: its weights don't fit");
    model->train();
  } else {
    model = make_backbone(plan.model);
    model->to(device);
  }
  if (!options.lora) return model;
  fail_input_if(options.base.empty(), "[train] \"lora\" needs trained weights: name a run in place of the config");
  for (Tensor& parameter : model->parameters()) parameter.requires_grad_(false);
  attach_lora(*model, *options.lora);
  return model;
}

// Processes may have measured different types to be faster; process 0's is used.
std::optional<at::ScalarType> type_of_the_first(const Ranks& ranks, const std::optional<at::ScalarType>& type) {
  if (!ranks.several() || !type) return type;
  return dtype_of(ranks.gather(dtype_name(*type))[0]);
}

// Fails if processes would train different models or on different data, and broadcasts process 0's weights.
void require_same_plan(const Ranks& ranks, const Plan& plan, const Task& task, const Backbone& model) {
  if (!ranks.grouped()) return;
  ranks.require_same("version of cortado", concat(kVersion, " ", kCommit));
  ranks.require_same("config", plan.config().dump());
  ranks.require_same("text or examples", concat(task.data().tokens, " ", task.data().fingerprint));
  const at::NoGradGuard no_grad;
  for (auto& weight : named_weights(model)) ranks.broadcast(weight.value());  // other machines may draw other weights
}

void introduce(const Plan& plan, const Backbone& model, const TrainerState& state, const Ranks& ranks) {
  std::cout << "training " << (plan.model.name.empty() ? "a model" : plan.model.name) << ": "
            << with_commas(model.parameter_count()) << " parameters, " << plan.data->description() << ", "
            << plan.options.steps << " steps of " << with_commas(plan.options.tokens_per_step()) << " tokens";
  if (ranks.several()) std::cout << " on " << ranks.size() << " processes";
  if (state.step > 0) std::cout << ", going on after step " << state.step;
  std::cout << std::endl;
}

// Resumes from the folder's checkpoint, if there is one.
void resume(Trainer& trainer, Backbone& model, const RunFolder& folder) {
  if (fs::exists(folder.trainer())) trainer.resume(load_trainer(folder.trainer(), model, trainer.optimizer()));
}

// Writes the trainer's file first: it alone decides where a resumed run starts.
void checkpoint(const Trainer& trainer, const NamedTensors& moments, const Backbone& model, const Plan& plan,
                const RunFolder& folder) {
  const TrainerState& state = trainer.state();
  save_trainer(folder.trainer(), model, moments, state, plan.config());
  save_weights(model, folder.last(), {{"step", std::to_string(state.step)}});
  if (plan.options.lora) save_lora(folder.adapters(), tensors_of(lora_weights(model)), *plan.options.lora);
  Json summary = json_of(state);
  summary["steps"] = plan.options.steps;
  summary["about"] = plan.config();
  write_file(folder.summary(), summary.dump(2) + "\n");
}

bool train(Trainer& trainer, const Backbone& model, const Plan& plan, const TrainRequest& request) {
  const RunFolder folder{request.out};
  const Ranks& ranks = Ranks::world();
  std::optional<MetricsFile> metrics;
  ranks.by_first([&] { metrics.emplace(folder.metrics(), trainer.state().step); });
  RunKeeper keeper;
  keeper.place = folder.path;
  keeper.log = [&](const Json& line) { ranks.by_first([&] { metrics->write(line); }); };
  keeper.checkpoint = [&] {
    const NamedTensors moments = trainer.optimizer().moments();
    ranks.by_first([&] { checkpoint(trainer, moments, model, plan, folder); });
  };
  keeper.validated = [&](const Validation& found, bool best) {
    if (!best) return;
    ranks.by_first([&] {
      save_weights(model, folder.best(),
                   {{"step", std::to_string(trainer.state().step)}, {"validation_loss", concat(found.loss)}});
    });
  };
  if (!request.keep) {
    keeper.checkpoint = [] {};
    keeper.validated = [](const Validation&, bool) {};
  }
  return trainer.run(keeper, {.stop = request.stop, .stop_at = request.stop_at, .progress = request.progress});
}

}  // namespace

TrainResult train_run(const TrainRequest& request) {
  // Finds everything that can be wrong before the folder is touched.
  const Ranks& ranks = Ranks::world();
  const RunFolder folder{request.out};
  const bool going_on = request.use == FolderUse::kResume;
  Plan plan;
  std::shared_ptr<Backbone> model;
  std::shared_ptr<Task> task;
  ranks.agree([&] { plan = make_plan(request); });
  plan.options.dtype = type_of_the_first(ranks, plan.options.dtype);
  ranks.agree([&] {
    model = make_model(plan, request.device, going_on);
    task = plan.data->task(model, plan.options);
  });
  require_same_plan(ranks, plan, *task, *model);

  std::optional<RunLock> lock;
  ranks.by_first([&] { lock.emplace(folder, request.use); });
  std::optional<Trainer> made;
  ranks.agree([&] { made.emplace(task, plan.options, ranks, request.share_optimizer, request.context_parts); });
  Trainer& trainer = *made;
  ranks.agree([&] {
    if (going_on) check_same_run(folder, plan.before, plan.config());
    // This also checks the data, so it comes before the config is written.
    if (going_on) resume(trainer, *model, folder);
    if (ranks.first()) describe_run(folder, plan.data->tokenizer(), plan.config(), plan.options.base);
  });
  if (request.progress && ranks.first()) introduce(plan, *model, trainer.state(), ranks);

  const bool done = train(trainer, *model, plan, request);
  return {done, trainer.state(), plan.options.steps, model->parameter_count()};
}

}  // namespace cortado
