#include "cortado/convert/plan.h"

#include <limits>

#include "cortado/base/random.h"
#include "cortado/nn/dtype.h"

namespace cortado {
namespace {

constexpr int64_t kEndless = int64_t{1} << 50;

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
  json.text("dtype", dtype);
  dtype_of(dtype);  // refuses others
  json.choice("weights", weights, {"plain", "int8"});
  json.object("transfer", [&](JsonFields& inner) { transfer.fields(inner); });
  json.object("cross_entropy", [&](JsonFields& inner) { cross_entropy.fields(inner); });
  json.object("lora", [&](JsonFields& inner) { lora.fields(inner); });
  Json adapted = lora_json(adapters);
  json.field("adapters", adapted, [](JsonReader& reader) { return reader.object("adapters"); });
  if (json.reading()) adapters = lora_options(adapted, json.place() + ".adapters");
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
