// Pathfinder of Long Range Arena: are two marked ends those of one snake? (README.md)
#pragma once

#include <memory>
#include <string>

#include "cortado/base/fields.h"
#include "cortado/tasks/examples.h"

namespace cortado {

struct PathfinderOptions {
  int64_t size = 32;              // pixels each way: 32, 64, 128 ("Path-X") or 256
  std::string level = "hard";     // snakes of 14 paddles; "medium" 9, "easy" 6
  std::string input = "numbers";  // (x / 255 - 0.5) / 0.5; or "tokens", the bytes
  int64_t examples = 160000, validation_examples = 20000, test_examples = 20000;
  int64_t seed = 0;
  std::string folder;  // of pictures that are there (files.h), of which 8, 1 and 1 tenths are the splits; empty: drawn

  void fields(JsonFields& json);
};

std::unique_ptr<TaskExamples> pathfinder_examples(const PathfinderOptions& options);

}  // namespace cortado
