#include "cortado/train/metrics.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"

namespace cortado {
namespace {

std::string lines_up_to(const std::string& path, int64_t last_step) {
  std::istringstream lines(read_file(path));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool whole = json.is_object() && json.contains("step") && json["step"].is_number_integer();
    if (whole && json["step"].get<int64_t>() <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(std::string path, int64_t last_step) : path_(std::move(path)) {
  write_file(path_, std::filesystem::exists(path_) ? lines_up_to(path_, last_step) : "");
  file_.open(path_, std::ios::app);
}

void MetricsFile::write(const Json& line) {
  errno = 0;
  file_ << line.dump() << "\n" << std::flush;
  if (!file_) throw Failure(concat("[", path_, "] can't be written: ", std::strerror(errno)));
}

}  // namespace cortado
