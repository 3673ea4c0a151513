// What the evaluations of several models share.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cortado/base/result_file.h"
#include "cortado/cli/common.h"
#include "cortado/evaluate/ruler.h"

namespace cortado {

struct SeveralModels {
  std::vector<std::string> runs;
  std::string label;  // the name of the only one
  std::string out;    // the file of results; empty: none
  std::shared_ptr<ModelOptions> options;

  // The last parts of the paths, or the whole paths where two of these are alike; or the label. InputError: a label
  // for several models, a model twice.
  std::vector<std::string> names() const;
  // ModelOptions::find() of each; InputError: what all of them will be refused for that can be seen without reading
  // weights.
  void check();
  ModelOptions model(size_t index) const;  // runs[index], with everything that is common
};

// Adds the positional MODEL..., --label, --out and what add_model_options adds.
std::shared_ptr<SeveralModels> add_several_models(CLI::App& command);

// The file of results: process 0's, which alone writes it, with what it holds; of the other processes in memory.
std::unique_ptr<ResultFile> open_results(const std::string& path);

// Opens runs[index], after check(), in every process the same; says so where it was not trained to look back over `longest` tokens. InputError
// when `file` has results of another model, or of another --dtype, by that name.
OpenModel open_for(const SeveralModels& models, size_t index, int64_t longest, ResultFile& file);

// InputError: options of `eval` itself, which its subcommand `name` would not see.
void refuse_outer_options(const CLI::App& eval, const std::string& name);

// Leaves out what is in a list for the second time.
template <class Item>
void keep_first(std::vector<Item>& items) {
  std::vector<Item> found;
  for (const Item& item : items) {
    if (std::find(found.begin(), found.end(), item) == found.end()) found.push_back(item);
  }
  items = found;
}

// The models that the results of `file` are of, in the order of their first results.
std::vector<std::string> models_in(const ResultFile& file);

// Ends the program if Ctrl-C or SIGTERM came, saying where the results are.
void stop_if_interrupted(const SeveralModels& models);

}  // namespace cortado
