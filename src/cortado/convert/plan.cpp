#include "cortado/convert/plan.h"

#include <limits>

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
  options.batch = reader.integer("batch", 1, 1 << 20);
  options.accumulate = reader.integer("accumulate", 1, 1 << 20);
  options.tokens = reader.integer("tokens", 0, kEndless);
  options.evaluate_every = reader.integer("evaluate_every", 1, kEndless);
  options.learning_rate = reader.number("learning_rate", 0, 1e3);
  options.minimum_rate = reader.number("minimum_rate", 0, 1e3);
  reader.finish();
  return options;
}

}  // namespace

Json LinearizePlan::to_json() const {
  return {{"source", source},
          {"which", which},
          {"fingerprint", fingerprint},
          {"conversion", conversion.to_json()},
          {"data", data},
          {"context", context},
          {"evaluation_chunks", evaluation_chunks},
          {"seed", seed},
          {"dtype", dtype},
          {"transfer", stage_to_json(transfer)}};
}

LinearizePlan LinearizePlan::from_json(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  LinearizePlan plan;
  plan.source = reader.text("source");
  plan.which = reader.choice("which", {"best", "last"});
  plan.fingerprint = reader.text("fingerprint");
  plan.conversion = ConversionSettings::from_json(reader.object("conversion"), place + ".conversion");
  for (const Json& file : reader.any("data")) {
    if (!file.is_string()) reader.fail("\"data\" must be a list of files");
    plan.data.push_back(file.get<std::string>());
  }
  plan.context = reader.integer("context", 1, int64_t{1} << 30);
  plan.evaluation_chunks = reader.integer("evaluation_chunks", 1, kEndless);
  plan.seed = reader.integer("seed", 0, std::numeric_limits<int64_t>::max());
  plan.dtype = dtype_name(dtype_of(reader.text("dtype")));
  plan.transfer = stage_from_json(reader.object("transfer"), place + ".transfer");
  reader.finish();
  return plan;
}

std::vector<PlannedStage> planned_stages(const LinearizePlan& plan) {
  std::vector<PlannedStage> stages;
  if (plan.transfer.tokens > 0) {
    stages.push_back({"transfer", plan.transfer, [](const std::shared_ptr<LanguageModel>& model) {
                        return std::make_shared<AttentionTransfer>(model);
                      }});
  }
  return stages;
}

void set_default_tokens(LinearizePlan& plan, int64_t tokens) {
  if (plan.transfer.tokens < 0) plan.transfer.tokens = tokens;
}

}  // namespace cortado
