// Do two papers cite each other? Pairs of long texts, byte by byte: AAN in Long Range Arena (README.md).
#pragma once

#include <memory>
#include <string>

#include "cortado/base/fields.h"
#include "cortado/tasks/examples.h"

namespace cortado {

struct RetrievalOptions {
  std::string folder;     // new_aan_pairs.{train,eval,test}.tsv
  int64_t length = 4000;  // bytes of a text that are read

  void fields(JsonFields& json);
};

// InputError: no folder, or not that data set.
std::unique_ptr<TaskExamples> retrieval_examples(const RetrievalOptions& options);

}  // namespace cortado
