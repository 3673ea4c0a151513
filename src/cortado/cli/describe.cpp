// cortado describe: a model's layers, parameters, FLOPs per token, and the size of its state compared with a KV cache.
#include <algorithm>

#include "cortado/base/human.h"
#include "cortado/base/table.h"
#include "cortado/base/words.h"
#include "cortado/cli/common.h"
#include "cortado/cli/hub.h"
#include "cortado/cli/imported.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/config.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/initialization.h"

namespace cortado {
namespace {

struct DescribeOptions {
  std::string run;
  int64_t vocabulary = 0;
  bool json = false;
  std::shared_ptr<MemoryOptions> memory;
  std::optional<std::string> weights;
  std::shared_ptr<CommonOptions> common;
};

// The model that is described, and the type of its weights and activations.
struct Subject {
  Backbone& model;
  at::ScalarType dtype;
  bool vocabulary_assumed;

  const ModelConfig& config() const { return model.config(); }
  int64_t element() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
  bool narrow() const { return model.weight_format() != WeightFormat::kPlain; }
  int64_t weight_bytes() const { return narrow() ? model.weight_bytes() : model.parameter_count() * element(); }
  std::string weights() const { return narrow() ? weight_format_name(model.weight_format()) : dtype_name(dtype); }
};

// Returns the key-value pairs that a layer holds per query head, averaged over the layers; nothing if a layer holds
// something else.
std::optional<PairCount> mean_pairs(const Subject& subject, int64_t tokens) {
  if (!subject.config().causal) return std::nullopt;
  PairCount mean;
  const auto& mixers = subject.model.mixers();
  for (const auto& mixer : mixers) {
    const auto pairs = mixer->pairs(tokens);
    if (!pairs) return std::nullopt;
    mean.softmax += pairs->softmax / static_cast<double>(mixers.size());
    mean.state += pairs->state / static_cast<double>(mixers.size());
  }
  return mean;
}

int64_t count(const torch::nn::Module& module) {
  int64_t total = 0;
  for (const Tensor& parameter : module.parameters()) total += parameter.numel();
  return total;
}

// Merges neighbouring equal layers: first and last index, the mixer's settings, parameters of one mixer.
Json groups(const Subject& subject) {
  Json result = Json::array();
  for (size_t i = 0; i < subject.config().layers.size(); ++i) {
    const Json& mixer = subject.config().layers[i];
    if (!result.empty() && result.back()["settings"] == mixer) {
      result.back()["last"] = i;
    } else {
      const int64_t parameters = count(*subject.model.mixers()[i]);
      result.push_back({{"first", i}, {"last", i}, {"settings", mixer}, {"parameters", parameters}});
    }
  }
  return result;
}

// Returns the FLOPs per token, and the sizes of the state, after each number of tokens.
Json depths(const Subject& subject, std::initializer_list<int64_t> depths) {
  Json result = Json::array();
  for (const int64_t tokens : depths) {
    Json entry = {{"tokens", tokens}, {"flops_per_token", subject.model.flops_per_token(tokens)}};
    if (const auto pairs = mean_pairs(subject, tokens)) {
      entry["pairs"] = {{"softmax", pairs->softmax}, {"state", pairs->state}};
      entry["compression"] = static_cast<double>(tokens) / pairs->total();
    }
    if (subject.config().causal) {
      entry["state_bytes"] = subject.model.state_bytes(tokens, subject.dtype);
      entry["kv_cache_bytes"] = key_value_bytes(subject.config(), tokens, subject.dtype);
    }
    result.push_back(entry);
  }
  return result;
}

// Returns "a_log" for layers.0.mixer.a_log and "q" for layers.0.mixer.q.weight.
std::string short_name(const std::string& name) {
  const std::string owner = name.substr(0, name.find_last_of('.'));
  const bool plain = name.ends_with(".weight") || name.ends_with(".bias");
  return plain ? owner.substr(owner.find_last_of('.') + 1) : name.substr(name.find_last_of('.') + 1);
}

// Returns the parameters by role. The role decides whether weight decay applies.
Json roles(const Subject& subject) {
  Json result = Json::array();
  const Parameters parameters = parameters_of(subject.model);
  for (const Role role : {Role::kMatrix, Role::kEmbedding, Role::kGain, Role::kDynamics}) {
    int64_t count = 0;
    std::vector<std::string> names;
    for (const Parameter& parameter : parameters) {
      if (parameter.role != role) continue;
      count += parameter.value.numel();
      const std::string name = short_name(parameter.name);
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    if (count == 0) continue;
    result.push_back(
        {{"role", role_name(role)}, {"parameters", count}, {"decayed", is_decayed(role)}, {"names", names}});
  }
  return result;
}

Json as_json(const Subject& subject) {
  const ModelConfig& config = subject.config();
  Json json = {{"name", config.name},
               {"dim", config.dim},
               {"heads", config.heads},
               {"layers", config.layers.size()},
               {"vocabulary", config.vocabulary},
               {"classes", config.head.classes},
               {"vocabulary_assumed", subject.vocabulary_assumed},
               {"parameters", subject.model.parameter_count()},
               {"weight_bytes", subject.weight_bytes()},
               {"weights", weight_format_name(subject.model.weight_format())},
               {"dtype", dtype_name(subject.dtype)}};
  json["mixers"] = groups(subject);
  json["roles"] = roles(subject);
  json["depths"] = depths(subject, {1 << 10, 1 << 14, 1 << 17, 1 << 20});
  return json;
}

std::string numbers_of(const Json& group) {
  return group["first"] == group["last"] ? plain(group["first"]) : concat(group["first"], "..", group["last"]);
}

std::string settings_of(Json mixer) {
  mixer.erase("mixer");
  return mixer.empty() ? "defaults" : mixer.dump();
}

std::string depth_name(int64_t tokens) {
  return tokens < 1 << 20 ? concat(tokens >> 10, "K") : concat(tokens >> 20, "M");
}

std::string cache_by_state(const Json& depth) {
  if (!depth.contains("state_bytes")) return "";
  const double ratio = depth["kv_cache_bytes"].get<double>() / depth["state_bytes"].get<double>();
  return fixed(ratio, ratio < 10 ? 2 : 0);
}

Table role_table(const Json& description) {
  const auto yes = [](const Json& decayed) { return std::string(decayed.get<bool>() ? "yes" : "no"); };
  return table_of(description.at("roles"),
                  {{"role", "/role"},
                   {"parameters", "/parameters", with_commas},
                   {"weight decay", "/decayed", yes},
                   {"of", "/names", [](const std::vector<std::string>& names) { return joined(names, ", "); }}});
}

void print_depths(const Subject& subject, const Json& json) {
  std::cout << depth_table(json).text();
  if (subject.config().positions == PositionKind::kLearned) {
    std::cout << "Its learned positions end at " << subject.config().context
              << " tokens: beyond that, the numbers are only for comparison.\n";
  }
  if (subject.config().causal) {
    std::cout << "KV cache: that of softmax layers with as many key heads, in place of these layers, as "
              << dtype_name(subject.dtype) << ".\n";
  } else {
    std::cout << "A bidirectional model reads whole sequences: it has no state.\n";
  }
}

// LoLA's measure of memory (its tables 1 and 2): key-value pairs per head of 2d numbers each, and tokens per pair.
void print_pairs(const Subject& subject) {
  if (!mean_pairs(subject, 1)) return;
  const Table table = table_of(depths(subject, {1024, 2048, 4096, 8192, 16384}),
                               {{"tokens read", "/tokens", with_commas},
                                {"softmax pairs per head", "/pairs/softmax", decimals(0)},
                                {"state, as pairs", "/pairs/state", decimals(0)},
                                {"compression", "/compression", [](double x) { return fixed(x, 1) + "x"; }}});
  std::cout << "\n"
            << table.text() << "A pair: a key and a value of one query head; the state's F x d numbers count as F/2.\n";
}

void print_text(const Subject& subject) {
  const ModelConfig& config = subject.config();
  const int64_t parameters = subject.model.parameter_count();
  std::cout << (config.name.empty() ? "model" : config.name) << ": " << config.layers.size() << " layers, width "
            << config.dim << ", " << config.heads << " heads, "
            << (config.channels > 0 ? concat(config.channels, " numbers per position")
                                    : concat("vocabulary ", with_commas(config.vocabulary)));
  if (config.head.kind != HeadKind::kLanguage) std::cout << ", " << config.head.classes << " classes";
  if (subject.vocabulary_assumed) std::cout << " (assumed: the tokenizer decides; --vocabulary sets it)";
  std::cout << "\n"
            << with_commas(parameters) << " parameters (" << human_bytes(static_cast<double>(subject.weight_bytes()))
            << " as " << subject.weights() << ")";
  if (config.channels == 0) {
    const bool tied = config.tied && config.head.kind == HeadKind::kLanguage;
    std::cout << ", of which " << with_commas(config.vocabulary * config.dim) << " in the embedding"
              << (tied ? ", which is also the head" : "");
  }
  std::cout << "\n\n";
  const Json json = as_json(subject);
  std::cout << layer_table(json).text() << "\n" << role_table(json).text() << "\n";
  print_depths(subject, json);
  print_pairs(subject);
}

void describe(DescribeOptions& options) {
  const at::Device device = options.common->apply();
  options.run = run_of(options.run);
  ModelConfig config = read_config(options.run);
  if (options.vocabulary > 0) config.vocabulary = options.vocabulary;
  const auto memory = options.memory->chosen();
  if (memory) config = with_memory(config, *memory);
  const bool assumed = config.vocabulary == 0 && config.channels == 0;
  if (assumed) config.vocabulary = kAssumedVocabulary;
  const SkipInitialization skip;  // only sizes matter here
  const auto model = make_backbone(config);
  model->to(device);
  model->set_weight_format(weight_format_or_plain(options.weights), /*keep_values=*/false);
  const Subject subject{*model, options.common->dtype_or(at::kFloat), assumed};
  if (options.json) {
    std::cout << as_json(subject).dump(2) << std::endl;
  } else {
    print_text(subject);
  }
}

}  // namespace

Json describe_model(Backbone& model, at::ScalarType dtype) { return as_json({model, dtype, false}); }

Table layer_table(const Json& description) {
  return table_of(description.at("mixers"), {{"layers", "", numbers_of},
                                             {"mixer", "/settings/mixer"},
                                             {"settings", "/settings", settings_of},
                                             {"parameters each", "/parameters", with_commas}});
}

Table depth_table(const Json& description) {
  return table_of(description.at("depths"), {{"tokens read", "/tokens", depth_name},
                                             {"FLOPs per token", "/flops_per_token", human_count},
                                             {"state", "/state_bytes", human_bytes},
                                             {"KV cache", "/kv_cache_bytes", human_bytes},
                                             {"cache / state", "", cache_by_state}});
}

void add_describe_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("describe", "Print a model's layers, parameters, FLOPs per token and the size of its state");
  auto options = std::make_shared<DescribeOptions>();
  command->add_option("config", options->run, concat("a config file; ", kModelHelp))->required();
  option(*command, "--vocabulary", options->vocabulary,
         "size of the vocabulary, if the config leaves it to the tokenizer", CLI::Range(1, 1 << 30));
  command->add_flag("--json", options->json, "print JSON");
  options->memory = add_memory_options(*command);
  options->common = add_common_options(*command);
  add_weights_option(*command, options->weights);
  command->footer(
      "Examples:\n  cortado describe configs/table1/latte-r-swa-pp.json\n  cortado describe runs/first --json\n"
      "  cortado describe runs/linear --memory lola --cache 256 --chunk 64");
  command->callback([options] { describe(*options); });
}

}  // namespace cortado
