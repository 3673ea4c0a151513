#include "cortado/train/options.h"

#include "cortado/base/fields.h"
#include "cortado/nn/matmul.h"

namespace cortado {
namespace {

constexpr int64_t kMany = int64_t{1} << 40;

const Words<ScheduleKind> kSchedules = {
    {"cosine", ScheduleKind::kCosine}, {"linear", ScheduleKind::kLinear}, {"constant", ScheduleKind::kConstant}};

const Words<std::optional<at::ScalarType>> kTypes = {
    {"auto", std::nullopt}, {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}};

void optimizer_fields(JsonFields& json, TrainingOptions& options) {
  json.number("learning_rate", options.learning_rate, 0, 1e3);
  if (json.reading()) options.minimum_rate = std::min(options.minimum_rate, options.learning_rate);
  json.number("minimum_rate", options.minimum_rate, 0, options.learning_rate);
  json.integer("warmup", options.warmup, 0, kMany);
  json.word("schedule", options.schedule, kSchedules);
  if (json.reading()) options.decay_steps = options.steps;
  json.integer("decay_steps", options.decay_steps, 1, kMany);
  json.fail_if(json.has("decay_steps") && options.decay_steps <= options.warmup,
               "\"decay_steps\" must be larger than \"warmup\" = ", options.warmup, ", got ", options.decay_steps);
  json.number("beta1", options.beta1, 0, 0.999999);
  json.number("beta2", options.beta2, 0, 0.9999999);
  json.number("epsilon", options.epsilon, 0, 1);
  json.number("weight_decay", options.weight_decay, 0, 100);
  json.number("clip", options.clip, 0, 1e6);
}

void training_fields(JsonFields& json, TrainingOptions& options) {
  const bool reading = json.reading();
  json.text("data", options.data);
  json.text("tokenizer", options.tokenizer);
  json.text("document_separator", options.document_separator);
  json.integer("batch", options.batch, 1, 1 << 20);
  json.integer("context", options.context, 1, int64_t{1} << 30);
  json.integer("accumulate", options.accumulate, 1, 1 << 20);
  json.integer("steps", options.steps, 0, kMany);
  if (reading || options.epochs > 0) json.integer("epochs", options.epochs, 0, kMany);
  if (reading || options.target > 0) json.number("target", options.target, 0, 1e9);
  optimizer_fields(json, options);
  if (reading) options.dtype = std::nullopt;
  json.word("dtype", options.dtype, kTypes);
  json.boolean("packed", options.packed);
  json.integer("evaluate_every", options.evaluate_every, 1, kMany);
  json.integer("evaluate_batches", options.evaluate_batches, 0, kMany);
  json.integer("log_every", options.log_every, 1, kMany);
  json.integer("seed", options.seed, 0, std::numeric_limits<int64_t>::max());
  if (reading || !options.base.empty()) json.text("base", options.base);
  if (reading ? !json.has("lora") : !options.lora) return;
  Json lora = lora_json(options.lora.value_or(LoraOptions()));
  json.field("lora", lora, [&](JsonReader& reader) { return reader.object("lora"); });
  if (reading) options.lora = lora_options(lora, json.place() + ".lora");
}

}  // namespace

TrainingOptions TrainingOptions::from_json(const Json& object, const std::string& place) {
  TrainingOptions options;
  JsonFields::read(object, place, [&](JsonFields& json) { training_fields(json, options); });
  return options;
}

at::ScalarType TrainingOptions::compute_type() const { return dtype ? *dtype : fast_training_type(); }

Json TrainingOptions::to_json() const {
  TrainingOptions options = *this;
  return JsonFields::written([&](JsonFields& json) { training_fields(json, options); });
}

}  // namespace cortado
