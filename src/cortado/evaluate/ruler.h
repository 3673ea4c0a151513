// Evaluates a model on RULER's questions.
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

// What to ask, and how: every task at every length.
struct RulerRequest {
  std::vector<std::string> tasks = {"single_1"};
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};  // tokens of the prompt and answer together
  int64_t samples = 100;                                   // questions per task and length
  int64_t batch = 8;                                       // questions per batch
  int64_t seed = 42;
  bool plain = false;               // use no chat template, even if the model has one
  std::function<void()> poll = {};  // called often; may throw to end the evaluation
  Ranks ranks = {};                 // processes that share the batches; each gets all answers
};

// A model with its tokenizer. The name identifies its results.
struct OpenModel {
  std::string name;
  std::shared_ptr<LanguageModel> model;
  std::shared_ptr<Tokenizer> tokenizer;
};

// Asks all questions without an answer in `file`, and appends one line per question, batch by batch. Questions whose
// own documents exceed the length are left out with a message. Throws InputError if a length exceeds learned positions,
// or if no question of a task fits a length.
void ask_ruler(const RulerRequest& request, const RulerMaterial& material, const OpenModel& subject, ResultFile& file);

// The results of one model, task and length.
struct RulerCell {
  int64_t samples = 0, prompt_tokens = 0;
  double score = 0, seconds = 0, state_bytes = 0;  // sums over the samples

  double percent() const { return 100.0 * score / static_cast<double>(samples); }
};
using RulerColumn = std::pair<std::string, int64_t>;  // task, length
// By the model's name, then by task and length.
using RulerCells = std::map<std::string, std::map<RulerColumn, RulerCell>>;

// Sums up all results of `file` per model.
RulerCells summed(const ResultFile& file);

}  // namespace cortado
