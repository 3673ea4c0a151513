#include "cortado/convert/linearize.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/human.h"
#include "cortado/base/random.h"
#include "cortado/convert/report.h"
#include "cortado/convert/sinks.h"
#include "cortado/convert/weights.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/matmul.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConversionFormat = "cortado-conversion";
constexpr const char* kConversionVersion = "1";
constexpr int64_t kDefaultEpochs = 2;
constexpr int64_t kEndless = int64_t{1} << 50;
const std::string kFixedPrefix = "fixed.";

std::string plan_path(const std::string& folder) { return folder + "/linearize.json"; }

LinearizePlan plan_of(const LinearizeRequest& request) {
  if (request.use == FolderUse::kResume) {
    fail_input_if(!fs::exists(plan_path(request.out)), "[--resume] ", request.out,
                  " holds no conversion to go on with");
    return from_fields<LinearizePlan>(read_json_file(plan_path(request.out)), plan_path(request.out));
  }
  LinearizePlan plan = request.plan;
  const auto absolute = [](const std::string& path) { return fs::absolute(path).lexically_normal().string(); };
  plan.source = absolute(plan.source);  // --resume works from any directory
  if (!plan.from.empty()) plan.from = absolute(plan.from);
  for (std::string& file : plan.data) file = absolute(file);
  if (!plan.instructions.empty()) plan.instructions = absolute(plan.instructions);
  return plan;
}

struct PlannedStage {
  std::string name;
  StageOptions options;
  std::function<std::shared_ptr<Objective>(const std::shared_ptr<LanguageModel>&)> objective;
  WeightFormat frozen = WeightFormat::kPlain;  // the format in which the stage can keep the layers' frozen matrices
};

// The stages in order, without those of no tokens.
std::vector<PlannedStage> planned_stages(const LinearizePlan& plan) {
  using Model = std::shared_ptr<LanguageModel>;
  // Only attention transfer needs no gradient through frozen matrices.
  const auto narrow = plan.weights == "plain" ? WeightFormat::kPlain : weight_format_of(plan.weights);
  const std::vector<PlannedStage> all = {
      {"transfer", plan.transfer,
       [context = plan.context](const Model& model) { return std::make_shared<AttentionTransfer>(model, context); },
       narrow},
      {"cross-entropy", plan.cross_entropy,
       [bptt = plan.bptt](const Model& model) {
         return std::make_shared<NextToken>(model, learned_by_students(*model), bptt);
       }},
      {"lora", plan.lora, [adapters = plan.adapters, seed = plan.seed, bptt = plan.bptt](const Model& model) {
         at::manual_seed(RandomStream(static_cast<uint64_t>(seed), "adapters").bits(0));
         attach_lora(*model, adapters);
         return std::make_shared<NextToken>(model, lora_weights(*model), bptt);
       }}};
  std::vector<PlannedStage> stages;
  for (const PlannedStage& stage : all) {
    if (stage.options.tokens > 0) stages.push_back(stage);
  }
  return stages;
}

// A conversion in progress. The constructor checks everything that can be wrong with the request, and writes nothing.
class Conversion {
 public:
  explicit Conversion(const LinearizeRequest& request)
      : request_(request), folder_{request.out}, plan_(plan_of(request)) {
    const ModelConfig source = read_config(plan_.source);
    fail_input_if(!fs::is_directory(plan_.source), "[linearize] ", plan_.source, " is not a run with weights");
    config_ = converted_config(source, plan_.conversion);
    source_ = source_weights(plan_.source, plan_.which, source, config_);
    const std::string fingerprint = source_.metadata["fingerprint"];
    fail_input_if(!plan_.fingerprint.empty() && plan_.fingerprint != fingerprint, "[--resume] ", plan_.source,
                  " has other weights than the conversion began with");
    plan_.fingerprint = fingerprint;
    check_apart(plan_.source, request.out);
    // A resumed conversion has its own checkpoint, which includes what it began with.
    const bool under_way = request.use == FolderUse::kResume && fs::exists(folder_.trainer());
    if (!plan_.from.empty() && !under_way) begin_with(plan_.from);
    learns_cache_ = plan_.conversion.with_cache() && !under_way && !have_scores(fixed_);
    open_data();
    fail_input_if(plan_.weights != "plain" && !request.device.is_cpu(), "[--weights] ", plan_.weights,
                  " is for the CPU, the model is to be on ", request.device);
    stages_ = planned_stages(plan_);
    fail_input_if(stages_.empty() && !learns_cache_ && (plan_.from.empty() || !settles()),
                  "[linearize] nothing to train: every stage has 0 tokens");
    learns_cache_ || stages_.empty() ? open_model(WeightFormat::kPlain) : begin_stage(0);
    if (plan_.lora.tokens > 0) check_lora_targets(*model_, plan_.adapters);
  }

  void write_description() const {
    describe_run(folder_, tokenizer_.get(), config_.to_json(), plan_.source);
    write_file(plan_path(folder_.path), json_of(plan_).dump(2) + "\n");
  }

  void resume() {
    if (!fs::exists(folder_.trainer())) return;
    const TensorFile file = read_safetensors(folder_.trainer());
    const auto entry = [&](const std::string& key) {
      const auto found = file.metadata.find(key);
      fail_input_if(found == file.metadata.end(), "[", folder_.trainer(), "] is no conversion's: it has no \"", key,
                    "\"");
      return found->second;
    };
    const auto number = [&](const std::string& key) {
      const Json value = parse_json(entry(key), folder_.trainer());
      fail_input_if(!value.is_number_unsigned(), "[", folder_.trainer(), "] \"", key,
                    "\" is no number: ", value.dump());
      return value.get<int64_t>();
    };
    fail_input_if(entry("format") != kConversionFormat || entry("version") != kConversionVersion, "[",
                  folder_.trainer(), "] is of another kind or version");
    fail_input_if(entry("data") != chunks_->fingerprint(), "[--resume] the text has changed");
    if (file.metadata.contains("matmul")) keep_matmul_library(file.metadata.at("matmul"));
    if (file.metadata.contains("cache")) {
      cache_ = from_fields<CacheReport>(parse_json(entry("cache"), folder_.trainer()), folder_.trainer(), true);
    }
    if (file.metadata.contains("sinks")) sinks_ = number("sinks");
    NamedTensors current;
    fixed_.clear();
    const auto weights = model_->named_parameters();
    for (const auto& [name, tensor] : file.tensors) {
      if (!name.starts_with(kFixedPrefix)) {
        current.emplace_back(name, tensor);
        continue;
      }
      const std::string own = name.substr(kFixedPrefix.size());
      const Tensor* weight = weights.find(own);
      fail_input_if(!weight || weight->sizes() != tensor.sizes(),
                    "[--resume] the checkpoint is of another conversion: \"", own, "\"");
      const at::NoGradGuard no_grad;
      Tensor(*weight).copy_(tensor);
      fixed_.emplace_back(own, *weight);
    }
    for (const Json& report : parse_json(entry("finished"), folder_.trainer())) {
      finished_.push_back(from_fields<StageReport>(report, folder_.trainer(), /*required=*/true));
    }
    const auto stage = static_cast<size_t>(number("stage"));
    fail_input_if(stage >= stages_.size(), "[", folder_.trainer(), "] has no such stage: ", stage);
    if (stage != number_) begin_stage(stage);
    stage_->restore(current, parse_json(entry("state"), folder_.trainer()), folder_.trainer());
  }

  // Runs what is left. Returns false if stopped.
  bool run() {
    if (learns_cache_ && !learn_cache()) return false;
    if (!stage_) {
      if (!settle()) return false;
      ranks_.by_first([this] { save_both(); });
      return true;
    }
    std::optional<MetricsFile> metrics;
    ranks_.by_first([&] { metrics.emplace(folder_.metrics(), steps_so_far()); });
    while (true) {
      if (request_.progress && ranks_.first()) introduce();
      RunKeeper keeper;
      keeper.place = folder_.path;
      keeper.log = [&](Json line) {  // log steps count from the first stage
        line.erase("step");
        Json whole = {{"step", steps_so_far()}, {"stage", stage_->name()}};
        whole.update(line);
        ranks_.by_first([&] { metrics->write(whole); });
      };
      keeper.validated = [this](const Validation&, bool best) {
        if (best) ranks_.by_first([this] { save(folder_.best()); });
      };
      keeper.checkpoint = [this] { ranks_.by_first([this] { checkpoint(); }); };
      const bool done = stage_->run(keeper, control()) && settle();
      if (!done || number_ + 1 == stages_.size()) {
        ranks_.by_first([&] { done ? save_both() : save(folder_.last()); });
        return done;
      }
      fixed_ = tensors_of(learned_by_students(*model_));
      finished_.push_back(report_of(*stage_));
      begin_stage(number_ + 1);
    }
  }

  LinearizeResult result(bool done) const {
    LinearizeResult result;
    result.done = done;
    result.step = steps_so_far();
    for (const PlannedStage& stage : stages_) result.steps += stage.options.steps(plan_.context);
    result.stages = finished_;
    result.cache = cache_;
    result.sinks = sinks_;
    if (stage_ && !stage_->before().empty()) result.stages.push_back(report_of(*stage_));
    return result;
  }

  const LinearizePlan& plan() const { return plan_; }
  // A text that must be equal in all processes that convert together.
  std::string identity() const { return json_of(plan_).dump() + chunks_->fingerprint(); }

 private:
  // The control of the current stage. request_.stop_at counts steps from the first stage.
  RunControl control() const {
    const auto stop = [this] {
      // Several processes ask before a step, and stop after it.
      const bool reached = ranks_.several() ? request_.stop_at >= 0 && steps_so_far() + 1 >= request_.stop_at
                                            : steps_so_far() == request_.stop_at;
      return reached || (request_.stop && request_.stop());
    };
    return {.stop = stop, .progress = request_.progress};
  }

  // Learns the scores of the cache before anything else, so that the other parameters learn what the cache does not
  // hold. If stopped, it starts again from the beginning.
  bool learn_cache() {
    const auto begun = std::chrono::steady_clock::now();
    const CacheStudy study{plan_.cache_tokens, static_cast<uint64_t>(plan_.seed), request_.stop, request_.progress};
    const auto lessons = learn_caches(*model_, chunks_, *tokenizer_, study, ranks_);
    if (lessons.empty()) return false;
    CacheReport report{.layers = static_cast<int64_t>(lessons.size())};
    for (const CacheLesson& lesson : lessons) {
      const CacheNames names = cache_names(lesson.layer);
      fix(names.weight, lesson.weight);
      fix(names.bias, lesson.bias);
      report.recall[std::to_string(lesson.layer)] = lesson.recall;
      report.heads += static_cast<int64_t>(lesson.recall.size());
      report.lasting += lesson.lasting / static_cast<double>(lessons.size());
      report.fading += lesson.fading / static_cast<double>(lessons.size());
    }
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    cache_ = report;
    open_model(frozen_);
    if (!stages_.empty()) begin_stage(0);
    return true;
  }

  bool settles() const { return plan_.sink_tokens > 0 && plan_.conversion.with_latents(); }

  // Makes the latents' sinks hold at any length. Returns false if stopped.
  bool settle() {
    if (!settles() || (stage_ && stage_->name() == "lora")) return true;
    const int64_t tokens = std::min(plan_.sink_tokens, chunks_->training() * chunks_->length());
    const auto sinks = settle_sinks(*model_, *chunks_, {tokens, request_.stop, request_.progress}, ranks_);
    if (sinks) sinks_ = sinks;
    return sinks.has_value();
  }

  void fix(const std::string& name, const Tensor& value) {
    std::erase_if(fixed_, [&](const auto& it) { return it.first == name; });
    fixed_.emplace_back(name, value);
  }

  // Weights of another conversion count as learned by earlier stages.
  void begin_with(const std::string& path) {
    Learned learned = load_learned(path);
    // Old scores, which may have other shapes.
    if (plan_.cache_again) std::erase_if(learned.weights, [](const auto& it) { return is_score(it.first); });
    check_learned(learned, path, config_, plan_.fingerprint);
    fail_input_if(!learned.adapters.empty(), "[--from] ", path,
                  " has adapters, which cannot be trained further: it can only be applied");
    fixed_ = learned.weights;
  }

  void open_data() {
    fail_input_if(plan_.data.empty() == plan_.instructions.empty(),
                  "[linearize] what to learn from? Give --data or --instructions");
    tokenizer_ = load_tokenizer(plan_.source + "/tokenizer");
    fail_input_if(tokenizer_->vocabulary() > config_.vocabulary, "[", plan_.source, "/tokenizer] has ",
                  tokenizer_->vocabulary(), " tokens, but the model ", config_.vocabulary);
    fail_input_if(config_.positions == PositionKind::kLearned && plan_.context > config_.context, "[--context] ",
                  plan_.context, " is beyond the model's learned positions: it has ", config_.context);
    const auto seed = static_cast<uint64_t>(plan_.seed);
    if (plan_.instructions.empty()) {
      const PrepareOptions prepare{.files = plan_.data, .validation = 0, .progress = request_.progress};
      const auto text = open_text_as_dataset(prepare, tokenizer_).train;
      chunks_ = std::make_shared<Chunks>(text, plan_.context, plan_.evaluation_chunks, seed);
    } else {
      chunks_ = std::make_shared<Chunks>(read_instructions(plan_.instructions), *tokenizer_, plan_.context,
                                         plan_.evaluation_examples, seed, request_.progress);
    }
    for (StageOptions* stage : {&plan_.transfer, &plan_.cross_entropy, &plan_.lora}) {
      if (stage->tokens < 0) stage->tokens = kDefaultEpochs * chunks_->training() * chunks_->length();
    }
  }

  // Opens the model with the weights that finished stages learned.
  void open_model(WeightFormat frozen) {
    model_.reset();
    const auto options = at::TensorOptions(request_.device).dtype(dtype_of(plan_.dtype));
    model_ = converted_model(config_, source_, plan_.seed, options, frozen);
    frozen_ = frozen;
    const at::NoGradGuard no_grad;
    auto weights = model_->named_parameters();
    for (auto& [name, tensor] : fixed_) {
      weights[name].copy_(tensor);
      tensor = weights[name];
    }
  }

  void begin_stage(size_t number) {
    number_ = number;
    const PlannedStage& planned = stages_[number];
    if (!model_ || frozen_ != planned.frozen) {
      stage_.reset();  // it holds the old model
      open_model(planned.frozen);
    }
    stage_ = std::make_unique<Stage>(planned.name, planned.objective(model_), chunks_, planned.options, ranks_);
  }

  void checkpoint() const {
    TensorFile file{stage_->tensors(), {}};
    for (const auto& [name, tensor] : fixed_) file.tensors.emplace_back(kFixedPrefix + name, tensor.detach());
    Json finished = Json::array();
    for (const StageReport& report : finished_) finished.push_back(json_of(report));
    file.metadata = {{"format", kConversionFormat},      {"version", kConversionVersion},
                     {"stage", std::to_string(number_)}, {"state", stage_->standing().dump()},
                     {"finished", finished.dump()},      {"data", chunks_->fingerprint()},
                     {"matmul", matmul_library()}};
    if (cache_) file.metadata["cache"] = json_of(*cache_).dump();
    if (sinks_) file.metadata["sinks"] = std::to_string(*sinks_);
    write_safetensors(folder_.trainer(), file);
  }

  void save_both() const {
    for (const std::string& path : {folder_.best(), folder_.last()}) save(path);
  }

  void save(const std::string& path) const {
    const bool lora = stage_ && stage_->name() == "lora";
    const NamedTensors adapters = lora ? tensors_of(stage_->learned()) : NamedTensors();
    const NamedTensors learned = tensors_of(learned_by_students(*model_));
    save_converted(config_, source_, learned, adapters, plan_.adapters, path,
                   {{"stage", stage_ ? stage_->name() : "cache"}, {"step", std::to_string(steps_so_far())}});
    if (path != folder_.best()) return;
    if (!adapters.empty()) save_lora(folder_.adapters(), adapters, plan_.adapters);
    save_learned(folder_.learned(), {plan_.conversion, plan_.fingerprint, learned, adapters, plan_.adapters});
  }

  int64_t steps_so_far() const {
    int64_t steps = stage_ ? stage_->state().step : 0;
    for (const StageReport& report : finished_) steps += report.steps;
    return steps;
  }

  void introduce() const {
    int64_t learned = 0;
    for (const Parameter& parameter : stage_->learned()) learned += parameter.value.numel();
    std::cout << stage_->name() << ": " << with_commas(learned) << " of " << with_commas(model_->parameter_count())
              << " parameters learn, " << with_commas(stage_->steps()) << " steps of "
              << with_commas(stages_[number_].options.tokens_per_step(plan_.context)) << " tokens";
    if (stage_->state().step > 0) std::cout << ", going on after step " << stage_->state().step;
    std::cout << std::endl;
  }

  const Ranks& ranks_ = Ranks::world();
  const LinearizeRequest& request_;
  RunFolder folder_;
  LinearizePlan plan_;
  ModelConfig config_;
  TensorFile source_;
  std::shared_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const Chunks> chunks_;
  std::shared_ptr<LanguageModel> model_;
  WeightFormat frozen_ = WeightFormat::kPlain;  // format of the frozen matrices
  std::vector<PlannedStage> stages_;
  size_t number_ = 0;  // index of the current stage
  std::unique_ptr<Stage> stage_;
  std::vector<StageReport> finished_;
  NamedTensors fixed_;  // weights learned by finished stages
  bool learns_cache_ = false;
  std::optional<CacheReport> cache_;
  std::optional<int64_t> sinks_;
};

}  // namespace

void StageOptions::fields(JsonFields& json) {
  json.integer("batch", batch, 1, 1 << 20);
  json.integer("accumulate", accumulate, 1, 1 << 20);
  json.integer("tokens", tokens, 0, kEndless);
  json.integer("evaluate_every", evaluate_every, 1, kEndless);
  json.number("learning_rate", learning_rate, 0, 1e3);
  json.number("minimum_rate", minimum_rate, 0, 1e3);
}

void LinearizePlan::fields(JsonFields& json) {
  json.need({"source", "which", "fingerprint", "context", "evaluation_chunks", "seed", "dtype"});
  json.text("source", source);
  json.choice("which", which, {"best", "last"});
  json.text("fingerprint", fingerprint);
  json.text("from", from);
  json.object("conversion", [&](JsonFields& inner) { conversion.fields(inner); });
  json.values("data", data, "files");
  json.text("instructions", instructions);
  json.integer("context", context, 1, int64_t{1} << 30);
  json.integer("evaluation_chunks", evaluation_chunks, 1, kEndless);
  json.integer("evaluation_examples", evaluation_examples, 1, kEndless);
  json.integer("seed", seed, 0, std::numeric_limits<int64_t>::max());
  json.integer("cache_tokens", cache_tokens, 1, kEndless);
  json.boolean("cache_again", cache_again);
  json.integer("sink_tokens", sink_tokens, 0, kEndless);
  json.integer("bptt", bptt, 0, kEndless);
  json.text("dtype", dtype);
  dtype_of(dtype);  // throws InputError for unknown types
  json.choice("weights", weights, {"plain", "int8"});
  json.object("transfer", [&](JsonFields& inner) { transfer.fields(inner); });
  json.object("cross_entropy", [&](JsonFields& inner) { cross_entropy.fields(inner); });
  json.object("lora", [&](JsonFields& inner) { lora.fields(inner); });
  Json adapted = lora_json(adapters);
  json.field("adapters", adapted, [](JsonReader& reader) { return reader.object("adapters"); });
  if (json.reading()) adapters = lora_options(adapted, json.place() + ".adapters");
}

void StageReport::fields(JsonFields& json) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr double kLargest = std::numeric_limits<double>::max();
  json.text("stage", name);
  json.integer("steps", steps, 0, kMost);
  json.integer("best_step", best_step, 0, kMost);
  json.integer("tokens", tokens, 0, kMost);
  json.number("seconds", seconds, 0, kLargest);
  json.number("loss_before", total_before, -kLargest, kLargest);
  json.number("loss_after", total_after, -kLargest, kLargest);
  json.list("losses", losses, [](JsonFields& inner, Loss& loss) {
    inner.text("part", loss.part);
    inner.number("before", loss.before, -kLargest, kLargest);
    inner.number("after", loss.after, -kLargest, kLargest);
  });
}

LinearizeResult linearize(const LinearizeRequest& request) {
  const Ranks& ranks = Ranks::world();
  std::optional<Conversion> conversion;
  ranks.agree([&] { conversion.emplace(request); });
  ranks.require_same("conversion", conversion->identity());
  std::optional<RunLock> lock;
  ranks.by_first([&] { lock.emplace(RunFolder{request.out}, request.use); });
  ranks.agree([&] {
    if (request.use == FolderUse::kResume) conversion->resume();
    if (ranks.first()) conversion->write_description();
  });
  const LinearizeResult result = conversion->result(conversion->run());
  if (result.done) ranks.by_first([&] { write_report(request.out, conversion->plan(), result); });
  return result;
}

}  // namespace cortado
