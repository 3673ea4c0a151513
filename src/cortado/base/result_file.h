// Results as JSON lines, in a file to which an interrupted command can append when it is run again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/base/json.h"

namespace cortado {

// Lines {"setting": NAME, "value": VALUE} record the settings that the results depend on. Every other line is a result.
class ResultFile {
 public:
  // Reads the file, or creates it if it is missing. Cuts off an unfinished last line of a killed program. Keeps other
  // programs from opening the file in this way for the object's lifetime. With an empty path, results are kept in
  // memory only. Throws InputError if the file cannot be opened, holds something else, or is in use by another program.
  explicit ResultFile(std::string path);

  // Records the setting if the file has none of that name. Throws InputError if the file was made with another value.
  // `former` is the value that earlier versions wrote for `value`.
  void require(const std::string& setting, const Json& value, const Json& former = nullptr);

  const std::vector<Json>& results() const { return results_; }
  // Writes the results at once; bytes that are not UTF-8 become U+FFFD. Throws Failure if the file can't be written,
  // and leaves it unchanged.
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
