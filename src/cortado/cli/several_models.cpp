#include "cortado/cli/several_models.h"

#include <set>

#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/cli/imported.h"
#include "cortado/generate/session.h"
#include "cortado/nn/dtype.h"
#include "cortado/parallel/ranks.h"

namespace cortado {

std::vector<std::string> SeveralModels::names() const {
  fail_input_if(std::set(runs.begin(), runs.end()).size() != runs.size(), "[eval] a model is named twice");
  fail_input_if(!label.empty() && runs.size() > 1, "[--label] names one model, there are ", runs.size());
  if (!label.empty()) return {label};
  std::vector<std::string> names;
  for (const auto& run : runs) names.push_back(run_name(run));
  return std::set(names.begin(), names.end()).size() == names.size() ? names : runs;
}

void SeveralModels::check() {
  for (std::string& run : runs) run = run_of(run);
  names();
  for (size_t i = 0; i < runs.size(); ++i) {
    const ModelOptions one = model(i);
    check_tokenizer(one.run, *one.tokenizer(), one.config().vocabulary);
  }
}

ModelOptions SeveralModels::model(size_t index) const {
  ModelOptions one = *options;
  one.run = runs[index];
  return one;
}

std::shared_ptr<SeveralModels> add_several_models(CLI::App& command) {
  auto models = std::make_shared<SeveralModels>();
  models->options = add_model_options(command, &models->runs);
  add_weights_option(command, models->options->weights);
  add_cache_option(command, models->options->kv_type);
  command.add_option("--label", models->label, "the model's name in the table and in --out (default: its folder's)");
  command.add_option("--out", models->out,
                     "a file for all results, one JSON object per line; an interrupted command continues from it, and "
                     "further models, lengths or samples are added to it");
  return models;
}

std::unique_ptr<ResultFile> open_results(const std::string& path) {
  const Ranks& ranks = Ranks::world();
  std::unique_ptr<ResultFile> file;
  ranks.agree([&] { file = std::make_unique<ResultFile>(ranks.first() ? path : ""); });
  if (!ranks.several()) return file;
  const std::string there = ranks.gather(ranks.first() ? Json(file->results()).dump() : "")[0];
  if (!ranks.first()) file->append(parse_json(there, path).get<std::vector<Json>>());
  return file;
}

// Opens a model in one process.
static OpenModel open_alone(const SeveralModels& models, size_t index, int64_t longest, ResultFile& file) {
  const ModelOptions options = models.model(index);
  OpenModel opened{models.names()[index], options.open(), options.tokenizer()};
  const auto context = trained_context(*opened.model);
  if (context && longest > *context && Ranks::world().first()) {
    std::cerr << "warning: " << opened.name << " was trained on " << with_commas(*context)
              << " tokens and attends to all that it has read; beyond that length its predictions soon make no sense"
              << std::endl;
  }
  const bool marked = !options.begin(*opened.tokenizer).empty();
  const std::string caches = options.kv_type ? " caches " + *options.kv_type : "";
  file.require(concat("model ", opened.name),
               concat(opened.model->identity(), " ", dtype_name(opened.model->dtype()), " ",
                      options.weights.value_or("plain"), marked ? " BOS" : "", caches));
  return opened;
}

OpenModel open_for(const SeveralModels& models, size_t index, int64_t longest, ResultFile& file) {
  const Ranks& ranks = Ranks::world();
  OpenModel opened;
  ranks.agree([&] { opened = open_alone(models, index, longest, file); });
  ranks.require_same("model", opened.model->identity());
  return opened;
}

void refuse_outer_options(const CLI::App& eval, const std::string& name) {
  for (const CLI::Option* option : eval.get_options()) {
    fail_input_if(option->count() > 0, "[eval] ", option->get_name(), " stands before ", name, ": put it after ", name,
                  ", if ", name, " has it");
  }
}

std::vector<std::string> models_in(const ResultFile& file) {
  std::vector<std::string> found;
  for (const Json& result : file.results()) {
    const std::string name = JsonReader(result, "--out").text("model");
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  return found;
}

void stop_if_interrupted(const SeveralModels& models) {
  if (interrupt_requested() && !models.out.empty() && Ranks::world().first()) {
    std::cerr << "stopped; the results so far are in " << models.out << ": the same command continues from there"
              << std::endl;
  }
  exit_if_interrupted();
}

}  // namespace cortado
