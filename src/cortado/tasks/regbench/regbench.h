// In-context language learning: strings of an automaton that no other example has, whose next letter is asked for
// (README.md).
#pragma once

#include <memory>

#include "cortado/base/fields.h"
#include "cortado/tasks/examples.h"
#include "cortado/tasks/regbench/dfa.h"

namespace cortado {

struct RegbenchOptions {
  DfaSizes sizes;
  int64_t examples = 5000, validation_examples = 500, test_examples = 500;  // an automaton each
  int64_t least_strings = 10, most_strings = 19, longest_string = 49;
  int64_t seed = 0;

  void fields(JsonFields& json);
};

std::unique_ptr<TaskExamples> regbench_examples(const RegbenchOptions& options);

}  // namespace cortado
