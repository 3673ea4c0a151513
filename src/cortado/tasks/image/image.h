// Image classification, one pixel after the other: CIFAR-10 in grey (README.md).
#pragma once

#include <memory>
#include <string>

#include "cortado/base/fields.h"
#include "cortado/tasks/examples.h"

namespace cortado {

struct ImageOptions {
  std::string folder;             // data_batch_1.bin .. data_batch_5.bin, test_batch.bin
  std::string input = "tokens";   // bytes; or "numbers", (x / 255 - 0.5) / 0.5
  double validation_share = 0.1;  // of the training images, drawn by the seed
  int64_t seed = 0;

  void fields(JsonFields& json);
};

// InputError: no folder, or files that are not CIFAR-10's binary version.
std::unique_ptr<TaskExamples> image_examples(const ImageOptions& options);

}  // namespace cortado
