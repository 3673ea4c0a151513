// Answers to several prompts at once: each as if it were alone, decoded together.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cortado/models/language_model.h"

namespace cortado {

struct AnswerOptions {
  int64_t tokens = 128;             // of an answer at most
  std::vector<int32_t> stops = {};  // an answer ends before one of these
  int64_t vocabulary = 0;           // only tokens below it are written; 0: all that the model has
  int64_t chunk = kReadChunk;       // tokens of each prompt that are read at a time: bounds the memory
  std::function<void(int64_t tokens)> progress = {};  // tokens read and written so far, of all prompts together
};

struct Answers {
  std::vector<std::vector<int32_t>> tokens;  // of each prompt
  double state_bytes = 0;                    // of one sequence after its prompt, on average
};

// The likeliest tokens after each prompt (the lowest of several). What all prompts begin with is read once. They may
// differ in length, and none sees padding: what they are longer than the shortest is read in one packed call, so
// lengths should be about the same. An answer that has ended leaves the batch. InputError: no prompt, an empty prompt.
// Failure: a logit that is not a number.
Answers answer_all(LanguageModel& model, const std::vector<std::vector<int32_t>>& prompts,
                   const AnswerOptions& options);

}  // namespace cortado
