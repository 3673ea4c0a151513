// RULER's questions, asked of a model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cortado/base/result_file.h"
#include "cortado/models/language_model.h"
#include "cortado/parallel/ranks.h"
#include "cortado/tasks/ruler/ruler.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

struct RulerRequest {
  std::vector<std::string> tasks = {"single_1"};
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};  // tokens of prompt and answer
  int64_t samples = 100;                                   // questions of each task and length
  int64_t batch = 8;                                       // asked at once
  int64_t seed = 42;
  bool plain = false;               // no chat template, even of a model that has one
  std::function<void()> poll = {};  // called often: may throw to end the evaluation
  Ranks ranks = {};                 // processes that take turns with the batches; all get all answers
};

// A model under the name that its results go by, and its tokenizer, which fits it.
struct OpenModel {
  std::string name;
  std::shared_ptr<LanguageModel> model;
  std::shared_ptr<Tokenizer> tokenizer;
};

// Asks what has no answer in `file` yet, and adds a line for each question there, a batch's together. Questions whose
// own documents are longer than the length are left out, which is said. InputError: a length beyond learned positions,
// or one at which no question of a task fits.
void ask_ruler(const RulerRequest& request, const RulerMaterial& material, const OpenModel& subject, ResultFile& file);

// What the results of one model, task and length come to.
struct RulerCell {
  int64_t samples = 0, prompt_tokens = 0;
  double score = 0, seconds = 0, state_bytes = 0;  // sums over the samples

  double percent() const { return 100.0 * score / static_cast<double>(samples); }
};
using RulerColumn = std::pair<std::string, int64_t>;  // task, length
using RulerCells = std::map<std::string, std::map<RulerColumn, RulerCell>>;

// All that `file` holds, by model.
RulerCells summed(const ResultFile& file);

}  // namespace cortado
