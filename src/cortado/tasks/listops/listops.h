// ListOps of Long Range Arena: the value of a long nested expression (README.md).
#pragma once

#include <memory>
#include <string>

#include "cortado/base/fields.h"
#include "cortado/tasks/examples.h"

namespace cortado {

struct ListopsOptions {
  std::string folder;  // basic_{train,val,test}.tsv as lra_release has them; "": drawn
  int64_t examples = 96000, validation_examples = 2000, test_examples = 2000;
  int64_t depth = 10, arguments = 10;    // at most
  int64_t shorter = 2000, longer = 500;  // lengths lie between, both excluded
  int64_t seed = 0;

  void fields(JsonFields& json);
};

// InputError: a folder whose files are not what they say (a label that is not the value, ...).
std::unique_ptr<TaskExamples> listops_examples(const ListopsOptions& options);

// Writes basic_{train,val,test}.tsv; at most `most` examples of each split.
void write_listops(const TaskExamples& task, const std::string& folder, int64_t most);

}  // namespace cortado
