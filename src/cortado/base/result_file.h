// Results as JSON lines, in a file that an interrupted command goes on with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/base/json.h"

namespace cortado {

// Lines {"setting": NAME, "value": VALUE} say what the results depend on; every other line is a result.
class ResultFile {
 public:
  // Reads what is there, or makes the file. The unfinished last line that a killed program left is cut off. While this
  // lives, no other program can open the file so. An empty path: results are only kept in memory. InputError: it cannot
  // be opened, it holds something else, another program has it.
  explicit ResultFile(std::string path);

  // InputError when the file was made with another value of that setting; written down when it had none. `former` is
  // what earlier versions wrote for the same.
  void require(const std::string& setting, const Json& value, const Json& former = nullptr);

  const std::vector<Json>& results() const { return results_; }
  // Written at once; text that is not UTF-8 becomes U+FFFD. Failure when it can't be written: the file is then as it
  // was.
  void append(const std::vector<Json>& results);

 private:
  void read();
  void take(const Json& line, size_t number);
  void write(const std::string& text);

  std::string path_;
  Descriptor file_;
  uint64_t size_ = 0;
  std::vector<std::pair<std::string, Json>> settings_;
  std::vector<Json> results_;
};

}  // namespace cortado
