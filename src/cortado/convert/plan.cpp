#include "cortado/convert/plan.h"

#include <limits>

#include "cortado/base/random.h"
#include "cortado/nn/dtype.h"

namespace cortado {
namespace {

constexpr int64_t kEndless = int64_t{1} << 50;

Json stage_to_json(const StageOptions& options) {
  return {{"batch", options.batch},
          {"accumulate", options.accumulate},
          {"tokens", options.tokens},
          {"evaluate_every", options.evaluate_every},
          {"learning_rate", options.learning_rate},
          {"minimum_rate", options.minimum_rate}};
}

StageOptions stage_from_json(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  StageOptions options;
  options.batch = reader.integer("batch", 1, 1 << 20, options.batch);
  options.accumulate = reader.integer("accumulate", 1, 1 << 20, options.accumulate);
  options.tokens = reader.integer("tokens", 0, kEndless, options.tokens);
  options.evaluate_every = reader.integer("evaluate_every", 1, kEndless, options.evaluate_every);
  options.learning_rate = reader.number("learning_rate", 0, 1e3, options.learning_rate);
  options.minimum_rate = reader.number("minimum_rate", 0, 1e3, options.minimum_rate);
  reader.finish();
  return options;
}

}  // namespace

Json LinearizePlan::to_json() const {
  return {{"source", source},
          {"which", which},
          {"fingerprint", fingerprint},
          {"from", from},
          {"conversion", conversion.to_json()},
          {"data", data},
          {"context", context},
          {"evaluation_chunks", evaluation_chunks},
          {"seed", seed},
          {"dtype", dtype},
          {"weights", weights},
          {"transfer", stage_to_json(transfer)},
          {"cross_entropy", stage_to_json(cross_entropy)},
          {"lora", stage_to_json(lora)},
          {"adapters", lora_json(adapters)}};
}

LinearizePlan LinearizePlan::from_json(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  LinearizePlan plan;
  plan.source = reader.text("source");
  plan.which = reader.choice("which", {"best", "last"});
  plan.fingerprint = reader.text("fingerprint");
  plan.from = reader.text("from", "");
  plan.conversion = ConversionSettings::from_json(reader.object("conversion"), place + ".conversion");
  for (const Json& file : reader.any("data")) {
    if (!file.is_string()) reader.fail("\"data\" must be a list of files");
    plan.data.push_back(file.get<std::string>());
  }
  plan.context = reader.integer("context", 1, int64_t{1} << 30);
  plan.evaluation_chunks = reader.integer("evaluation_chunks", 1, kEndless);
  plan.seed = reader.integer("seed", 0, std::numeric_limits<int64_t>::max());
  plan.dtype = dtype_name(dtype_of(reader.text("dtype")));
  plan.weights = reader.choice("weights", {"plain", "int8"}, "plain");
  plan.transfer = stage_from_json(reader.object("transfer"), place + ".transfer");
  plan.cross_entropy = stage_from_json(reader.object("cross_entropy"), place + ".cross_entropy");
  plan.lora = stage_from_json(reader.object("lora"), place + ".lora");
  plan.adapters = lora_options(reader.object("adapters"), place + ".adapters");
  reader.finish();
  return plan;
}

std::vector<PlannedStage> planned_stages(const LinearizePlan& plan) {
  using Model = std::shared_ptr<LanguageModel>;
  // Attention transfer alone needs no derivative of what is frozen.
  const auto narrow = plan.weights == "plain" ? WeightFormat::kPlain : weight_format_of(plan.weights);
  const std::vector<PlannedStage> all = {
      {"transfer", plan.transfer,
       [context = plan.context](const Model& model) { return std::make_shared<AttentionTransfer>(model, context); },
       narrow},
      {"cross-entropy", plan.cross_entropy,
       [](const Model& model) { return std::make_shared<NextToken>(model, learned_by_students(*model)); }},
      {"lora", plan.lora, [adapters = plan.adapters, seed = plan.seed](const Model& model) {
         at::manual_seed(RandomStream(static_cast<uint64_t>(seed), "adapters").bits(0));
         attach_lora(*model, adapters);
         return std::make_shared<NextToken>(model, lora_weights(*model));
       }}};
  std::vector<PlannedStage> stages;
  for (const PlannedStage& stage : all) {
    if (stage.options.tokens > 0) stages.push_back(stage);
  }
  return stages;
}

void set_default_tokens(LinearizePlan& plan, int64_t tokens) {
  for (StageOptions* stage : {&plan.transfer, &plan.cross_entropy, &plan.lora}) {
    if (stage->tokens < 0) stage->tokens = tokens;
  }
}

}  // namespace cortado
