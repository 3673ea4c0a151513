#include "cortado/cli/several_models.h"

#include <set>

#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/generate/session.h"
#include "cortado/nn/dtype.h"

namespace cortado {

std::vector<std::string> SeveralModels::names() const {
  fail_input_if(std::set(runs.begin(), runs.end()).size() != runs.size(), "[eval] a model is named twice");
  fail_input_if(!label.empty() && runs.size() > 1, "[--label] names one model, there are ", runs.size());
  if (!label.empty()) return {label};
  std::vector<std::string> names;
  for (const auto& run : runs) names.push_back(run_name(run));
  return std::set(names.begin(), names.end()).size() == names.size() ? names : runs;
}

void SeveralModels::check() const {
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
  command.add_option("--label", models->label, "the model's name in the table and in --out (default: its folder's)");
  command.add_option("--out", models->out,
                     "a file for all results, one JSON object a line; a command that was interrupted goes on with it, "
                     "and further models, lengths or samples are added to it");
  return models;
}

OpenModel open_for(const SeveralModels& models, size_t index, int64_t longest, ResultFile& file) {
  const ModelOptions options = models.model(index);
  OpenModel opened{models.names()[index], options.open(), options.tokenizer()};
  if (const auto context = trained_context(*opened.model); context && longest > *context) {
    std::cerr << "warning: " << opened.name << " was trained on " << with_commas(*context)
              << " tokens and sees all that it has read; beyond, what it predicts soon makes no sense" << std::endl;
  }
  const bool marked = !options.begin(*opened.tokenizer).empty();
  file.require(concat("model ", opened.name), concat(opened.model->identity(), " ", dtype_name(opened.model->dtype()),
                                                     " ", options.weights.value_or("plain"), marked ? " BOS" : ""));
  return opened;
}

void refuse_outer_options(const CLI::App& eval, const std::string& name) {
  for (const CLI::Option* option : eval.get_options()) {
    fail_input_if(option->count() > 0, "[eval] ", option->get_name(), " stands before ", name,
                  ": give it after that, where ", name, " has it");
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
  if (interrupt_requested() && !models.out.empty()) {
    std::cerr << "stopped; what is done is in " << models.out << ": the same command goes on from there" << std::endl;
  }
  exit_if_interrupted();
}

}  // namespace cortado
