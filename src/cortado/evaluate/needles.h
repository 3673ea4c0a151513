// Needles in haystacks, asked of a model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cortado/base/result_file.h"
#include "cortado/models/language_model.h"
#include "cortado/tasks/niah.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// The questions' texts.
struct NiahMaterial {
  NiahWords words;
  Essay essay;
};

struct NiahRequest {
  std::vector<std::string> tasks = {"single_1"};
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};  // tokens of prompt and answer
  int64_t samples = 100;                                   // questions of each task and length
  int64_t batch = 8;                                       // asked at once
  int64_t seed = 42;
  bool plain = false;               // no chat template, even of a model that has one
  std::function<void()> poll = {};  // called often: may throw to end the evaluation
};

// A model under the name that its results go by.
struct NiahSubject {
  std::string name;
  std::shared_ptr<LanguageModel> model;
  std::shared_ptr<Tokenizer> tokenizer;
};

// Asks what has no answer in `file` yet, and adds a line for each question there, a batch's together. InputError: a
// length beyond learned positions.
void ask_needles(const NiahRequest& request, const NiahMaterial& material, const NiahSubject& subject,
                 ResultFile& file);

// What the results of one model, task and length come to.
struct NiahCell {
  int64_t samples = 0, correct = 0, prompt_tokens = 0;
  double seconds = 0, state_bytes = 0;

  double percent() const { return 100.0 * static_cast<double>(correct) / static_cast<double>(samples); }
};
using NiahColumn = std::pair<std::string, int64_t>;  // task, length
using NiahCells = std::map<std::string, std::map<NiahColumn, NiahCell>>;

// All that `file` holds, by model.
NiahCells summed(const ResultFile& file);

}  // namespace cortado
