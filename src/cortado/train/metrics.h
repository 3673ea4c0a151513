// metrics.jsonl: what happened, one JSON object a line.
#pragma once

#include <fstream>
#include <string>

#include "cortado/base/json.h"

namespace cortado {

class MetricsFile {
 public:
  // Keeps the lines up to step `last_step` and drops later ones and a broken last line: a resumed run writes those
  // anew.
  MetricsFile(std::string path, int64_t last_step);
  // Written through at once. Failure when the disk is full.
  void write(const Json& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace cortado
