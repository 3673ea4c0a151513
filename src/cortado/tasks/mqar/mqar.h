// Multi-query associative recall: pairs of a key and a value, then keys whose value is asked for (README.md).
#pragma once

#include <memory>
#include <vector>

#include "cortado/tasks/examples.h"

namespace cortado {

// Examples of one length T and number of pairs K.
struct MqarSegment {
  int64_t length = 64, pairs = 4, examples = 100000;
};

struct MqarOptions {
  int64_t vocabulary = 8192;        // keys are below its half, values above; 0 is the filler
  double power = 0.01;              // slot i of the queries is drawn with a weight of (i + 1)^(power - 1)
  bool random_non_queries = false;  // what is neither pair nor query is any token, and not the filler
  int64_t seed = 123;
  std::vector<MqarSegment> train, test;
};

// {"protocol": "zoology" | "based", ...}: settings of `task` for this task. InputError: 4 K > T, V <= T, ...
MqarOptions mqar_options(const Json& settings, const std::string& place);

std::unique_ptr<TaskExamples> mqar_examples(MqarOptions options);

}  // namespace cortado
