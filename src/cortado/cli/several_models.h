// Shared by the evaluations of several models.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cortado/base/result_file.h"
#include "cortado/cli/common.h"
#include "cortado/evaluate/ruler.h"

namespace cortado {

// The models to evaluate, with the options that all of them share.
struct SeveralModels {
  std::vector<std::string> runs;
  std::string label;  // name of the model; only with a single model
  std::string out;    // file of results; empty: none
  std::shared_ptr<ModelOptions> options;

  // Returns the models' names: the last parts of their paths, or whole paths if these are ambiguous; or the label.
  // Throws InputError if there is a label for several models, or if a model is named twice.
  std::vector<std::string> names() const;
  // Calls find() of each model's options. Throws InputError for every error that can be found without reading weights.
  void check();
  ModelOptions model(size_t index) const;  // the common options for runs[index]
};

// Adds the positional MODEL..., --label, --out, and the options of add_model_options.
std::shared_ptr<SeveralModels> add_several_models(CLI::App& command);

// Opens the file of results in process 0, which alone writes it. The other processes get its contents in memory.
std::unique_ptr<ResultFile> open_results(const std::string& path);

// Opens runs[index], after check(), in every process. Warns if the model was not trained to look back over `longest`
// tokens. Throws InputError if `file` has results under this name that another model, or another --dtype, has given.
OpenModel open_for(const SeveralModels& models, size_t index, int64_t longest, ResultFile& file);

// Throws InputError for options given to `eval` itself, which its subcommand `name` would not see.
void refuse_outer_options(const CLI::App& eval, const std::string& name);

// Removes repeated items from a list.
template <class Item>
void keep_first(std::vector<Item>& items) {
  std::vector<Item> found;
  for (const Item& item : items) {
    if (std::find(found.begin(), found.end(), item) == found.end()) found.push_back(item);
  }
  items = found;
}

// Returns the models that have results in `file`, in the order of their first results.
std::vector<std::string> models_in(const ResultFile& file);

// Ends the program after Ctrl-C or SIGTERM, and prints where the results are.
void stop_if_interrupted(const SeveralModels& models);

}  // namespace cortado
