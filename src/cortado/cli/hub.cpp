#include "cortado/cli/hub.h"

#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/base/table.h"
#include "cortado/formats/safetensors.h"
#include "cortado/generate/defaults.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/weights.h"
#include "cortado/tokenizers/tokenizer.h"
#include "cortado/train/run_folder.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

std::string front_matter(const Json& description) {
  std::string text =
      "---\nlibrary_name: cortado\npipeline_tag: text-generation\ntags:\n- cortado\n- linear-attention\n";
  std::set<std::string> mixers;
  for (const Json& group : description.at("mixers")) mixers.insert(group.at("settings").at("mixer").get<std::string>());
  for (const std::string& mixer : mixers) text += "- " + mixer + "\n";
  return text + "---\n\n";
}

std::string usage(const std::string& name) {
  return concat(
      "## Usage\n\n```python\nimport cortado.transformers  # pip install cortado[transformers]\n",
      "from transformers import AutoModelForCausalLM, AutoTokenizer\n\nmodel = AutoModelForCausalLM.",
      "from_pretrained(\"", name, "\")\ntokenizer = AutoTokenizer.from_pretrained(\"", name,
      "\")\nprint(tokenizer.decode(model.generate(**tokenizer(\"Once\", return_tensors=\"pt\"))[0]))\n```\n\n",
      "```sh\ncortado generate ", name, " --prompt \"Once\"\ncortado serve ", name, "\n```\n\n");
}

std::string architecture(const ModelConfig& config, const Json& description) {
  return concat("## Architecture\n\n", description.at("layers").get<int64_t>(), " layers of width ", config.dim, ", ",
                config.heads, " heads, vocabulary ", with_commas(config.vocabulary), ", ",
                with_commas(description.at("parameters").get<int64_t>()), " parameters (",
                human_bytes(description.at("weight_bytes").get<double>()), " as ",
                description.at("weights").get<std::string>() == "plain" ? description.at("dtype").get<std::string>()
                                                                        : description.at("weights").get<std::string>(),
                ").\n\n", layer_table(description).markdown(), "\nAll settings are in config.json.\n\n");
}

std::string word(const Json& object, const char* key) {
  return object.contains(key) && !object.at(key).is_null() ? plain(object.at(key)) : "";
}

// If the data are named by a path, shows only the file's name, which is all that others can use.
std::string training(const Json& training) {
  if (!training.is_object() || !training.contains("steps")) return "";
  const std::string data = fs::path(word(training, "data")).filename().string();
  const int64_t tokens = training.value("batch", int64_t{1}) * training.value("context", int64_t{1}) *
                         training.value("accumulate", int64_t{1});
  Table table({"training", ""});
  if (!data.empty()) table.add_row({"data", data});
  table.add_row({"steps", word(training, "steps")});
  table.add_row({"tokens per step", with_commas(tokens)});
  for (const auto& [key, label] : std::vector<std::pair<const char*, const char*>>{{"learning_rate", "learning rate"},
                                                                                   {"schedule", "schedule"},
                                                                                   {"warmup", "warm-up steps"},
                                                                                   {"weight_decay", "weight decay"},
                                                                                   {"dtype", "type"},
                                                                                   {"seed", "seed"}}) {
    if (const std::string value = word(training, key); !value.empty()) table.add_row({label, value});
  }
  return concat("## Data and training\n\n", table.markdown(), "\n");
}

// Returns the best and the last validation loss of the run's log.
Json validations(const std::string& run) {
  Json best, last;
  const std::string path = RunFolder{run}.metrics();
  if (!fs::exists(path)) return Json::array();
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object() || !entry.contains("validation_loss")) continue;
    last = {{"what", concat("validation, step ", word(entry, "step"))}, {"loss", entry["validation_loss"]}};
    last["perplexity"] = std::exp(entry["validation_loss"].get<double>());
    if (best.is_null() || entry["validation_loss"] < best["loss"]) best = last;
  }
  if (best.is_null()) return Json::array();
  return best == last ? Json::array({best}) : Json::array({best, last});
}

std::string evaluation(const HubFolder& options) {
  Json rows = validations(options.run);
  if (!options.evaluation.empty()) {
    const Json results = read_json_file(options.evaluation);
    fail_input_if(!results.is_array() || results.empty(), "[--evaluation] ", options.evaluation,
                  " is not what `cortado eval --json` prints: a list");
    for (Json entry : results) {
      fail_input_if(!entry.is_object() || !entry.contains("loss"), "[--evaluation] ", options.evaluation,
                    " has an entry without a loss");
      entry["what"] = concat("text, context ", word(entry, "context"));
      rows.push_back(entry);
    }
  }
  if (rows.empty()) return "";
  const Table table = table_of(rows, {{"on", "/what"},
                                      {"loss, nats per token", "/loss", decimals(4)},
                                      {"perplexity", "/perplexity", decimals(3)},
                                      {"bits per byte", "/bits_per_byte", decimals(4)},
                                      {"right, %", "/accuracy", decimals(2, 0.01)}});
  return concat("## Evaluation\n\n", table.markdown(), "\n");
}

std::string memory(const Json& description) {
  return concat(
      "## Memory\n\nThe memory of one sequence in addition to the weights, compared with the keys and values of ",
      "softmax attention in the same layers.\n\n", depth_table(description).markdown());
}

void write_weights(const LanguageModel& model, at::ScalarType dtype, const std::string& path) {
  TensorFile file{{}, {{"format", "pt"}}};
  for (const auto& weight : named_weights(model)) {
    if (interrupt_requested()) throw Failure("[export] stopped");
    file.tensors.emplace_back("model." + weight.key(), weight.value().detach().to(dtype));
  }
  write_safetensors(path, file);
}

}  // namespace

void write_hub_folder(LanguageModel& model, const HubFolder& options, const std::string& folder) {
  const ModelConfig& config = model.config();
  const Json description = describe_model(model, options.dtype);
  const std::string name = config.name.empty() ? fs::path(options.run).filename().string() : config.name;
  const std::string card =
      concat(front_matter(description), "# ", name, "\n\nA language model made with cortado.\n\n", usage(name),
             architecture(config, description), training(config.training), evaluation(options), memory(description));
  write_weights(model, options.dtype, folder + "/model.safetensors");
  Json json = config.to_json();
  json["model_type"] = kModelType;
  json["architectures"] = {"CortadoForCausalLM"};
  json["transformers"] = {{"dtype", dtype_name(options.dtype)}};
  write_file(folder + "/config.json", json.dump(2) + "\n");
  if (fs::exists(RunFolder{options.run}.tokenizer())) {
    const auto tokenizer = load_tokenizer(RunFolder{options.run}.tokenizer());
    tokenizer->save(folder + "/tokenizer");
    Json generation = Json::object();
    if (!tokenizer->special().stops.empty()) generation["eos_token_id"] = tokenizer->special().stops;
    write_file(folder + "/generation_config.json", generation.dump(2) + "\n");
  }
  write_generation_config(read_generation_config(options.run), folder);
  write_file(folder + "/README.md", card);
}

}  // namespace cortado
