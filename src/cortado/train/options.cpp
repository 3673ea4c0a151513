#include "cortado/train/options.h"

#include "cortado/base/error.h"
#include "cortado/base/words.h"
#include "cortado/nn/matmul.h"

namespace cortado {
namespace {

constexpr int64_t kMany = int64_t{1} << 40;

const Words<ScheduleKind> kSchedules = {
    {"cosine", ScheduleKind::kCosine}, {"linear", ScheduleKind::kLinear}, {"constant", ScheduleKind::kConstant}};

void read_optimizer(JsonReader& reader, TrainingOptions& options) {
  const TrainingOptions defaults;
  options.learning_rate = reader.number("learning_rate", 0, 1e3, defaults.learning_rate);
  options.minimum_rate =
      reader.number("minimum_rate", 0, options.learning_rate, std::min(defaults.minimum_rate, options.learning_rate));
  options.warmup = reader.integer("warmup", 0, kMany, defaults.warmup);
  options.schedule = choose(reader, "schedule", kSchedules, "cosine");
  options.decay_steps = reader.integer("decay_steps", 1, kMany, options.steps);
  if (reader.has("decay_steps") && options.decay_steps <= options.warmup) {
    reader.fail(
        concat("\"decay_steps\" must be larger than \"warmup\" = ", options.warmup, ", got ", options.decay_steps));
  }
  options.beta1 = reader.number("beta1", 0, 0.999999, defaults.beta1);
  options.beta2 = reader.number("beta2", 0, 0.9999999, defaults.beta2);
  options.epsilon = reader.number("epsilon", 0, 1, defaults.epsilon);
  options.weight_decay = reader.number("weight_decay", 0, 100, defaults.weight_decay);
  options.clip = reader.number("clip", 0, 1e6, defaults.clip);
}

std::optional<at::ScalarType> read_dtype(JsonReader& reader) {
  const std::string name = reader.choice("dtype", {"auto", "float32", "bfloat16"}, "auto");
  if (name == "auto") return std::nullopt;
  return name == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

const char* name_of(std::optional<at::ScalarType> dtype) {
  if (!dtype) return "auto";
  return dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

}  // namespace

TrainingOptions TrainingOptions::from_json(const Json& object, const std::string& place) {
  const TrainingOptions defaults;
  JsonReader reader(object, place);
  TrainingOptions options;
  options.data = reader.text("data", defaults.data);
  options.tokenizer = reader.text("tokenizer", defaults.tokenizer);
  options.document_separator = reader.text("document_separator", defaults.document_separator);
  options.batch = reader.integer("batch", 1, 1 << 20, defaults.batch);
  options.context = reader.integer("context", 1, int64_t{1} << 30, defaults.context);
  options.accumulate = reader.integer("accumulate", 1, 1 << 20, defaults.accumulate);
  options.steps = reader.integer("steps", 0, kMany, defaults.steps);
  read_optimizer(reader, options);
  options.dtype = read_dtype(reader);
  options.packed = reader.boolean("packed", defaults.packed);
  options.evaluate_every = reader.integer("evaluate_every", 1, kMany, defaults.evaluate_every);
  options.evaluate_batches = reader.integer("evaluate_batches", 0, kMany, defaults.evaluate_batches);
  options.log_every = reader.integer("log_every", 1, kMany, defaults.log_every);
  options.seed = reader.integer("seed", 0, std::numeric_limits<int64_t>::max(), defaults.seed);
  options.base = reader.text("base", "");
  const bool adapters = reader.has("lora");
  const Json lora = reader.object("lora");
  if (adapters) options.lora = lora_options(lora, place + ".lora");
  reader.finish();
  return options;
}

at::ScalarType TrainingOptions::compute_type() const { return dtype ? *dtype : fast_training_type(); }

Json TrainingOptions::to_json() const {
  Json json = {{"data", data},
               {"tokenizer", tokenizer},
               {"document_separator", document_separator},
               {"batch", batch},
               {"context", context},
               {"accumulate", accumulate},
               {"steps", steps},
               {"learning_rate", learning_rate},
               {"minimum_rate", minimum_rate},
               {"warmup", warmup},
               {"schedule", name_of(kSchedules, schedule)},
               {"decay_steps", decay_steps},
               {"beta1", beta1},
               {"beta2", beta2},
               {"epsilon", epsilon},
               {"weight_decay", weight_decay},
               {"clip", clip},
               {"dtype", name_of(dtype)},
               {"packed", packed},
               {"evaluate_every", evaluate_every},
               {"evaluate_batches", evaluate_batches},
               {"log_every", log_every},
               {"seed", seed}};
  if (!base.empty()) json["base"] = base;
  if (lora) json["lora"] = lora_json(*lora);
  return json;
}

}  // namespace cortado
