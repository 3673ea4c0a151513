// Answers to several prompts, decoded as a batch. Each answer equals the one that its prompt alone would get.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cortado/models/language_model.h"

namespace cortado {

// Options of answer_all().
struct AnswerOptions {
  int64_t tokens = 128;             // largest length of an answer
  std::vector<int32_t> stops = {};  // an answer ends before the first of these tokens
  int64_t vocabulary = 0;           // only tokens below this are generated; 0: the model's whole vocabulary
  int64_t chunk = kReadChunk;       // tokens per prompt that are read at a time; bounds the memory
  std::function<void(int64_t tokens)> progress = {};  // tokens read and generated so far, over all prompts
};

// The result of answer_all().
struct Answers {
  std::vector<std::vector<int32_t>> tokens;  // one answer per prompt
  double state_bytes = 0;                    // bytes per sequence after its prompt, on average
};

// Decodes greedily after each prompt; of equally likely tokens the lowest wins. The prefix that all prompts share is
// read once. Prompts may differ in length and no padding is used: what exceeds the shortest prompt is read in one
// packed call, so lengths should be similar. A finished answer leaves the batch. Throws InputError if there is no
// prompt or an empty one, and Failure if a logit is not finite.
Answers answer_all(LanguageModel& model, const std::vector<std::vector<int32_t>>& prompts,
                   const AnswerOptions& options);

}  // namespace cortado
