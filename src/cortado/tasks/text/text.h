// Sentiment of film reviews, byte by byte: IMDB in Long Range Arena (README.md).
#pragma once

#include <memory>
#include <string>

#include "cortado/base/fields.h"
#include "cortado/tasks/examples.h"

namespace cortado {

struct TextOptions {
  std::string folder;     // aclImdb: {train,test}/{pos,neg}/ID_RATING.txt
  int64_t length = 4000;  // bytes of a review that are read

  void fields(JsonFields& json);
};

// InputError: no folder, or not that data set.
std::unique_ptr<TaskExamples> text_examples(const TextOptions& options);

}  // namespace cortado
