// Training runs in temporary folders, and their comparison, for tests.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/formats/safetensors.h"
#include "cortado/testing/errors.h"
#include "cortado/train/run.h"

namespace cortado::testing {

// A temporary folder with helpers to train in it and to compare runs.
class RunTest : public ::testing::Test {
 protected:
  RunTest() { at::set_num_threads(1); }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  TrainRequest request(const Json& config, const std::string& out) const {
    TrainRequest request;
    request.config = config;
    request.config_name = "test";
    request.out = path(out);
    request.progress = false;
    return request;
  }

  TrainRequest resuming(const std::string& out) const {
    TrainRequest again = request(nullptr, out);
    again.use = FolderUse::kResume;
    return again;
  }

  // Returns metrics.jsonl without the values that depend on time.
  std::vector<Json> metrics(const std::string& run) const {
    std::vector<Json> lines;
    std::ifstream file(path(run) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      lines.push_back(parse_json(line, "metrics"));
      lines.back().erase("seconds");
      lines.back().erase("tokens_per_second");
    }
    return lines;
  }

  void expect_same_run(const std::string& a, const std::string& b) const {
    for (const char* name : {"trainer.safetensors", "best.safetensors", "last.safetensors"}) {
      const auto left = read_safetensors(path(a) + "/" + name).tensors,
                 right = read_safetensors(path(b) + "/" + name).tensors;
      ASSERT_EQ(left.size(), right.size()) << name;
      for (size_t i = 0; i < left.size(); ++i) {
        EXPECT_EQ(left[i].first, right[i].first);
        EXPECT_TRUE(at::equal(left[i].second, right[i].second)) << name << " " << left[i].first;
      }
    }
    EXPECT_EQ(metrics(a), metrics(b));
  }

  std::string error_of(const TrainRequest& request) const {
    return testing::error_of([&] { train_run(request); });
  }

  TemporaryDirectory folder_;
};

}  // namespace cortado::testing
